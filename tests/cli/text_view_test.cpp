#include "cli/text_view.h"

#include <sstream>

#include <gtest/gtest.h>

#include "cli/screen.h"
#include "cli/scripted_reply.h"

namespace dgemma::cli {
namespace {

using Block = ScriptedReply::Block;

// stdout and stderr of a process, piped or on one terminal.
class TextViewTest : public ::testing::Test {
  protected:
    // Calls itself after every event, to look at the screen in between.
    class Watcher : public reply::ReplyView {
      public:
        Watcher(TextView& view, std::function<void()> look) : view_(view), look_(std::move(look)) {}
        void on_prefill(const engine::PrefillEvent& e) override { view_.on_prefill(e), look_(); }
        void on_step(const engine::StepEvent& e, const reply::ReplyText& r) override {
            view_.on_step(e, r), look_();
        }
        void on_block(const engine::BlockEvent& e) override { view_.on_block(e), look_(); }
        void on_text(const text::ParserEvent& e) override { view_.on_text(e), look_(); }
        void on_end(const engine::EndEvent& e, const text::ParsedReply& r) override {
            view_.on_end(e, r), look_();
        }

      private:
        TextView& view_;
        std::function<void()> look_;
    };

    void tell(
        Console console, const std::vector<Block>& blocks, const std::function<void()>& look = [] {}) {
        TextView view(
            console,
            [] {
                return TerminalSize{40, 8};
            },
            std::chrono::milliseconds(0));
        Watcher watcher(view, look);
        reply::ReplyText reply(demo_tokenizer(), {}, {});
        reply::ReplySink sink(reply, watcher);
        ScriptedReply::tell(sink, blocks);
    }
    void tell_piped(const std::vector<Block>& blocks) { tell({.in = in_, .out = out_, .err = err_}, blocks); }
    // Both streams are the same terminal, as in a shell. Returns the screens that were seen, without repeats.
    std::vector<std::vector<std::string>> tell_terminal(const std::vector<Block>& blocks) {
        std::vector<std::vector<std::string>> seen;
        const auto look = [&] {
            screen_.write(out_.str());
            out_.str("");
            if (seen.empty() || seen.back() != screen_.lines()) seen.push_back(screen_.lines());
        };
        tell({.in = in_,
              .out = out_,
              .err = out_,
              .out_is_terminal = true,
              .err_is_terminal = true,
              .colour = true},
             blocks, look);
        look();
        return seen;
    }

    std::istringstream in_;
    std::ostringstream out_, err_;
    Screen screen_{40, 8};
};

TEST_F(TextViewTest, PipedItWritesTheAnswerAndNothingElse) {
    tell_piped({{{"draft"}, "Paris is"}, {{"draft"}, " big.<turn|>"}});
    EXPECT_EQ(out_.str(), "Paris is big.\n");
    EXPECT_EQ(err_.str(), "");
}

TEST_F(TextViewTest, AFinalLineFeedIsNotDoubled) {
    tell_piped({{{}, "one\ntwo\n<turn|>"}});
    EXPECT_EQ(out_.str(), "one\ntwo\n");
}

TEST_F(TextViewTest, AnEmptyReplyWritesNothing) {
    tell_piped({{{}, "<turn|>"}});
    EXPECT_EQ(out_.str(), "");
}

TEST_F(TextViewTest, ThoughtsGoToStderr) {
    tell_piped({{{}, "<|channel>thought\nfirst\nsec"}, {{}, "ond<channel|>Yes.<turn|>"}});
    EXPECT_EQ(out_.str(), "Yes.\n");
    EXPECT_EQ(err_.str(), "first\nsecond\n");
}

TEST_F(TextViewTest, ToolCallsAreLinesOfTheAnswer) {
    tell_piped({{{}, "So:<|tool_call>call:add{a:1}<tool_call|><|tool_call>call:f{}<tool_call|><turn|>"}});
    EXPECT_EQ(out_.str(),
              "So:\n{\"name\":\"add\",\"arguments\":{\"a\":1}}\n{\"name\":\"f\",\"arguments\":{}}\n");
}

TEST_F(TextViewTest, APipeGetsControlCharactersAndATerminalDoesNot) {
    // The demo's vocabulary spells them as byte tokens.
    tell_piped({{{}, "a\x1b[31mb<turn|>"}});
    EXPECT_EQ(out_.str(), "a\x1b[31mb\n");
    out_.str("");
    tell_terminal({{{}, "a\x1b[31mb<turn|>"}});
    EXPECT_EQ(screen_.lines(), std::vector<std::string>{"a\xEF\xBF\xBD[31mb"});
}

TEST_F(TextViewTest, OnATerminalTheCanvasIsReplacedByTheAnswer) {
    screen_.write("$ dgemma ask\r\n");
    const auto seen =
        tell_terminal({{{"Paris of", "Paris is"}, "Paris is\na"}, {{" bog."}, " big town.<turn|>"}});
    const std::string status = "block 1  step 1 of 48  entropy 1.250  t";
    EXPECT_EQ(seen[1], (std::vector<std::string>{"$ dgemma ask", "reading the prompt, 5 of 5 tokens"}));
    EXPECT_EQ(seen[2], (std::vector<std::string>{"$ dgemma ask", "Paris of", status}));
    // The complete line is printed; the open one stays with the canvas.
    EXPECT_EQ(seen[4], (std::vector<std::string>{"$ dgemma ask", "Paris is"}));
    EXPECT_EQ(seen[5][2], "a bog.");
    EXPECT_EQ(screen_.lines(), (std::vector<std::string>{"$ dgemma ask", "Paris is", "a big town."}));
    EXPECT_TRUE(screen_.wraps());
}

TEST_F(TextViewTest, OnATerminalThoughtsStandAboveTheAnswer) {
    tell_terminal({{{"x"}, "<|channel>thought\nlet me\nsee"}, {{"y"}, " now\n<channel|>It is 4.<turn|>"}});
    EXPECT_EQ(screen_.lines(), (std::vector<std::string>{"let me", "see now", "It is 4."}));
}

TEST_F(TextViewTest, WithStdoutPipedTheCanvasLeavesNothingBehind) {
    tell({.in = in_, .out = out_, .err = err_, .err_is_terminal = true},
         {{{"draft"}, "one"}, {{"x"}, " two<turn|>"}});
    EXPECT_EQ(out_.str(), "one two\n");
    screen_.write(err_.str());
    EXPECT_TRUE(screen_.lines().empty());
}

}  // namespace
}  // namespace dgemma::cli
