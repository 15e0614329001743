// The way of a take's events to the thread of its turn.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "server/turn.h"

namespace dgemma::server {

// Brings a take's events to the turn's thread. A turn that has gone misses nothing.
class Turn::Listener : public TakeListener {
  public:
    Listener(std::weak_ptr<Turn> turn, int take, Post post)
        : turn_(std::move(turn)), take_(take), post_(std::move(post)) {}

    void started(engine::StartEvent event) override {
        tell([event = std::move(event)](Turn& turn) { turn.on_started(event); });
    }
    void step(TakeStep step) override {
        tell([step = std::move(step)](Turn& turn) { turn.on_step(step); });
    }
    void pieces(std::vector<text::ParserEvent> pieces, std::vector<std::int32_t> ids) override {
        tell([pieces = std::move(pieces), ids = std::move(ids)](Turn& turn) { turn.on_pieces(pieces, ids); });
    }
    void ended(TakeEnd end) override {
        // Shared, since a function must be able to be copied.
        tell([end = std::make_shared<TakeEnd>(std::move(end))](Turn& turn) {
            turn.on_ended(std::move(*end));
        });
    }
    void failed(Error error) override {
        tell([error = std::move(error)](Turn& turn) { turn.on_failed(error); });
    }

  private:
    template <class Function>
    void tell(Function function) {
        post_([turn = turn_, take = take_, function = std::move(function)] {
            const std::shared_ptr<Turn> there = turn.lock();
            if (there && !there->over_ && there->take_ == take) function(*there);
        });
    }

    std::weak_ptr<Turn> turn_;
    int take_;
    Post post_;
};

}  // namespace dgemma::server
