#include "reply/stop_strings.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace dgemma::reply {
namespace {

// What comes out when `text` is fed in two pieces cut at `cut`.
std::string passed(const std::vector<std::string>& stops, const std::string& text, std::size_t cut) {
    StopStrings matcher(stops);
    std::string out = matcher.feed(text.substr(0, cut));
    out += matcher.feed(text.substr(cut));
    return out + matcher.finish();
}

TEST(StopStrings, CutsBeforeTheStopWhereverThePiecesEnd) {
    const std::string text = "one two STOP three";
    for (std::size_t cut = 0; cut <= text.size(); ++cut)
        EXPECT_EQ(passed({"STOP"}, text, cut), "one two ") << cut;
}

TEST(StopStrings, FedByteByByteGivesTheSame) {
    StopStrings matcher({"\n\n", "END"});
    std::string out;
    for (const char c : std::string("a\nb EN\n\nEND")) out += matcher.feed(std::string(1, c));
    EXPECT_TRUE(matcher.stopped());
    EXPECT_EQ(out + matcher.finish(), "a\nb EN");
}

TEST(StopStrings, HoldsBackOnlyWhatMayBecomeAStop) {
    StopStrings matcher({"abab!"});
    EXPECT_EQ(matcher.feed("xabab"), "x");
    EXPECT_EQ(matcher.feed("ab"), "ab");  // "abab" may still begin the stop
    EXPECT_EQ(matcher.feed("c"), "ababc");
    EXPECT_FALSE(matcher.stopped());
    EXPECT_EQ(matcher.feed("ab"), "");
    EXPECT_EQ(matcher.finish(), "ab");
}

TEST(StopStrings, TheStopThatIsCompleteFirstWins) {
    const std::string text = "1abcd2";
    for (std::size_t cut = 0; cut <= text.size(); ++cut) {
        EXPECT_EQ(passed({"abcd", "bc"}, text, cut), "1a") << cut;
        EXPECT_EQ(passed({"bc", "abc"}, text, cut), "1") << cut;  // they end together: the longer one
    }
}

TEST(StopStrings, WithoutStopsNothingIsHeldBack) {
    StopStrings matcher({});
    EXPECT_EQ(matcher.feed("abc"), "abc");
    EXPECT_EQ(matcher.finish(), "");
    EXPECT_FALSE(matcher.stopped());
}

}  // namespace
}  // namespace dgemma::reply
