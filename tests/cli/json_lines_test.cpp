#include "cli/json_lines.h"

#include <cerrno>
#include <sstream>
#include <streambuf>

#include <gtest/gtest.h>

#include "cli/parse.h"
#include "cli/template.h"

namespace dgemma::cli {
namespace {

std::string templated(const std::string& lines) {
    std::istringstream in(lines);
    std::ostringstream out;
    const Status status = template_lines(text::TemplateRevision::canonical, in, out);
    return out.str() + (status.ok() ? "" : "stopped: " + status.error().message);
}

std::string parsed(const std::string& lines) {
    std::istringstream in(lines);
    std::ostringstream out;
    const Status status = parse_lines(in, out);
    return out.str() + (status.ok() ? "" : "stopped: " + status.error().message);
}

TEST(TemplateLines, GivesALineForALine) {
    EXPECT_EQ(templated(R"({"messages":[{"role":"user","content":"a\u2028b"}],"tools":null,"id":"x"}

{"messages":[{"role":"user","content":"a"}],"add_generation_prompt":true,"enable_thinking":true}
{"messages":["a"]})"),
              R"({"rendered":"<bos><|turn>user\na\u2028b<turn|>\n"}
{"rendered":"<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\na<turn|>\n<|turn>model\n"}
{"error":"messages[0] has no role: give it a string `role`"}
)");
}

TEST(TemplateLines, StopsAtABrokenLineAndNamesIt) {
    EXPECT_EQ(templated("{\"messages\":[]}\n\n{\"messages\""),
              "{\"rendered\":\"<bos>\"}\nstopped: line 3 is not valid JSON at column 12: "
              "a value, comma, colon or bracket is missing or out of place");
    EXPECT_EQ(templated("[1]"), "stopped: line 1 is a list: each line must be a JSON object");
    EXPECT_EQ(templated("{}"),
              "stopped: line 1 has no `messages`: write {\"messages\": [{\"role\": \"user\", \"content\": "
              "\"...\"}]}");
}

// A source that gives one line and then fails, as a directory or a vanished disk does.
class FailingSource : public std::streambuf {
  public:
    explicit FailingSource(std::string text) : text_(std::move(text)) {
        setg(text_.data(), text_.data(), text_.data() + text_.size());
    }

  protected:
    int_type underflow() override {
        errno = EISDIR;
        throw std::ios_base::failure("no more");
    }

  private:
    std::string text_;
};

TEST(JsonLines, WhatCannotBeReadIsNoEndOfInput) {
    FailingSource source("{\"output\":\"\"}\n");
    std::istream in(&source);
    std::ostringstream out;
    const Status status = parse_lines(in, out);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().kind, ErrorKind::io);
    EXPECT_EQ(status.error().message, "stdin cannot be read: Is a directory.");
    EXPECT_NE(out.str(), "") << "what was read before is answered";
}

TEST(ParseLines, GivesALineForALine) {
    EXPECT_EQ(
        parsed(
            R"({"output":"x\n<channel|>a<|tool_call>call:f{n:1e+16}<tool_call|><|tool_response>","prompt_state":"reasoning"}
{"output":""})"),
        R"({"reasoning_content":"x","content":"a","tool_calls":[{"name":"f","arguments":{"n":1e+16}}],"stop_token":"<|tool_response>"}
{"reasoning_content":null,"content":null,"tool_calls":[],"stop_token":null}
)");
}

TEST(ParseLines, StopsAtABrokenLineAndNamesIt) {
    EXPECT_EQ(parsed("{\"output\":1}"), "stopped: line 1 has no `output`: give it the text of a reply");
    EXPECT_EQ(parsed("{\"output\":\"\",\"prompt_state\":\"x\"}"),
              "stopped: line 1 has an unknown `prompt_state`: write \"content\" or \"reasoning\"");
}

}  // namespace
}  // namespace dgemma::cli
