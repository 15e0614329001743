#include "reply/reading.h"

#include <gtest/gtest.h>

#include "support/shared.h"

namespace dgemma::reply {
namespace {

const text::Tokenizer& demo_tokenizer() {
    static const auto loaded = text::load_tokenizer_for(testing::demo_dir());
    EXPECT_TRUE(loaded.ok());
    return loaded.value();
}

std::vector<std::int32_t> demo_ids(std::string_view text) {
    return demo_tokenizer().encode(text, text::Specials::parse);
}

TEST(AnswerGuards, TellWhatTheIdsMean) {
    engine::Request request;
    answer_guards(request, demo_tokenizer(), false);
    EXPECT_TRUE(request.shows_nothing(demo_ids("")));
    EXPECT_TRUE(request.shows_nothing(demo_ids(" \n")));
    EXPECT_TRUE(request.shows_nothing(demo_ids("<|channel>thought\n<channel|>")));
    EXPECT_FALSE(request.shows_nothing(demo_ids("<|channel>thought\nhm<channel|>yes")));
    EXPECT_FALSE(request.shows_nothing(demo_ids("<|tool_call>call:f{}<tool_call|>")));
    EXPECT_TRUE(request.inside_quote(demo_ids("<|tool_call>call:f{a:<|\"|>text")));
    EXPECT_FALSE(request.inside_quote(demo_ids("<|tool_call>call:f{a:<|\"|>text<|\"|>")));
    EXPECT_FALSE(request.inside_quote(demo_ids("plain <|\"|>text")));
    EXPECT_TRUE(request.is_space(demo_ids(" ").front()));
    EXPECT_FALSE(request.is_space(demo_ids("a").front()));
    EXPECT_FALSE(request.is_space(demo_tokenizer().id_of("<turn|>")));
}

TEST(AnswerGuards, AReplyThatBeginsInAThoughtShowsNothingYet) {
    engine::Request request;
    answer_guards(request, demo_tokenizer(), true);
    EXPECT_TRUE(request.shows_nothing(demo_ids("so it is")));
    EXPECT_FALSE(request.shows_nothing(demo_ids("so it is<channel|>Yes")));
}

}  // namespace
}  // namespace dgemma::reply
