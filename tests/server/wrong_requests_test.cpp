// What is wrong with a request is told with the field that it is about.
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "server/read_request.h"
#include "text/utf8.h"

namespace dgemma::server {
namespace {

// Two calls with these ids, and results for those.
Read chat_results(const std::vector<std::string>& calls, const std::vector<std::string>& results) {
    std::string made, answered;
    for (const std::string& id : calls) {
        made += (made.empty() ? "" : ",") +
                std::string(R"({"type":"function","function":{"name":"f","arguments":"{}"})") +
                (id.empty() ? "" : R"(,"id":")" + id + "\"") + "}";
    }
    for (const std::string& id : results) {
        answered += R"(,{"role":"tool","content":"r")" +
                    (id.empty() ? std::string() : R"(,"tool_call_id":")" + id + "\"") + "}";
    }
    const std::string round = R"({"role":"assistant","tool_calls":[)" + made + "]}" + answered;
    // The same ids once more, as clients have it that count anew in each turn.
    return read(Api::chat, R"({"messages":[{"role":"user","content":"x"},)" + round +
                               R"(,{"role":"assistant","content":"so"},{"role":"user","content":"y"},)" +
                               round + "]}");
}

TEST(ChatRequest, TakesOneResultForEachCall) {
    using Ids = std::vector<std::string>;
    EXPECT_EQ(chat_results({"1", "2"}, {"2", "1"}).field(), "none");
    EXPECT_EQ(chat_results({"1", "2"}, {"1"}).field(), "none");
    EXPECT_EQ(chat_results({"1", "1"}, {"1", "1"}).field(), "none");
    EXPECT_EQ(chat_results({"", ""}, {"", ""}).field(), "none");
    EXPECT_EQ(chat_results({"1", "2"}, {"", ""}).field(), "none");
    for (const Ids& results : {Ids{"1", "1"}, Ids{"1", "2", "1"}, Ids{"2", "2"}}) {
        const Read twice = chat_results({"1", "2"}, results);
        EXPECT_EQ(twice.field(), "messages[" + std::to_string(results.size() + 1) + "].tool_call_id");
        EXPECT_NE(twice.error->message.find('"' + results.back() + '"'), std::string::npos)
            << twice.error->message;
    }
    EXPECT_EQ(chat_results({"", ""}, {"", "", ""}).field(), "messages[4].tool_call_id");
    const std::string calls =
        R"({"type":"tool_use","id":"t1","name":"f","input":{}},{"type":"tool_use","id":"t2","name":"f","input":{}})";
    const auto messages = [&](const std::string& results) {
        return read(Api::messages, R"({"max_tokens":9,"system":"s","messages":[{"role":"user","content":"a"},
            {"role":"assistant","content":[)" +
                                       calls + R"(]},{"role":"user","content":[)" + results + "]}]}");
    };
    const std::string one = R"({"type":"tool_result","tool_use_id":"t1","content":"r"})",
                      two = R"({"type":"tool_result","tool_use_id":"t2","content":"r"})";
    EXPECT_EQ(messages(one + "," + two).field(), "none");
    EXPECT_EQ(messages(one + "," + two + "," + one).field(), "messages[2].content[2].tool_use_id");
    const std::string item = R"({"type":"function_call","call_id":"c1","name":"f","arguments":"{}"})",
                      out = R"({"type":"function_call_output","call_id":"c1","output":"r"})";
    EXPECT_EQ(read(Api::responses, R"({"instructions":"i","input":[)" + item + "," + out + "]}").field(),
              "none");
    EXPECT_EQ(read(Api::responses, R"({"instructions":"i","input":[)" + item + "," + out + "," + out + "]}")
                  .field(),
              "input[2].call_id");
}

TEST(AllRequests, RefuseTwoToolsOfOneName) {
    const auto tools = [](const std::string& form) {
        std::string out;
        for (const std::string name : {"f", "g", "f"}) {
            std::string one = form;
            out += (out.empty() ? "" : ",") + one.replace(one.find('@'), 1, name);
        }
        return "\"tools\":[" + out + "]";
    };
    const Read of_chat = chat(tools(R"({"type":"function","function":{"name":"@"}})"));
    EXPECT_EQ(of_chat.field(), "tools[2].function.name");
    EXPECT_EQ(
        of_chat.error->message,
        "tools[2].function.name is \"f\", and so is the name of tools[0]; give each tool a name of its own.");
    EXPECT_EQ(read(Api::messages, R"({"max_tokens":9,"messages":[{"role":"user","content":"a"}],)" +
                                      tools(R"({"name":"@","input_schema":{"type":"object"}})") + "}")
                  .field(),
              "tools[2].name");
    EXPECT_EQ(
        read(Api::responses, R"({"input":"a",)" + tools(R"({"type":"function","name":"@"})") + "}").field(),
        "tools[2].name");
}

TEST(AllRequests, RefuseToolsThatNoCallCanName) {
    const auto field = [](const std::string& name) {
        return chat(R"("tools":[{"type":"function","function":{"name":")" + name + R"("}}])").field();
    };
    for (const char* name : {"f{", "}f", " f", "f\\n", " "})
        EXPECT_EQ(field(name), "tools[0].function.name") << name;
    for (const char* name : {"get_weather", "a.b/c-d:e", "f g", "é", "<|tool_call>"})
        EXPECT_EQ(field(name), "none") << name;
}

TEST(AllRequests, SayWhatIsEmptyInTheirOwnWords) {
    const Read items = read(Api::responses, R"({"input":[]})");
    EXPECT_EQ(items.field(), "input");
    EXPECT_TRUE(items.error->message.starts_with("input is empty")) << items.error->message;
    // A turn in which nothing is said is a turn, as text or as blocks.
    for (const char* said : {R"("")", "[]"}) {
        const Read last = read(Api::messages, R"({"max_tokens":1,"messages":[{"role":"user","content":"a"},
            {"role":"assistant","content":"b"},{"role":"user","content":)" +
                                                  std::string(said) + "}]}");
        EXPECT_EQ(last.field(), "none");
        EXPECT_EQ(last.request.chat.messages.as_array().size(), 3u) << said;
    }
}

// Every range and type, each with the field it is about.
TEST(AllRequests, NameTheFieldThatIsWrongHoweverDeep) {
    const std::string call = R"({"id":"1","type":"function","function":{"name":"f","arguments":"{}"}})";
    const std::string asked = R"("messages":[{"role":"user","content":"a"}])";
    const std::string blocks = R"("messages":[{"role":"user","content":"b"},{"role":"assistant","content":[)";
    const std::string user = R"("messages":[{"role":"user","content":[)";
    for (
        const auto& [api, body, field] : std::vector<std::tuple<Api, std::string, std::string>>{
            {Api::chat, asked + R"(,"diffusion":{"steps":10001})", "diffusion.steps"},
            {Api::chat, asked + R"(,"diffusion":{"canvas_length":0})", "diffusion.canvas_length"},
            {Api::chat, asked + R"(,"diffusion":{"entropy_bound":0})", "diffusion.entropy_bound"},
            {Api::chat, asked + R"(,"diffusion":{"entropy_bound":1e-99})", "diffusion.entropy_bound"},
            {Api::chat, asked + R"(,"diffusion":{"confidence_threshold":-1})",
             "diffusion.confidence_threshold"},
            {Api::chat, asked + R"(,"diffusion":{"exact":"yes"})", "diffusion.exact"},
            {Api::chat, asked + R"(,"diffusion":{"sampler":1})", "diffusion.sampler"},
            {Api::chat, asked + R"(,"chat_template_kwargs":{"enable_thinking":1})",
             "chat_template_kwargs.enable_thinking"},
            {Api::chat, asked + R"(,"stream_options":{"include_usage":1})", "stream_options.include_usage"},
            {Api::chat, asked + R"(,"stream_options":[])", "stream_options"},
            {Api::chat, asked + R"(,"max_completion_tokens":-1)", "max_completion_tokens"},
            {Api::chat, asked + R"(,"max_tokens":1.5)", "max_tokens"},
            {Api::chat, asked + R"(,"max_tokens":1e300)", "max_tokens"},
            {Api::chat, asked + R"(,"temperature":1e999)", "temperature"},
            {Api::chat, asked + R"(,"top_p":1.1)", "top_p"},
            {Api::chat, asked + R"(,"top_k":-2)", "top_k"},
            {Api::chat, asked + R"(,"parallel_tool_calls":"no")", "parallel_tool_calls"},
            {Api::chat, asked + R"(,"tool_choice":7)", "tool_choice"},
            {Api::chat, asked + R"(,"tool_choice":{"type":"allowed_tools"})", "tool_choice.type"},
            {Api::chat, asked + R"(,"tool_choice":{"type":"function"})", "tool_choice.function"},
            {Api::chat, asked + R"(,"tool_choice":{"type":"function","function":{"name":1}})",
             "tool_choice.function.name"},
            {Api::chat, asked + R"(,"tools":[7])", "tools[0].function"},
            {Api::chat, asked + R"(,"tools":[{"function":{"name":"f","parameters":[]}}])",
             "tools[0].function.parameters"},
            {Api::chat, asked + R"(,"tools":[{"function":{"name":"f","description":1}}])",
             "tools[0].function.description"},
            {Api::chat, asked + R"(,"tools":[{"function":{"description":"d"}}])", "tools[0].function.name"},
            {Api::chat, R"("messages":{})", "messages"},
            {Api::chat, R"("messages":[])", "messages"},
            {Api::chat, R"("messages":[null])", "messages[0]"},
            {Api::chat, R"("messages":[{"content":"a"}])", "messages[0].role"},
            {Api::chat, R"("messages":[{"role":"user"}])", "messages[0].content"},
            {Api::chat, R"("messages":[{"role":"user","content":7}])", "messages[0].content"},
            {Api::chat, R"("messages":[{"role":"user","content":[{"text":"a"}]}])",
             "messages[0].content[0].type"},
            {Api::chat, R"("messages":[{"role":"user","content":[{"type":"text"}]}])",
             "messages[0].content[0].text"},
            {Api::chat, R"("messages":[{"role":"assistant","tool_calls":{}}])", "messages[0].tool_calls"},
            {Api::chat, R"("messages":[{"role":"assistant","tool_calls":[)" + call + R"(,{"id":"2"}]}])",
             "messages[0].tool_calls[1].function"},
            {Api::chat,
             R"("messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{"}}]}])",
             "messages[0].tool_calls[0].function.arguments"},
            {Api::completions, R"("prompt":[1,2.5])", "prompt[1]"},
            {Api::completions, R"("prompt":[1,-2])", "prompt[1]"},
            {Api::completions, R"("prompt":7)", "prompt"},
            {Api::completions, R"("prompt":"a","max_tokens":0)", "max_tokens"},
            {Api::responses, R"("input":[7])", "input[0]"},
            {Api::responses, R"("input":[{"type":7}])", "input[0].type"},
            {Api::responses, R"("input":[{"type":"web_search_call"}])", "input[0].type"},
            {Api::responses,
             R"("instructions":"i","input":[{"role":"user","content":"a"},{"role":"tool","content":"a"}])",
             "input[1].role"},
            {Api::responses, R"("input":[{"role":"user"}])", "input[0].content"},
            {Api::responses, R"("input":[{"role":"user","content":[{"type":"input_file"}]}])",
             "input[0].content[0].type"},
            {Api::responses, R"("input":[{"role":"user","content":[{"type":"input_text","text":1}]}])",
             "input[0].content[0].text"},
            {Api::responses, R"("input":[{"role":"user","content":["a"]}])", "input[0].content[0]"},
            {Api::responses,
             R"("instructions":"i","input":[{"type":"function_call","name":"f","arguments":"{"}])",
             "input[0].arguments"},
            {Api::responses, R"("input":[{"type":"function_call","name":"f","arguments":"[]"}])",
             "input[0].arguments"},
            {Api::responses, R"("input":[{"type":"function_call","name":"f","arguments":{}}])",
             "input[0].arguments"},
            {Api::responses, R"("input":[{"type":"function_call","arguments":"{}"}])", "input[0].name"},
            {Api::responses,
             R"("instructions":"i","input":[{"type":"function_call_output","call_id":"c","output":"r"}])",
             "input[0].call_id"},
            {Api::responses, R"("input":[{"type":"function_call_output","call_id":"c"}])", "input[0].output"},
            {Api::responses, R"("input":[{"type":"reasoning","summary":"s"}])", "input[0].summary"},
            {Api::responses, R"("input":"a","max_output_tokens":0)", "max_output_tokens"},
            {Api::responses, R"("input":"a","include":[5])", "include[0]"},
            {Api::responses, R"("input":"a","reasoning":{"effort":"much"})", "reasoning.effort"},
            {Api::responses, R"("input":"a","reasoning":{"summary":1})", "reasoning.summary"},
            {Api::responses, R"("input":"a","store":"no")", "store"},
            {Api::responses, R"("input":"a","instructions":[])", "instructions"},
            {Api::responses, R"("input":"a","tools":[{"type":"function","name":"f","parameters":7}])",
             "tools[0].parameters"},
            {Api::responses, R"("input":"a","tools":[{"type":"function","name":"f","description":7}])",
             "tools[0].description"},
            {Api::responses, R"("input":"a","tools":[{"type":"function"}])", "tools[0].name"},
            {Api::responses,
             R"("input":"a","tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"function","name":"g"})",
             "tool_choice.name"},
            {Api::messages, "\"max_tokens\":0," + asked, "max_tokens"},
            {Api::messages, R"("max_tokens":1,"system":"s","messages":[])", "messages"},
            {Api::messages, R"("max_tokens":1,"system":[{"type":"image"}],)" + asked, "system[0].type"},
            {Api::messages, R"("max_tokens":1,"system":[{"type":"text"}],)" + asked, "system[0].text"},
            {Api::messages, R"("max_tokens":1,"stop_sequences":[null],)" + asked, "stop_sequences[0]"},
            {Api::messages, R"("max_tokens":1,"thinking":{},)" + asked, "thinking.type"},
            {Api::messages, R"("max_tokens":1,"messages":["a"])", "messages[0]"},
            {Api::messages, R"("max_tokens":1,"messages":[{"role":"user"}])", "messages[0].content"},
            {Api::messages, R"("max_tokens":1,"messages":[{"role":"tool","content":"a"}])",
             "messages[0].role"},
            {Api::messages, R"("max_tokens":1,)" + user + R"("a"]}])", "messages[0].content[0]"},
            {Api::messages, R"("max_tokens":1,)" + user + R"({"type":"document"}]}])",
             "messages[0].content[0].type"},
            {Api::messages, R"("max_tokens":1,)" + user + R"({"type":"text","text":1}]}])",
             "messages[0].content[0].text"},
            {Api::messages,
             R"("max_tokens":1,"system":"s",)" + user + R"({"type":"tool_result","tool_use_id":"t"}]}])",
             "messages[0].content[0].tool_use_id"},
            {Api::messages, R"("max_tokens":1,)" + user + R"({"type":"tool_result","tool_use_id":1}]}])",
             "messages[0].content[0].tool_use_id"},
            {Api::messages, R"("max_tokens":1,)" + user + R"({"type":"tool_result","is_error":"no"}]}])",
             "messages[0].content[0].is_error"},
            {Api::messages,
             R"("max_tokens":1,)" + user + R"({"type":"tool_result","content":[{"type":"image"}]}]}])",
             "messages[0].content[0].content[0].type"},
            {Api::messages,
             R"("max_tokens":1,)" + blocks + R"({"type":"tool_use","name":"f","input":"{}"}]}])",
             "messages[1].content[0].input"},
            {Api::messages, R"("max_tokens":1,)" + blocks + R"({"type":"tool_use","input":{}}]}])",
             "messages[1].content[0].name"},
            {Api::messages, R"("max_tokens":1,)" + blocks + R"({"type":"thinking"}]}])",
             "messages[1].content[0].thinking"},
            {Api::messages, R"("max_tokens":1,"tools":[{"name":"f"}],)" + asked, "tools[0].input_schema"},
            {Api::messages, R"("max_tokens":1,"tools":[{"input_schema":{}}],)" + asked, "tools[0].name"},
            {Api::messages,
             R"("max_tokens":1,"tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"some"},)" +
                 asked,
             "tool_choice.type"},
            {Api::messages,
             R"("max_tokens":1,"tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"tool","name":"g"},)" +
                 asked,
             "tool_choice.name"}}) {
        const Read wrong = read(api, "{" + body + "}");
        EXPECT_EQ(wrong.field(), field) << body;
        EXPECT_NE(wrong.error.value_or(ApiError{}).message.find(field), std::string::npos) << body;
    }
}

// A word of the client's that is cut to be shown is not cut within a character.
TEST(WrongRequests, AreToldInValidText) {
    for (std::size_t before = 0; before < 8; ++before) {
        std::string word(before, 'a');
        for (int i = 0; i < 100; ++i) word += "\u20ac";
        const std::string message = R"({"role":")" + word + R"(","content":"x"})";
        const std::string part = R"({"role":"user","content":[{"type":")" + word + R"("}]})";
        for (
            const Read& wrong :
            {read(Api::responses, R"({"input":[)" + message + "]}"),
             read(Api::responses, R"({"input":[)" + part + "]}"),
             read(Api::responses, R"({"input":[{"type":")" + word + R"("}]})"),
             read(Api::messages, R"({"max_tokens":9,"messages":[)" + message + "]}"),
             read(Api::messages, R"({"max_tokens":9,"messages":[)" + part + "]}"),
             chat(R"("reasoning_effort":")" + word + "\""),
             chat(
                 R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":")" +
                 word + R"("}})")}) {
            ASSERT_TRUE(wrong.error);
            EXPECT_TRUE(text::is_valid_utf8(wrong.error->message)) << wrong.error->message;
            EXPECT_LT(wrong.error->message.size(), 500u);
        }
    }
}

TEST(ResponsesRequest, SaysThatThePreviousOneIsGone) {
    const Read gone = read(Api::responses, R"({"input":"x","previous_response_id":"resp_1"})");
    EXPECT_EQ(gone.field(), "previous_response_id");
    EXPECT_EQ(gone.error->code, "previous_response_not_found");
}

}  // namespace
}  // namespace dgemma::server
