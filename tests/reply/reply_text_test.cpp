#include "reply/reply_text.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/shared.h"

namespace dgemma::reply {
namespace {

using text::ParserEvent;

class ReplyTextTest : public ::testing::Test {
  protected:
    static const text::Tokenizer& tokenizer() {
        static const auto loaded = text::load_tokenizer_for(testing::demo_dir());
        EXPECT_TRUE(loaded.ok());
        return loaded.value();
    }
    static std::vector<std::int32_t> ids(std::string_view text) {
        return tokenizer().encode(text, text::Specials::parse);
    }

    struct Outcome {
        std::string content, reasoning;
        std::vector<std::string> calls;
        bool complete = false;  // before the end
        friend bool operator==(const Outcome&, const Outcome&) = default;
    };
    // Feeds ids in two blocks cut at `cut`.
    static Outcome run(const std::vector<std::int32_t>& all, std::size_t cut,
                       const std::vector<std::string>& stops, text::ParserOptions options = {},
                       std::optional<std::int32_t> stop_id = {}) {
        ReplyText reply(tokenizer(), options, stops);
        Outcome out;
        const auto take = [&](const std::vector<ParserEvent>& events) {
            for (const ParserEvent& event : events) {
                if (event.kind == ParserEvent::Kind::content) out.content += event.text;
                if (event.kind == ParserEvent::Kind::reasoning) out.reasoning += event.text;
                if (event.kind == ParserEvent::Kind::tool_call) {
                    out.calls.push_back(event.call.name + text::to_json(event.call.arguments));
                }
            }
        };
        take(reply.feed(std::span(all).first(cut)));
        if (!reply.complete()) take(reply.feed(std::span(all).subspan(cut)));
        out.complete = reply.complete();
        take(reply.finish(stop_id));
        EXPECT_EQ(reply.whole().content.value_or(""), out.content);
        EXPECT_EQ(reply.whole().reasoning.value_or(""), out.reasoning);
        EXPECT_EQ(reply.whole().tool_calls.size(), out.calls.size());
        return out;
    }
};

TEST_F(ReplyTextTest, SplitsThoughtAnswerAndCallsWhereverABlockEnds) {
    const auto all =
        ids("<|channel>thought\nhm, well\n<channel|>The "
            "answer.<|tool_call>call:add{a:1,b:<|\"|>two<|\"|>}<tool_call|>");
    const Outcome expected{"The answer.", "hm, well", {R"(add{"a":1,"b":"two"})"}, false};
    for (std::size_t cut = 0; cut <= all.size(); ++cut) EXPECT_EQ(run(all, cut, {}), expected) << cut;
}

TEST_F(ReplyTextTest, StopStringsMatchAcrossBlocksAndAreNeverShown) {
    const auto all = ids("one, two, three and four");
    for (std::size_t cut = 0; cut <= all.size(); ++cut) {
        EXPECT_EQ(run(all, cut, {"three"}), (Outcome{"one, two, ", "", {}, true})) << cut;
        EXPECT_EQ(run(all, cut, {"o, th", "zzz"}), (Outcome{"one, tw", "", {}, true})) << cut;
        // The beginning of a stop that does not come is shown in the end.
        EXPECT_EQ(run(all, cut, {"four!"}), (Outcome{"one, two, three and four", "", {}, false})) << cut;
    }
}

TEST_F(ReplyTextTest, StopStringsAreOfTheAnswerOnly) {
    const auto all = ids("<|channel>thought\nEND<channel|>The END.<|tool_call>call:f{}<tool_call|>");
    for (std::size_t cut = 0; cut <= all.size(); ++cut) {
        EXPECT_EQ(run(all, cut, {"END"}), (Outcome{"The ", "END", {}, true})) << cut;
    }
}

TEST_F(ReplyTextTest, WhatIsHeldBackForAStopComesBeforeACall) {
    ReplyText reply(tokenizer(), {}, {"ENDING"});
    const auto events = reply.feed(ids("The END<|tool_call>call:f{}<tool_call|>"));
    ASSERT_EQ(events.size(), 2u);
    EXPECT_EQ(events[0].text, "The END");
    EXPECT_EQ(events[1].call.name, "f");
}

TEST_F(ReplyTextTest, AReplyMayBeginInAThought) {
    text::ParserOptions options;
    options.start = text::ParserOptions::Start::thought;
    const auto all = ids("so it is\n<channel|>Yes.");
    EXPECT_EQ(run(all, 3, {}, options), (Outcome{"Yes.", "so it is", {}, false}));
}

TEST_F(ReplyTextTest, TheStopIdMayStandForTheClosingMarkerOfACall) {
    const auto all = ids("<|tool_call>call:f{x:1}");
    const std::int32_t response = tokenizer().id_of("<|tool_response>");
    EXPECT_EQ(run(all, 2, {}, {}, response), (Outcome{"", "", {R"(f{"x":1})"}, false}));
    const Outcome cut_off = run(all, 2, {});
    EXPECT_TRUE(cut_off.calls.empty());
    EXPECT_EQ(cut_off.content, "<|tool_call>call:f{x:1}");
}

TEST_F(ReplyTextTest, OneBlockIsToldOfInOnePiece) {
    ReplyText reply(tokenizer(), {}, {});
    EXPECT_EQ(reply.feed(ids("Several words in a block.")).size(), 1u);
}

TEST_F(ReplyTextTest, ACopyReadsADraftWithoutTouchingTheReply) {
    ReplyText reply(tokenizer(), {}, {});
    reply.feed(ids("Once "));
    ReplyText draft = reply;
    draft.feed(ids("upon<turn|><eos><eos>"));
    EXPECT_EQ(draft.whole().content, "Once upon");
    EXPECT_TRUE(draft.complete());
    reply.feed(ids("more"));
    EXPECT_EQ(reply.whole().content, "Once more");
}

}  // namespace
}  // namespace dgemma::reply
