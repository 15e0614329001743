// The published prompt with the real tokenizer, and with another.
#include "cli/verify_published.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "support/shared.h"

namespace dgemma::testing {
namespace {

using namespace cli;

TEST(VerifyPublished, PromptsAreThoseOfTheRealTokenizer) {
    const auto shared = shared_dir();
    const bool there = shared && std::filesystem::exists(*shared / "tokenizer" / "tokenizer.json.gz");
    DGEMMA_SKIP_WITHOUT(there, "tokenizer/");
    const auto tokenizer = text::load_tokenizer_for(*shared / "tokenizer");
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    const auto compared = compare_prompts(*tokenizer);
    ASSERT_TRUE(compared);
    ASSERT_EQ(compared->size(), 2u);
    for (const PromptComparison& prompt : *compared) {
        EXPECT_TRUE(prompt.equal()) << prompt.thinking << " from id " << prompt.first_difference();
    }
}

TEST(VerifyPublished, PromptsOfAnotherTokenizerDiffer) {
    const auto tokenizer = text::load_tokenizer_for(demo_dir());
    ASSERT_TRUE(tokenizer);
    const auto compared = compare_prompts(*tokenizer);
    ASSERT_TRUE(compared);
    for (const PromptComparison& prompt : *compared) EXPECT_FALSE(prompt.equal());
}

TEST(VerifyPublished, AnEndTooEarlyOrTooLateIsADifference) {
    PromptComparison prompt{false, {1, 2, 3}, engine::published_prompts()[0].ids};
    prompt.got.assign(prompt.want.begin(), prompt.want.end());
    EXPECT_TRUE(prompt.equal());
    prompt.got.push_back(7);
    EXPECT_FALSE(prompt.equal());
    EXPECT_EQ(prompt.first_difference(), prompt.want.size());
    prompt.got.resize(prompt.want.size() - 1);
    EXPECT_FALSE(prompt.equal());
    EXPECT_EQ(prompt.first_difference(), prompt.got.size());
}

}  // namespace
}  // namespace dgemma::testing
