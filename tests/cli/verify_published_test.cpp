// The published prompt with the real tokenizer, and with another.
#include "cli/verify_published.h"

#include <filesystem>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

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

// The demo in the published model's place: what is not compared is said, and nothing else happens.
class WhatIsNotCompared : public ::testing::Test {
  protected:
    Published compared(int layers, const Status& whole_fits = {}) {
        engine::VerifyOptions options;
        options.layers = layers;
        options.progress = [](const std::string&) {};
        auto out = compare_published(checkpoint_, config_, options, whole_fits);
        EXPECT_TRUE(out) << out.error().message;
        return *out;
    }
    const files::Checkpoint checkpoint_ = files::Checkpoint::open(demo_dir()).value();
    model::Config config_ = model::parse_config(checkpoint_.config_text().value(), "config.json").value();
};

TEST_F(WhatIsNotCompared, LayersThatAreNotPublished) {
    const Published published = compared(7);
    EXPECT_EQ(published.prompts.size(), 2u);
    EXPECT_FALSE(published.comparison);
    ASSERT_EQ(published.notes.size(), 1u);
    EXPECT_NE(published.notes[0].find("after 7 layers"), std::string::npos);
}

TEST_F(WhatIsNotCompared, AWholeModelThatDoesNotFit) {
    config_.text.layers.resize(30);
    const Published published = compared(0, Error{ErrorKind::io, "It needs 50 GiB, and 8 are there."});
    EXPECT_FALSE(published.comparison);
    ASSERT_EQ(published.notes.size(), 1u);
    EXPECT_NE(published.notes[0].find("It needs 50 GiB"), std::string::npos);
    EXPECT_NE(published.notes[0].find("--layers 6"), std::string::npos);
    std::ostringstream out;
    print_text(published, out);
    EXPECT_NE(out.str().find("differs at id"), std::string::npos);
    EXPECT_NE(out.str().find("It needs 50 GiB"), std::string::npos);
    EXPECT_EQ(json_of(published)["not_compared"].size(), 1u);
}

}  // namespace
}  // namespace dgemma::testing
