#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "server/read_request.h"
#include "server/sealed_thought.h"

namespace dgemma::server {
namespace {

const std::string weather =
    R"("tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object"}}}])";

TEST(ChatRequest, HasTheDefaults) {
    const Read plain = chat("");
    ASSERT_FALSE(plain.error);
    EXPECT_EQ(plain.request.model, "m");
    EXPECT_FALSE(plain.request.stream);
    EXPECT_EQ(plain.request.temperature, 0);
    EXPECT_EQ(plain.request.max_tokens, 0);
    EXPECT_FALSE(plain.request.seed);
    EXPECT_TRUE(plain.request.parallel_tool_calls);
    EXPECT_FALSE(plain.request.chat.enable_thinking);
    EXPECT_EQ(plain.request.tool_choice.kind, ToolChoice::Kind::automatic);
}

TEST(ChatRequest, ReadsItsFields) {
    const Read full =
        chat(weather + R"(,"stream":true,"stream_options":{"include_usage":true},"temperature":0.5,
        "seed":18446744073709551615,"stop":["a","b"],"max_tokens":5,"max_completion_tokens":7,
        "tool_choice":{"type":"function","function":{"name":"get_weather"}},"parallel_tool_calls":false,
        "reasoning_effort":"high",
        "diffusion":{"steps":9,"entropy_bound":0.2,"confidence_threshold":0.01,"sampler":"confidence-threshold",
                     "canvas_length":64,"drafts":true,"exact":true})");
    ASSERT_FALSE(full.error) << full.error->message;
    const GenerationRequest& request = full.request;
    EXPECT_TRUE(request.stream && request.include_usage && request.diffusion.drafts);
    EXPECT_FLOAT_EQ(request.temperature, 0.5f);
    EXPECT_EQ(request.seed, UINT64_MAX);
    EXPECT_EQ(request.stops, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(request.max_tokens, 7);
    EXPECT_EQ(request.tool_choice.kind, ToolChoice::Kind::named);
    EXPECT_EQ(request.tool_choice.name, "get_weather");
    EXPECT_FALSE(request.parallel_tool_calls);
    EXPECT_TRUE(request.chat.enable_thinking.value_or(false));
    EXPECT_EQ(request.diffusion.steps, 9);
    EXPECT_EQ(request.diffusion.canvas_length, 64);
    EXPECT_EQ(request.diffusion.sampler, diffusion::Sampler::confidence_threshold);
    EXPECT_EQ(request.diffusion.exact, true);
}

TEST(ChatRequest, AcceptsWhatChangesNothing) {
    EXPECT_EQ(
        chat(R"("n":1,"presence_penalty":0,"frequency_penalty":0.0,"top_p":1.0,"logit_bias":{},"user":"u",
        "metadata":{"a":"b"},"store":false,"logprobs":false,"top_logprobs":null,"response_format":{"type":"text"},
        "service_tier":"auto","top_k":-1,"min_p":0,"repetition_penalty":1,"stop":null,"tools":null,
        "unheard_of":null)")
            .field(),
        "none");
    // The most probable token is the most probable token, whatever else is filtered.
    EXPECT_EQ(chat(R"("top_p":0.9,"top_k":40)").field(), "none");
    EXPECT_EQ(chat(R"("temperature":0.7,"top_k":1)").request.temperature, 0);
    EXPECT_FALSE(std::signbit(chat(R"("temperature":-0.0)").request.temperature));
}

TEST(ChatRequest, NamesWhatItCannotHonour) {
    for (const auto& [fields, field] : std::vector<std::pair<std::string, std::string>>{
             {R"("n":2)", "n"},
             {R"("logprobs":true)", "logprobs"},
             {R"("web_search_options":{})", "web_search_options"},  // which asks for it
             {R"("top_logprobs":3)", "top_logprobs"},
             {R"("presence_penalty":0.5)", "presence_penalty"},
             {R"("logit_bias":{"5":1})", "logit_bias"},
             {R"("store":true)", "store"},
             {R"("response_format":{"type":"json_object"})", "response_format"},
             {R"("temperature":0.5,"top_p":0.9)", "top_p"},
             {R"("temperature":0.5,"top_k":40)", "top_k"},
             {R"("functions":[{"name":"f"}])", "functions"},
             {R"("unheard_of":1)", "unheard_of"},
             {R"("diffusion":{"stepz":1})", "diffusion.stepz"},
             {R"("stream_options":{"x":1})", "stream_options.x"}}) {
        EXPECT_EQ(chat(fields).field(), field);
        EXPECT_EQ(chat(fields, true).field(), "none") << "lenient: " << fields;
    }
}

TEST(ChatRequest, NamesWhatIsWrongEvenWhenLenient) {
    for (const auto& [fields, field] : std::vector<std::pair<std::string, std::string>>{
             {R"("temperature":3)", "temperature"},
             {R"("temperature":"hot")", "temperature"},
             {R"("stream":1)", "stream"},
             {R"("seed":-1)", "seed"},
             {R"("seed":18446744073709551616)", "seed"},
             {R"("seed":1.5)", "seed"},
             {R"("max_tokens":0)", "max_tokens"},
             {R"("stop":[1])", "stop[0]"},
             {R"("stop":["a",""])", "stop[1]"},
             {R"("tools":{})", "tools"},
             {R"("tools":[{"name":"flat"}])", "tools[0]"},
             {R"("tool_choice":"required")", "tool_choice"},
             {weather + R"(,"tool_choice":"perhaps")", "tool_choice"},
             {weather + R"(,"tool_choice":{"type":"function","function":{"name":"other"}})",
              "tool_choice.function.name"},
             {R"("reasoning_effort":"much")", "reasoning_effort"},
             {R"("diffusion":7)", "diffusion"},
             {R"("diffusion":{"steps":0})", "diffusion.steps"},
             {R"("diffusion":{"sampler":"x"})", "diffusion.sampler"}}) {
        EXPECT_EQ(chat(fields).field(), field);
        EXPECT_EQ(chat(fields, true).field(), field) << "lenient: " << fields;
    }
    EXPECT_EQ(read(Api::chat, R"({"model":"m"})").field(), "messages");
    EXPECT_EQ(read(Api::chat, R"({"messages":[]})").field(), "messages");
    EXPECT_EQ(read(Api::chat, R"({"messages":[{"role":"robot","content":"x"}]})").field(),
              "messages[0].role");
    for (const char* body : {"[]", "7", "null", "\"text\""}) {
        for (const Api api : {Api::chat, Api::completions, Api::responses, Api::messages})
            EXPECT_TRUE(read(api, body).error) << body;
    }
}

TEST(ChatRequest, ChecksThatResultsFollowTheirCalls) {
    const auto with = [](const std::string& id) {
        return read(Api::chat,
                    R"({"messages":[{"role":"user","content":"x"},{"role":"assistant","content":null,
            "tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},
            {"role":"tool","tool_call_id":")" +
                        id + R"(","content":"r"}]})");
    };
    EXPECT_EQ(with("1").field(), "none");
    EXPECT_EQ(with("2").field(), "messages[2].tool_call_id");
    EXPECT_EQ(read(Api::chat, R"({"messages":[{"role":"tool","tool_call_id":"1","content":"r"}]})").field(),
              "messages[0].tool_call_id");
    EXPECT_EQ(read(Api::chat, R"({"messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[
        {"id":"1","type":"function","function":{"name":"f","arguments":"[1]"}}]}]})")
                  .field(),
              "messages[1].tool_calls[0].function.arguments");
}

TEST(ChatRequest, NoToolIsShownWhereNoneMayBeCalled) {
    const Read none = chat(weather + R"(,"tool_choice":"none")");
    EXPECT_TRUE(none.request.chat.tools.is(Value::Type::null));
    EXPECT_FALSE(chat(weather).request.chat.tools.is(Value::Type::null));
}

TEST(CompletionRequest, TakesOnePrompt) {
    EXPECT_EQ(read(Api::completions, R"({"prompt":"Once"})").request.text, "Once");
    EXPECT_EQ(read(Api::completions, R"({"prompt":["Once"]})").request.text, "Once");
    EXPECT_EQ(read(Api::completions, R"({"prompt":[5,6]})").request.ids, (std::vector<std::int32_t>{5, 6}));
    EXPECT_EQ(read(Api::completions, R"({"prompt":[5.0]})").request.ids, (std::vector<std::int32_t>{5}));
    for (const auto& [prompt, field] :
         std::vector<std::pair<std::string, std::string>>{{R"(["a","b"])", "prompt[0]"},
                                                          {"[]", "prompt"},
                                                          {"null", "prompt"},
                                                          {"[5,\"a\"]", "prompt[1]"},
                                                          {"[-1]", "prompt[0]"},
                                                          {"[99999999999]", "prompt[0]"},
                                                          {"[[1],[2]]", "prompt[0]"},
                                                          {"{}", "prompt"}})
        EXPECT_EQ(read(Api::completions, R"({"prompt":)" + prompt + "}").field(), field) << prompt;
    EXPECT_EQ(read(Api::completions, R"({"prompt":"a","echo":true})").field(), "echo");
    EXPECT_EQ(read(Api::completions, R"({"prompt":"a","suffix":"b"})").field(), "suffix");
}

TEST(MessagesRequest, BringsBlocksIntoMessages) {
    const Read full =
        read(Api::messages, R"({"model":"m","max_tokens":9,"system":[{"type":"text","text":"Be kind."}],
        "stop_sequences":["x"],"thinking":{"type":"enabled","budget_tokens":1024},
        "tools":[{"name":"f","input_schema":{"type":"object"}}],
        "tool_choice":{"type":"any","disable_parallel_tool_use":true},
        "messages":[{"role":"user","content":"a"},
          {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},
             {"type":"tool_use","id":"t1","name":"f","input":{"a":1}}]},
          {"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"r"}],
             "is_error":true},{"type":"text","text":"and?","cache_control":{"type":"ephemeral"}}]}]})");
    ASSERT_FALSE(full.error) << full.error->message;
    EXPECT_EQ(
        text::to_json(full.request.chat.messages),
        R"([{"role":"system","content":"Be kind."},{"role":"user","content":"a"},)"
        R"({"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[{"id":"t1","type":"function",)"
        R"("function":{"name":"f","arguments":{"a":1}}}]},)"
        R"({"role":"tool","content":"Error: r","tool_call_id":"t1"},)"
        R"({"role":"user","content":[{"type":"text","text":"and?"}]}])");
    EXPECT_EQ(full.request.tool_choice.kind, ToolChoice::Kind::required);
    EXPECT_FALSE(full.request.parallel_tool_calls);
    EXPECT_EQ(full.request.chat.enable_thinking, true);
    EXPECT_EQ(full.request.max_tokens, 9);
}

TEST(MessagesRequest, NamesWhatIsWrong) {
    const auto field = [](const std::string& fields) {
        return read(Api::messages,
                    R"({"max_tokens":9,"messages":[{"role":"user","content":"a"}],)" + fields + "}")
            .field();
    };
    EXPECT_EQ(field(R"("service_tier":"auto","metadata":{"user_id":"u"},"top_p":1)"), "none");
    EXPECT_EQ(field(R"("thinking":{"type":"maybe"})"), "thinking.type");
    EXPECT_EQ(field(R"("tools":[{"type":"web_search_20250305","name":"web_search"}])"), "tools[0].type");
    EXPECT_EQ(field(R"("tool_choice":{"type":"any"})"), "tool_choice");
    EXPECT_EQ(field(R"("mcp_servers":[{"url":"x"}])"), "mcp_servers");
    EXPECT_EQ(field(R"("n":1)"), "n");
    EXPECT_EQ(read(Api::messages, R"({"messages":[{"role":"user","content":"a"}]})").field(), "max_tokens");
    EXPECT_EQ(read(Api::messages, R"({"max_tokens":1,"messages":[{"role":"assistant","content":"I say"}]})")
                  .field(),
              "messages");
    EXPECT_EQ(read(Api::messages,
                   R"({"max_tokens":1,"messages":[{"role":"user","content":[{"type":"document"}]}]})")
                  .field(),
              "messages[0].content[0].type");
    GenerationRequest request;
    const Result<Value> body = text::parse_json(R"({"messages":[{"role":"user","content":"a"}]})", "");
    EXPECT_FALSE(read_messages(body.value(), false, true, request));
}

TEST(ResponsesRequest, BringsItemsIntoMessages) {
    const Read full = read(Api::responses, R"({"model":"m","instructions":"Be kind.","max_output_tokens":9,
        "reasoning":{"effort":"low","summary":"auto"},"include":["reasoning.encrypted_content"],
        "tools":[{"type":"function","name":"f","parameters":{"type":"object"},"strict":true}],
        "tool_choice":{"type":"function","name":"f"},"text":{"format":{"type":"text"}},
        "input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},
          {"type":"reasoning","id":"r","summary":[{"type":"summary_text","text":"hm"}]},
          {"type":"message","role":"assistant","content":[{"type":"output_text","text":"let me see"}]},
          {"type":"function_call","call_id":"c1","name":"f","arguments":"{\"a\":1}"},
          {"type":"function_call_output","call_id":"c1","output":"r"}]})");
    ASSERT_FALSE(full.error) << full.error->message;
    // The content of the last assistant message would close the turn behind the results.
    EXPECT_EQ(
        text::to_json(full.request.chat.messages),
        R"([{"role":"system","content":"Be kind."},{"role":"user","content":[{"type":"text","text":"a"}]},)"
        R"({"role":"assistant","reasoning_content":"hm","tool_calls":[{"id":"c1","type":"function",)"
        R"("function":{"name":"f","arguments":{"a":1}}}]},{"role":"tool","content":"r","tool_call_id":"c1"}])");
    EXPECT_TRUE(full.request.reasoning_summary && full.request.reasoning_to_send_back);
    EXPECT_EQ(full.request.tool_choice.kind, ToolChoice::Kind::named);
    EXPECT_EQ(text::to_json(*full.request.echo.find("instructions")), R"("Be kind.")");
    EXPECT_EQ(read(Api::responses, R"({"input":"a"})").field(), "none");
}

TEST(ResponsesRequest, NamesWhatIsWrong) {
    for (const auto& [fields, field] : std::vector<std::pair<std::string, std::string>>{
             {R"("input":"a","previous_response_id":"r")", "previous_response_id"},
             {R"("input":"a","conversation":"c")", "conversation"},
             {R"("input":"a","background":true)", "background"},
             {R"("input":"a","text":{"format":{"type":"json_schema"}})", "text.format"},
             {R"("input":"a","tools":[{"type":"web_search"}])", "tools[0].type"},
             {R"("input":"a","include":["file_search_call.results"])", "include[0]"},
             {R"("input":[{"type":"item_reference","id":"x"}])", "input[0].id"},
             {R"("input":[{"role":"user","content":[{"type":"input_file"}]}])", "input[0].content[0].type"},
             {R"("input":5)", "input"},
             {R"("inputs":"a")", "inputs"}}) {
        EXPECT_EQ(read(Api::responses, "{" + fields + "}").field(), field);
    }
}

TEST(ResponsesRequest, GoesOnFromWhatIsKept) {
    ResponseStore store(4000);
    store.put("resp_1", {object({{"role", string("user")}, {"content", string("a")}})},
              {object({{"type", string("function_call")},
                       {"id", string("fc_1")},
                       {"call_id", string("c")},
                       {"name", string("f")},
                       {"arguments", string("{}")}})},
              "{}");
    const auto messages = [&](const std::string& json) {
        const Result<Value> body = text::parse_json(json, "the body");
        GenerationRequest request;
        EXPECT_FALSE(read_responses(body.value(), false, &store, request));
        return text::to_json(request.chat.messages);
    };
    const std::string by_response = messages(
        R"({"previous_response_id":"resp_1","input":[{"type":"function_call_output","call_id":"c","output":"r"}]})");
    EXPECT_EQ(by_response,
              messages(R"({"input":[{"role":"user","content":"a"},{"type":"item_reference","id":"fc_1"},
        {"type":"function_call_output","call_id":"c","output":"r"}]})"));
    EXPECT_NE(by_response.find(R"("name":"f")"), std::string::npos);
    // What no longer fits pushes out what was used longest ago.
    for (int i = 2; i < 20; ++i)
        store.put("resp_" + std::to_string(i), {object({{"content", string(std::string(100, 'x'))}})}, {},
                  "{}");
    EXPECT_FALSE(store.conversation("resp_1"));
    EXPECT_FALSE(store.item("fc_1"));
    EXPECT_TRUE(store.conversation("resp_19"));
    EXPECT_LE(store.bytes(), 4000u);
    // What is kept says what was put, to the digit.
    const auto exact = text::parse_json(
        R"([{"a":1.0,"b":1,"c":123456789012345678901234567890,"d":"\u00e9\n\"","e":[null,true]}])", "");
    store.put("resp_exact", exact.value().as_array(), exact.value().as_array(), "{}");
    ASSERT_TRUE(store.conversation("resp_exact"));
    EXPECT_EQ(store.conversation("resp_exact")->at(1), exact.value().as_array().at(0));
}

TEST(SealedThought, ComesBackAsItWas) {
    for (const char* thought : {"", "a", "ab", "abc", "ones 3+4=7\nüñ 日本"})
        EXPECT_EQ(thought_of(sealed_thought(thought)), thought);
    EXPECT_EQ(thought_of("gAAAA"), "");
    EXPECT_EQ(thought_of("dgemma1:%%"), "");
}

}  // namespace
}  // namespace dgemma::server
