#include "cli/live_canvas.h"

#include <algorithm>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cli/screen.h"

namespace dgemma::cli {
namespace {

// A canvas on a screen that has `above` lines on it already.
class LiveCanvasTest : public ::testing::Test {
  protected:
    void start(int columns, int rows, int above) {
        canvas_.reset();
        out_.str("");
        size_ = {columns, rows};
        screen_ = std::make_unique<Screen>(columns, rows);
        for (int i = 0; i < above; ++i) screen_->write("above " + std::to_string(i) + "\r\n");
        canvas_ = std::make_unique<LiveCanvas>(
            out_, [this] { return size_; }, true);
    }
    void draw(const std::vector<Span>& text, const std::string& status = "status") {
        canvas_->draw(text, status);
        flush();
    }
    void flush() {
        screen_->write(out_.str());
        out_.str("");
        EXPECT_TRUE(screen_->wraps()) << "the terminal must wrap lines again after every write";
        EXPECT_EQ(screen_->clipped(), 0);
    }

    TerminalSize size_;
    std::ostringstream out_;
    std::unique_ptr<Screen> screen_;
    std::unique_ptr<LiveCanvas> canvas_;
};

TEST_F(LiveCanvasTest, ReplacesItsFrameAndLeavesTheScreenAsItWas) {
    start(20, 10, 2);
    draw({{Tone::plain, "first draft"}, {Tone::dim, " of something long"}});
    EXPECT_EQ(screen_->lines(),
              (std::vector<std::string>{"above 0", "above 1", "first draft of", "something long", "status"}));
    draw({{Tone::dim, "short"}});
    EXPECT_EQ(screen_->lines(), (std::vector<std::string>{"above 0", "above 1", "short", "status"}));
    canvas_->clear();
    flush();
    EXPECT_EQ(screen_->lines(), (std::vector<std::string>{"above 0", "above 1"}));
    EXPECT_EQ(screen_->row(), 2u);
    EXPECT_EQ(screen_->column(), 0);
}

TEST_F(LiveCanvasTest, ScrollsAtTheBottomWithoutLosingItsPlace) {
    start(20, 5, 5);  // the cursor stands on the last row
    draw({{Tone::dim, "a\nb\nc"}});
    EXPECT_EQ(screen_->lines(), (std::vector<std::string>{"above 4", "a", "b", "c", "status"}));
    draw({{Tone::dim, "d"}});
    EXPECT_EQ(screen_->lines(), (std::vector<std::string>{"above 4", "d", "status"}));
    canvas_->clear();
    flush();
    EXPECT_EQ(screen_->lines(), (std::vector<std::string>{"above 4"}));
}

TEST_F(LiveCanvasTest, ShowsTheEndOfWhatIsTallerThanTheScreen) {
    start(20, 5, 1);
    draw({{Tone::dim, "1\n2\n3\n4\n5\n6"}});
    EXPECT_EQ(screen_->lines(), (std::vector<std::string>{"above 0", "4", "5", "6", "status"}));
    draw({{Tone::dim, "1\n2\n3\n4\n5\n6\n7"}});
    EXPECT_EQ(screen_->lines(), (std::vector<std::string>{"above 0", "5", "6", "7", "status"}));
}

TEST_F(LiveCanvasTest, NeverPassesControlCharactersOn) {
    start(40, 8, 0);
    draw({{Tone::dim, std::string("a\x1b[2Jb\x07\rc\x7f\xc2\x9b") + "d\xff\te\xe2\x80\xae"}});
    EXPECT_EQ(screen_->lines()[0],
              "a\xEF\xBF\xBD[2Jb\xEF\xBF\xBD\xEF\xBF\xBD"
              "c\xEF\xBF\xBD\xEF\xBF\xBD"
              "d\xEF\xBF\xBD   e\xEF\xBF\xBD");
}

TEST_F(LiveCanvasTest, BreaksWideCharactersBeforeTheEdge) {
    start(6, 8, 0);
    draw({{Tone::plain, "日本語です"}});  // two columns each, five of six columns in use
    EXPECT_EQ(screen_->lines(), (std::vector<std::string>{"日本", "語で", "す", "statu"}));
}

TEST_F(LiveCanvasTest, FollowsAResize) {
    start(20, 10, 0);
    draw({{Tone::plain, "0123456789"}});
    size_ = {20, 4};
    draw({{Tone::plain, "a\nb\nc\nd"}});
    EXPECT_EQ(screen_->lines(), (std::vector<std::string>{"c", "d", "status"}));
}

// A window made narrower: the terminal breaks the frame's lines anew, and the cursor is further down.
TEST_F(LiveCanvasTest, LeavesNothingBehindWhenTheTerminalGetsNarrower) {
    for (const bool reflows : {true, false}) {
        for (const bool by_clearing : {true, false}) {
            start(30, 12, 2);
            draw({{Tone::plain, "a line of more than ten\nb\nanother line of more than"}},
                 "some status line");
            size_ = {10, 12, reflows};
            screen_->resize(10, reflows);
            if (by_clearing) {
                canvas_->clear();
                flush();
                EXPECT_EQ(screen_->lines(), (std::vector<std::string>{"above 0", "above 1"})) << reflows;
            }
            draw({{Tone::plain, "after"}});
            EXPECT_EQ(screen_->lines(), (std::vector<std::string>{"above 0", "above 1", "after", "status"}))
                << reflows << by_clearing;
        }
    }
}

TEST_F(LiveCanvasTest, LeavesNothingBehindWhenTheTerminalGetsWider) {
    start(10, 12, 1);
    draw({{Tone::plain, "some words that take lines"}});
    size_ = {40, 12};
    screen_->resize(40, true);
    draw({{Tone::plain, "some words that take lines"}});
    EXPECT_EQ(screen_->lines(),
              (std::vector<std::string>{"above 0", "some words that take lines", "status"}));
}

std::vector<std::string> texts(const std::vector<Span>& spans, int columns, bool colour) {
    std::vector<std::string> out;
    for (const LaidOutLine& line : lay_out(spans, columns, colour)) out.push_back(line.text);
    return out;
}

TEST(LayOut, BreaksBetweenWords) {
    using Lines = std::vector<std::string>;
    const auto broken = [](const char* text, int columns) {
        return texts({{Tone::plain, text}}, columns, false);
    };
    EXPECT_EQ(broken("one two three", 8), (Lines{"one two", "three"}));
    EXPECT_EQ(broken("one two three", 7), (Lines{"one two", "three"}));
    EXPECT_EQ(broken("one two three", 6), (Lines{"one", "two", "three"}));
    EXPECT_EQ(broken("a  longword", 6), (Lines{"a", "longwo", "rd"})) << "a word too long for any line";
    EXPECT_EQ(broken("ab      cd", 4), (Lines{"ab", "cd"})) << "spaces hang over the edge";
    EXPECT_EQ(broken("ab      \ncd", 4), (Lines{"ab  ", "cd"}));
    EXPECT_EQ(broken("ab 日本語", 6), (Lines{"ab 日", "本語"})) << "wide characters need no space";
    EXPECT_EQ(broken("日本", 1), (Lines{"日", "本"})) << "too narrow for anything";
    const auto coloured = texts({{Tone::plain, "on"}, {Tone::dim, "e two"}}, 5, true);
    EXPECT_EQ(coloured, (Lines{"on\x1b[2me\x1b[0m", "\x1b[2mtwo\x1b[0m"}));
    EXPECT_EQ(lay_out({{Tone::plain, "日a"}}, 10, true).front().columns, 3);
}

TEST(LayOut, ColoursEachLineOnItsOwn) {
    const auto lines = texts({{Tone::plain, "ab"}, {Tone::dim, "cd\nef"}}, 3, true);
    EXPECT_EQ(lines, (std::vector<std::string>{"ab\x1b[2mc\x1b[0m", "\x1b[2md\x1b[0m", "\x1b[2mef\x1b[0m"}));
    EXPECT_EQ(texts({{Tone::dim, "ab\tc"}}, 20, false), (std::vector<std::string>{"ab      c"}));
    EXPECT_EQ(lay_out({}, 20, true).size(), 1u);
}

TEST(WithoutControls, KeepsLinesAndTabs) {
    EXPECT_EQ(without_controls("a\tb\nc"), "a\tb\nc");
    EXPECT_EQ(without_controls("\x1b]0;title\x07"), "\xEF\xBF\xBD]0;title\xEF\xBF\xBD");
}

}  // namespace
}  // namespace dgemma::cli
