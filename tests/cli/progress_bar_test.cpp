#include "cli/progress_bar.h"

#include <sstream>
#include <string>

#include <gtest/gtest.h>

namespace dgemma::cli {
namespace {

class Bar : public ::testing::Test {
  protected:
    Console& console(bool terminal) {
        console_.err_is_terminal = terminal;
        return console_;
    }
    ProgressBar::Clock clock() {
        return [this] { return now; };
    }
    std::string shown() {
        std::string text = err.str();
        err.str("");
        return text;
    }

    double now = 100;
    std::istringstream in;
    std::ostringstream out, err;

  private:
    Console console_{.in = in, .out = out, .err = err};
};

TEST_F(Bar, InAPipeALineEveryTenSeconds) {
    ProgressBar bar(console(false), "quantizing", 100 << 20, clock());
    for (int i = 0; i < 40; ++i) {
        now += 0.5;
        bar.advance(1 << 20);
    }
    EXPECT_EQ(shown(),
              "quantizing   20%  20.0 MiB of 100.0 MiB  2.0 MiB/s  0:40 left\n"
              "quantizing   40%  40.0 MiB of 100.0 MiB  2.0 MiB/s  0:30 left\n");
    now += 0.5;
    bar.advance(60 << 20);
    EXPECT_EQ(shown(), "");
    bar.finish();
    EXPECT_EQ(shown(), "quantizing: 100.0 MiB in 0:21, 4.9 MiB/s\n");
    bar.advance(1);
    EXPECT_EQ(shown(), "");
    EXPECT_EQ(out.str(), "");
}

TEST_F(Bar, OnATerminalOneLineIsRedrawnAndTakenAway) {
    {
        ProgressBar bar(console(true), "writing", 8 << 20, clock());
        now += 0.05;
        bar.advance(1 << 20);
        EXPECT_EQ(shown(), "") << "ten times a second are enough";
        now += 0.95;
        bar.advance(1 << 20);
        const std::string line = shown();
        EXPECT_EQ(line.rfind("\r\x1b[Kwriting  [", 0), 0u) << line;
        EXPECT_NE(line.find("#."), std::string::npos) << line;
        EXPECT_NE(line.find(" 25%  2.0 MiB of 8.0 MiB  2.0 MiB/s  0:03 left"), std::string::npos) << line;
        EXPECT_EQ(line.find('\n'), std::string::npos);
        EXPECT_LT(line.size(), 80u + 4);
    }
    EXPECT_EQ(shown(), "\r\x1b[K") << "left early, it says nothing";
}

TEST_F(Bar, NothingToDoIsDone) {
    ProgressBar bar(console(false), "checking", 0, clock());
    now += 11;
    bar.advance(5);
    EXPECT_NE(shown().find("100%"), std::string::npos);
    bar.finish();
    EXPECT_EQ(shown(), "checking: 0 bytes in 0:11, 0 bytes/s\n");
}

TEST(TimeText, CountsMinutesAndHours) {
    EXPECT_EQ(time_text(0.2), "0:00");
    EXPECT_EQ(time_text(59.6), "1:00");
    EXPECT_EQ(time_text(754), "12:34");
    EXPECT_EQ(time_text(3723), "1:02:03");
    EXPECT_EQ(time_text(-1), "0:00");
}

}  // namespace
}  // namespace dgemma::cli
