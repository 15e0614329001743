// An engine that says what it is told to.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "server/served_model.h"
#include "support/shared.h"

namespace dgemma::server {

inline const text::Tokenizer& demo_tokenizer() {
    static const auto loaded = text::load_tokenizer_for(testing::demo_dir());
    EXPECT_TRUE(loaded.ok());
    return loaded.value();
}

inline std::vector<std::int32_t> demo_ids(std::string_view text) {
    return demo_tokenizer().encode(text, text::Specials::parse);
}

class ScriptedPort : public ModelPort {
  public:
    // One request's reply, block by block; the last one ends in a stop token, or the limit is met.
    using Script = std::vector<std::string>;
    std::deque<Script> scripts;
    std::vector<engine::Request> requests;
    std::vector<engine::RequestId> cancelled;
    std::optional<Error> refusal;
    bool silent = false;  // a reply never begins
    int context = 4096;

    Result<engine::RequestId> submit(engine::Request request,
                                     std::shared_ptr<engine::RequestSink> sink) override {
        if (refusal) return *refusal;
        requests.push_back(request);
        const auto id = static_cast<engine::RequestId>(requests.size());
        if (silent) {
            waiting_.push_back(std::move(sink));
            return id;
        }
        EXPECT_FALSE(scripts.empty()) << "one take more than was thought of";
        if (scripts.empty()) return Error{ErrorKind::io, "no script"};
        const Script script = std::move(scripts.front());
        scripts.pop_front();
        play(script, request, *sink);
        return id;
    }
    void cancel(engine::RequestId id) override { cancelled.push_back(id); }
    [[nodiscard]] int retry_after_seconds() const override { return 3; }
    [[nodiscard]] engine::SchedulerStats stats() const override { return {}; }
    [[nodiscard]] diffusion::Options default_options() const override { return {}; }
    [[nodiscard]] int context_limit() const override { return context; }
    [[nodiscard]] int canvas_length() const override { return 64; }
    [[nodiscard]] int vocabulary() const override { return demo_tokenizer().vocab_size(); }

  private:
    static void play(const Script& script, const engine::Request& request, engine::RequestSink& sink) {
        engine::EndEvent end;
        end.reason = engine::FinishReason::length;
        sink.on_start(
            {.id = 1, .prompt_tokens = static_cast<int>(request.prompt.size()), .reused_tokens = 2});
        int number = 0;
        for (const std::string& block : script) {
            std::vector<std::int32_t> ids = demo_ids(block);
            std::optional<std::int32_t> stop;
            for (const char* token : {"<turn|>", "<|tool_response>", "<eos>"}) {
                if (!ids.empty() && ids.back() == demo_tokenizer().id_of(token)) stop = ids.back();
            }
            if (stop) ids.pop_back();
            sink.on_step({.block = number, .max_steps = 48, .input = ids, .argmax = ids});
            end.stats.blocks.push_back({.steps = 1, .attempts = 1, .stop_rule = "stable"});
            const auto verdict = sink.on_block({.block = number++, .ids = ids, .stop_id = stop, .steps = 1});
            end.stats.steps += 1;
            if (verdict == engine::BlockVerdict::stop_string) {
                end.reason = engine::FinishReason::stop_string;
                break;
            }
            if (stop) {
                end.reason = engine::FinishReason::stop;
                end.stop_id = stop;
                break;
            }
        }
        sink.on_end(end);
    }

    std::vector<std::shared_ptr<engine::RequestSink>> waiting_;
};

}  // namespace dgemma::server
