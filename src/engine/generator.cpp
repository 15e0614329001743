#include "engine/generator.h"

#include <chrono>
#include <optional>
#include <utility>

#include "engine/loaded_model.h"
#include "engine/reply.h"

namespace dgemma::engine {

struct Generator::State {
    std::unique_ptr<LoadedModel> loaded;
    LogitsPool pool;
    Session session;
};

Generator::Generator(std::unique_ptr<State> state) : state_(std::move(state)) {}
Generator::~Generator() = default;

const model::Config& Generator::config() const { return state_->loaded->config; }
const model::GenerationConfig& Generator::generation_config() const { return state_->loaded->generation; }
int Generator::context_limit() const { return state_->loaded->context; }

Result<std::unique_ptr<Generator>> Generator::load(const files::Checkpoint& checkpoint,
                                                   const LoadOptions& options) {
    DGEMMA_TRY(std::unique_ptr<LoadedModel> loaded, load_model(checkpoint, options));
    LoadedModel& model = *loaded;
    auto state = std::unique_ptr<State>(new State{std::move(loaded),
                                                  LogitsPool(*model.backend, model.config.text.vocab_size, 1),
                                                  Session(model.new_cache())});
    return std::unique_ptr<Generator>(new Generator(std::move(state)));
}

diffusion::Options Generator::default_options() const {
    return engine::default_options(state_->loaded->generation);
}

Result<EndEvent> Generator::generate(const Request& request, Sink& sink) {
    DGEMMA_TRY(ReplySetup setup, check_request(*state_->loaded, request));
    model::Model& model = *state_->loaded->model;
    Session& session = state_->session;
    session.clear();
    Reply reply(model, state_->pool, session, request, std::move(setup), sink);
    reply.begin(session.begin(request.prompt), Reuse::none);
    while (!reply.poll()) {
        if (reply.phase() == Reply::Phase::encode) {
            const auto start = std::chrono::steady_clock::now();
            const model::Prompt piece = session.next_piece(session.cache().chunk());
            DGEMMA_CHECK(model.encode(std::span(&piece, 1)));
            reply.encoded(
                std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
        } else {
            DGEMMA_TRY(model::Canvas canvas, reply.canvas());
            model.backend().set_soft_cutoff(reply.soft_cutoff());
            DGEMMA_CHECK(model.denoise(std::span(&canvas, 1)));
            DGEMMA_CHECK(reply.denoised(canvas));
        }
    }
    return reply.end();
}

}  // namespace dgemma::engine
