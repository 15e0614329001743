#include "cli/nearest.h"

#include <array>
#include <string>

#include <gtest/gtest.h>

namespace dgemma::cli {
namespace {

TEST(EditDistance, CountsEditsAndSwaps) {
    EXPECT_EQ(edit_distance("", ""), 0u);
    EXPECT_EQ(edit_distance("", "abc"), 3u);
    EXPECT_EQ(edit_distance("seed", "seed"), 0u);
    EXPECT_EQ(edit_distance("sed", "seed"), 1u);
    EXPECT_EQ(edit_distance("sead", "seed"), 1u);
    EXPECT_EQ(edit_distance("sede", "seed"), 1u);
    EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

TEST(Nearest, FindsWhatWasMeantAndNothingElse) {
    const std::array<std::string_view, 3> words = {"ask", "eval", "info"};
    EXPECT_EQ(nearest("aks", words), "ask");
    EXPECT_EQ(nearest("evla", words), "eval");
    EXPECT_EQ(nearest("zzz", words), std::nullopt);
    EXPECT_EQ(nearest(std::string(1000000, 'a'), words), std::nullopt);
    EXPECT_EQ(nearest("", words), std::nullopt);
}

}  // namespace
}  // namespace dgemma::cli
