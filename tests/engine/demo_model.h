// The demo checkpoint for tests of the engine: loaded once, with prompts in its template.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/generator.h"
#include "engine/loaded_model.h"
#include "engine/reply.h"
#include "files/checkpoint.h"
#include "support/shared.h"
#include "text/tokenizer.h"

namespace dgemma::testing {

using Ids = std::vector<std::int32_t>;

inline const files::Checkpoint& demo_checkpoint() {
    static const files::Checkpoint checkpoint = files::Checkpoint::open(demo_dir()).value();
    return checkpoint;
}

// With small pieces, so that short prompts are cut too.
inline engine::LoadOptions demo_load() { return {.threads = 2, .prefill_chunk = 64}; }

inline engine::LoadedModel& demo_model() {
    static const std::unique_ptr<engine::LoadedModel> loaded =
        engine::load_model(demo_checkpoint(), demo_load()).value();
    return *loaded;
}

inline Ids ids_of(const std::string& text) {
    static const text::Tokenizer tokenizer = text::Tokenizer::load(demo_dir() / "tokenizer.json").value();
    return tokenizer.encode(text, text::Specials::parse);
}

inline std::string question(const std::string& text) {
    return "<bos><|turn>user\n" + text + "<turn|>\n<|turn>model\n";
}

inline engine::Request demo_request(const std::string& asked = "What is the capital of France?") {
    engine::Request r;
    r.prompt = ids_of(question(asked));
    r.diffusion = engine::default_options(demo_model().generation);
    return r;
}

// Ids that say nothing, the same ones each time.
inline Ids filler(std::size_t count, int seed = 1) {
    Ids ids;
    auto state = static_cast<std::uint32_t>(seed) * 2654435761u;
    for (std::size_t i = 0; i < count; ++i) {
        state = state * 1664525u + 1013904223u;
        ids.push_back(static_cast<std::int32_t>(200 + (state >> 16) % 250));
    }
    return ids;
}

// What a reply was, apart from how long it took.
class Told : public engine::Sink {
  public:
    void on_step(const engine::StepEvent& e) override {
        argmax.emplace_back(e.argmax.begin(), e.argmax.end());
        inputs.emplace_back(e.input.begin(), e.input.end());
    }
    engine::BlockVerdict on_block(const engine::BlockEvent& e) override {
        ids.insert(ids.end(), e.ids.begin(), e.ids.end());
        canvases.emplace_back(e.canvas.begin(), e.canvas.end());
        return engine::BlockVerdict::go_on;
    }
    Ids ids;
    std::vector<Ids> canvases, argmax, inputs;
};

// What the one-call path makes of a request.
struct Alone {
    Told told;
    engine::EndEvent end;
};
inline Alone alone(const engine::Request& request) {
    static const std::unique_ptr<engine::Generator> generator =
        engine::Generator::load(demo_checkpoint(), demo_load()).value();
    Alone out;
    out.end = generator->generate(request, out.told).value();
    return out;
}

}  // namespace dgemma::testing
