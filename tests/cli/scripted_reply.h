// Events of an engine that was never there.
#pragma once

#include <string>
#include <vector>

#include "reply/reply_sink.h"
#include "support/shared.h"
#include "text/tokenizer.h"

namespace dgemma::cli {

inline const text::Tokenizer& demo_tokenizer() {
    static const auto loaded = text::load_tokenizer_for(testing::demo_dir());
    EXPECT_TRUE(loaded.ok());
    return loaded.value();
}

inline std::vector<std::int32_t> demo_ids(std::string_view text) {
    return demo_tokenizer().encode(text, text::Specials::parse);
}

// Tells a sink of a reply: each block as drafts (one step each) and what is committed. A block that ends in
// <turn|> ends the reply.
class ScriptedReply {
  public:
    struct Block {
        std::vector<std::string> drafts;
        std::string committed;
    };

    static engine::EndEvent tell(engine::Sink& sink, const std::vector<Block>& blocks) {
        engine::EndEvent end;
        end.reason = engine::FinishReason::length;
        sink.on_prefill({.done = 0, .total = 5});
        sink.on_prefill({.done = 5, .total = 5});
        int number = 0;
        for (const Block& block : blocks) {
            int step = 0;
            for (const std::string& draft : block.drafts) {
                const auto ids = demo_ids(draft);
                std::vector<std::uint8_t> accept(ids.size(), 0);
                for (std::size_t i = 0; i < accept.size() / 2; ++i) accept[i] = 1;
                sink.on_step({.block = number,
                              .step = step++,
                              .max_steps = 48,
                              .temperature = 0.8f,
                              .mean_entropy = 1.25f,
                              .accepted = static_cast<int>(accept.size() / 2),
                              .input = ids,
                              .argmax = ids,
                              .accept = accept});
            }
            auto ids = demo_ids(block.committed);
            const std::int32_t turn = demo_tokenizer().id_of("<turn|>");
            std::optional<std::int32_t> stop;
            const auto canvas = ids;
            if (!ids.empty() && ids.back() == turn) {
                stop = turn;
                ids.pop_back();
            }
            end.stats.output_tokens += static_cast<int>(ids.size());
            end.stats.steps += step;
            end.stats.blocks.push_back({.steps = step, .attempts = 1, .stop_rule = "stable"});
            const auto verdict = sink.on_block({.block = number++,
                                                .ids = ids,
                                                .canvas = canvas,
                                                .stop_id = stop,
                                                .steps = step,
                                                .stop_rule = "stable",
                                                .guards = {"last_step"}});
            if (verdict == engine::BlockVerdict::stop_string) end.reason = engine::FinishReason::stop_string;
            if (stop) end.reason = engine::FinishReason::stop;
            end.stop_id = stop;
            if (end.reason != engine::FinishReason::length) break;
        }
        sink.on_end(end);
        return end;
    }
};

}  // namespace dgemma::cli
