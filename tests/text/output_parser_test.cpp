#include "text/output_parser.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "chat_goldens.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace dgemma::text {
namespace {

using Start = ParserOptions::Start;

struct Golden {
    std::string output;
    ParserOptions options;
    Value expected;
    std::vector<std::int32_t> ids;
};

std::vector<Golden> goldens() {
    std::vector<Golden> out;
    for (const Value& row : chat_goldens("parse_output.jsonl")) {
        Golden golden;
        golden.output = row.find("output")->as_string();
        if (row.find("prompt_state")->as_string() == "reasoning") golden.options.start = Start::thought;
        golden.expected = *row.find("expected");
        for (const Value& id : row.find("output_ids")->as_array())
            golden.ids.push_back(std::stoi(id.as_integer().digits));
        out.push_back(std::move(golden));
    }
    return out;
}

Value value_of(const ParsedReply& reply) {
    const auto text = [](const std::optional<std::string>& part) {
        return part ? Value::string(*part) : Value();
    };
    Value::Array calls;
    for (const ToolCall& call : reply.tool_calls)
        calls.push_back(Value::object({{"name", Value::string(call.name)}, {"arguments", call.arguments}}));
    return Value::object(
        {{"reasoning_content", text(reply.reasoning)},
         {"content", text(reply.content)},
         {"tool_calls", Value::array(std::move(calls))},
         {"stop_token", reply.stop ? Value::string(std::string(text_of(*reply.stop))) : Value()}});
}

ParsedReply put_together(const std::vector<ParserEvent>& events) {
    ParsedReply reply;
    for (const ParserEvent& event : events) {
        EXPECT_FALSE(reply.stop.has_value()) << "an event after the stop";
        reply.add(event);
    }
    return reply;
}

ParsedReply parse_pieces(const std::vector<std::string>& pieces, ParserOptions options) {
    TextOutputParser parser(options);
    std::vector<ParserEvent> events;
    for (const std::string& piece : pieces) parser.push(piece, events);
    parser.finish(events);
    return put_together(events);
}

std::string shown(const ParsedReply& reply) {
    std::string out = to_json(value_of(reply));
    for (const std::string& reason : reply.broken_calls) out += " broken: " + reason;
    return out;
}

constexpr std::int32_t first_marker = 1000;

MarkerIds made_up_ids() {
    return MarkerIds::from([](std::string_view token) {
        for (std::size_t i = 0; i < control_texts.size(); ++i)
            if (control_texts[i] == token) return first_marker + static_cast<std::int32_t>(i);
        return -1;
    });
}

// A text as ids: those of control tokens, and one per byte for the rest.
std::vector<std::int32_t> ids_of(std::string_view text) {
    std::vector<std::int32_t> ids;
    for (std::size_t pos = 0; pos < text.size();) {
        const auto rest = text.substr(pos);
        const auto found = std::find_if(control_texts.begin(), control_texts.end(),
                                        [&](std::string_view control) { return rest.starts_with(control); });
        if (found == control_texts.end()) {
            ids.push_back(static_cast<unsigned char>(text[pos++]));
        } else {
            ids.push_back(first_marker + static_cast<std::int32_t>(found - control_texts.begin()));
            pos += found->size();
        }
    }
    return ids;
}

ParsedReply parse_ids(const std::vector<std::int32_t>& ids, ParserOptions options) {
    IdOutputParser parser(made_up_ids(), options);
    std::vector<ParserEvent> events;
    for (const std::int32_t id : ids)
        parser.push(id, id < first_marker ? std::string(1, static_cast<char>(id)) : std::string(), events);
    parser.finish("", events);
    return put_together(events);
}

ParsedReply parse(std::string_view output, Start start = Start::content) {
    ParserOptions options;
    options.start = start;
    const ParsedReply reply = parse_output(output, options);
    EXPECT_EQ(shown(parse_ids(ids_of(output), options)), shown(reply)) << output;
    return reply;
}

TEST(OutputParser, ReadsTheGoldens) {
    const std::vector<Golden> rows = goldens();
    ASSERT_EQ(rows.size(), 135U);
    for (const Golden& row : rows) {
        const ParsedReply reply = parse_output(row.output, row.options);
        EXPECT_TRUE(same_json(value_of(reply), row.expected)) << row.output << "\n" << shown(reply);
        EXPECT_TRUE(reply.broken_calls.empty()) << row.output;
        EXPECT_EQ(shown(parse_ids(ids_of(row.output), row.options)), shown(reply));
    }
}

TEST(OutputParser, ReadsTheGoldensByIds) {
    const auto shared = testing::shared_dir();
    DGEMMA_SKIP_WITHOUT(shared, "the real tokenizer");
    const auto tokenizer = Tokenizer::load(*shared / "tokenizer" / "tokenizer.json.gz");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    const MarkerIds markers =
        MarkerIds::from([&](std::string_view token) { return tokenizer->id_of(token); });
    for (const Golden& row : goldens()) {
        IdOutputParser parser(markers, row.options);
        Detokenizer detokenizer(*tokenizer, /*skip_special=*/true);
        std::vector<ParserEvent> events;
        for (const std::int32_t id : row.ids) {
            if (parser.stopped()) break;
            parser.push(id, parser.is_control(id) ? detokenizer.flush() : detokenizer.push(id), events);
        }
        parser.finish(detokenizer.flush(), events);
        const ParsedReply reply = put_together(events);
        EXPECT_TRUE(same_json(value_of(reply), row.expected)) << row.output << "\n" << shown(reply);
    }
}

TEST(OutputParser, GivesTheSameForEveryCut) {
    for (const Golden& row : goldens()) {
        const std::string whole = shown(parse_output(row.output, row.options));
        for (std::size_t cut = 0; cut <= row.output.size(); ++cut) {
            ASSERT_EQ(shown(parse_pieces({row.output.substr(0, cut), row.output.substr(cut)}, row.options)),
                      whole)
                << row.output << " cut at " << cut;
        }
        std::vector<std::string> bytes;
        for (const char c : row.output) bytes.emplace_back(1, c);
        ASSERT_EQ(shown(parse_pieces(bytes, row.options)), whole) << row.output;
    }
}

// Pieces that make odd outputs, many of them broken.
std::string random_output(std::mt19937& random) {
    static const std::vector<std::string> extra = {"thought\n", "thought",  "\n",
                                                   "\n\n",      "call:f{",  "}",
                                                   "a:1",       "x",        ",",
                                                   "<",         "<|",       "<|turn",
                                                   "|>",        "\xE6\x97", "\xA5",
                                                   "\xFF",      "é",        "日",
                                                   "call:",     "{",        "[",
                                                   "]",         "key:",     " ",
                                                   "model\n",   "<|\"",     "call:g{a:<|\"|>b<|\"|>}",
                                                   "null"};
    std::string out;
    const std::size_t pieces = random() % 14;
    for (std::size_t i = 0; i < pieces; ++i) {
        const std::size_t pick = random() % (control_texts.size() + 2 * extra.size());
        // Calls and channels matter most.
        static const std::vector<Control> often = {Control::call_open, Control::call_close, Control::quote,
                                                   Control::channel_open, Control::channel_close};
        if (random() % 3 == 0)
            out += text_of(often[random() % often.size()]);
        else if (pick < control_texts.size())
            out += control_texts[pick];
        else
            out += extra[(pick - control_texts.size()) / 2];
    }
    return out;
}

TEST(OutputParser, GivesTheSameForRandomSegmentationsAndByIds) {
    std::mt19937 random(1);
    for (int round = 0; round < 20000; ++round) {
        const std::string output = random_output(random);
        ParserOptions options;
        options.start = random() % 2 ? Start::thought : Start::content;
        options.tool_aware_stop = random() % 4 != 0;
        const std::string whole = shown(parse_output(output, options));
        std::vector<std::string> pieces;
        for (std::size_t pos = 0; pos < output.size();) {
            const std::size_t length = 1 + random() % (round % 2 ? 3 : 20);
            pieces.push_back(output.substr(pos, length));
            pos += length;
        }
        ASSERT_EQ(shown(parse_pieces(pieces, options)), whole) << output;
        ASSERT_EQ(shown(parse_ids(ids_of(output), options)), whole) << output;
    }
}

TEST(OutputParser, EmitsWholeCharactersAndNothingEmpty) {
    for (const Golden& row : goldens()) {
        TextOutputParser parser(row.options);
        std::vector<ParserEvent> events;
        for (const char c : row.output) parser.push(std::string_view(&c, 1), events);
        parser.finish(events);
        for (const ParserEvent& event : events) {
            if (event.kind != ParserEvent::Kind::content && event.kind != ParserEvent::Kind::reasoning)
                continue;
            EXPECT_FALSE(event.text.empty());
            EXPECT_EQ(event.text, sanitize_utf8(event.text));
            EXPECT_TRUE(row.output.find("\xEF\xBF\xBD") != std::string::npos ||
                        event.text.find("\xEF\xBF\xBD") == std::string::npos);
        }
    }
}

TEST(OutputParser, ShowsTextAsSoonAsItIsCertain) {
    TextOutputParser parser({});
    const auto next = [&](std::string_view piece) {
        std::vector<ParserEvent> events;
        parser.push(piece, events);
        std::string out;
        for (const ParserEvent& event : events)
            out += (event.kind == ParserEvent::Kind::reasoning ? "r:" : "c:") + event.text + ";";
        return out;
    };
    EXPECT_EQ(next("<|channel>thou"), "");
    EXPECT_EQ(next("ght\n"), "");
    EXPECT_EQ(next("one\n"), "r:one;");
    EXPECT_EQ(next("two"), "r:\ntwo;");
    EXPECT_EQ(next("\n<cha"), "");
    EXPECT_EQ(next("nnel|>answer <"), "c:answer ;");
    EXPECT_EQ(next("x"), "c:<x;");
}

std::string reply(std::string_view reasoning, std::string_view content, std::string_view calls,
                  std::string_view stop, std::string_view broken = "") {
    const auto quoted = [](std::string_view text) {
        return text.empty() ? std::string("null") : json_quoted(text);
    };
    return "{\"reasoning_content\":" + quoted(reasoning) + ",\"content\":" + quoted(content) +
           ",\"tool_calls\":[" + std::string(calls) + "],\"stop_token\":" + quoted(stop) + "}" +
           (broken.empty() ? "" : " broken: " + std::string(broken));
}

TEST(OutputParser, FollowsTheTableOfTokens) {
    EXPECT_EQ(shown(parse("a<eos>b<turn|>")), reply("", "a", "", "<eos>"));
    EXPECT_EQ(shown(parse("a<|tool_response>b")), reply("", "a", "", "<|tool_response>"));
    EXPECT_EQ(shown(parse("a<|turn>user\nb")), reply("", "a", "", "<|turn>"));
    EXPECT_EQ(shown(parse("<pad><|turn>model\na<pad>b<turn|>")), reply("", "ab", "", "<turn|>"));
    EXPECT_EQ(shown(parse("<|turn>model<|channel>thought\nx\n<channel|>a")), reply("x", "a", "", ""));
    EXPECT_EQ(shown(parse("<|turn>model")), reply("", "", "", ""));
    EXPECT_EQ(shown(parse("a<|\"|>b<bos><mask><|image|><tool_call|><tool_response|>c")),
              reply("", "abc", "", ""));
    EXPECT_EQ(shown(parse("<channel|><channel|>a<channel|>b")), reply("", "ab", "", ""));
    EXPECT_EQ(shown(parse("")), reply("", "", "", ""));
}

TEST(OutputParser, ReadsChannels) {
    EXPECT_EQ(shown(parse("<|channel>thought\nx\n\n<channel|>a")), reply("x\n", "a", "", ""));
    EXPECT_EQ(shown(parse("<|channel>final\nx<channel|>a")), reply("final\nx", "a", "", ""));
    EXPECT_EQ(shown(parse("<|channel>thoughtful<channel|>a")), reply("thoughtful", "a", "", ""));
    // An empty thought is none, however it is written.
    for (const std::string_view empty : {"<|channel>thought\n<channel|>a", "<|channel>thought<channel|>a",
                                         "<|channel><channel|>a", "<|channel>thought\n\n<channel|>a"})
        EXPECT_EQ(shown(parse(empty)), reply("", "a", "", "")) << empty;
    EXPECT_EQ(shown(parse("<|channel>thought\n<channel|><|channel>thought\nx\n<channel|>a")),
              reply("x", "a", "", ""));
    // A reply that begins in a thought and opens it once more.
    EXPECT_EQ(shown(parse("<|channel>thought\nx\n<channel|>a<turn|>", Start::thought)),
              reply("x", "a", "", "<turn|>"));
    EXPECT_EQ(shown(parse("x<|channel>thought\ny<channel|>a", Start::thought)), reply("x\ny", "a", "", ""));
    EXPECT_EQ(shown(parse("thought\nx\n", Start::thought)), reply("thought\nx", "", "", ""));
    // A thought that is not closed ends with the call or the reply.
    EXPECT_EQ(shown(parse("<|channel>thought\nx\n<|tool_call>call:f{}<tool_call|><|tool_response>")),
              reply("x", "", R"({"name":"f","arguments":{}})", "<|tool_response>"));
    EXPECT_EQ(shown(parse("<|channel>thought\nx\n<turn|>")), reply("x", "", "", "<turn|>"));
}

std::string arguments_of(std::string_view arguments) {
    const ParsedReply reply = parse("<|tool_call>call:f{" + std::string(arguments) + "}<tool_call|>");
    if (reply.tool_calls.size() != 1) return shown(reply);
    EXPECT_EQ(reply.tool_calls[0].name, "f");
    return to_json(reply.tool_calls[0].arguments);
}

TEST(OutputParser, ReadsArguments) {
    EXPECT_EQ(arguments_of(""), "{}");
    EXPECT_EQ(arguments_of(" a : 1 ,\n\tb:<|\"|>x, y}<|\"|> , "), R"({"a":1,"b":"x, y}"})");
    EXPECT_EQ(arguments_of("<|\"|>a:b<|\"|> : true,c:None,d:false,e:null"),
              R"({"a:b":true,"c":null,"d":false,"e":null})");
    EXPECT_EQ(
        arguments_of("a:12345678901234567890123,b:-0.0,c:1e+16,d:007,e:+1,f:1.,g:two words,h:\"q\""),
        R"({"a":12345678901234567890123,"b":-0.0,"c":1e+16,"d":"007","e":"+1","f":"1.","g":"two words","h":"\"q\""})");
    EXPECT_EQ(arguments_of("a:[],b:{},c:[[1,[<|\"|>]<|\"|>]],{d:{}}],e:"),
              R"({"a":[],"b":{},"c":[[1,["]"]],{"d":{}}],"e":""})");
    EXPECT_EQ(arguments_of("a:1,b:2,a:3"), R"({"a":3,"b":2})");
    EXPECT_EQ(arguments_of(":1"), R"({"":1})");
    EXPECT_EQ(shown(parse("<|tool_call>\n call: my.tool-1 {}\n<tool_call|>")),
              reply("", "", R"({"name":"my.tool-1","arguments":{}})", ""));
    // Only the marker is a quote; text that is spelled like one cannot come from a tokenizer, but ids tell
    // them apart.
    IdOutputParser parser(made_up_ids(), {});
    std::vector<ParserEvent> events;
    for (const std::int32_t id : ids_of("<|tool_call>call:f{a:<|\"|>")) {
        parser.push(id, id < first_marker ? std::string(1, static_cast<char>(id)) : "", events);
    }
    parser.push(1, "<|\"|>}<tool_call|>", events);
    for (const std::int32_t id : ids_of("<|\"|>}<tool_call|>"))
        parser.push(id, id < first_marker ? std::string(1, static_cast<char>(id)) : "", events);
    ASSERT_EQ(events.size(), 1U);
    EXPECT_EQ(to_json(events[0].call.arguments), "{\"a\":\"<|\\\"|>}<tool_call|>\"}");
}

TEST(OutputParser, TakesALongFileAsAnArgument) {
    std::string file;
    for (int i = 0; i < 200; ++i)
        file += "    if (a[" + std::to_string(i) + "] != '\"') { return \"x:\\\"\"; }\n";
    const ParsedReply reply =
        parse("<|tool_call>call:write{text:<|\"|>" + file + "<|\"|>}<tool_call|><|tool_response>");
    ASSERT_EQ(reply.tool_calls.size(), 1U);
    EXPECT_EQ(reply.tool_calls[0].arguments.find("text")->as_string(), file);
}

TEST(OutputParser, GivesBrokenCallsAsContent) {
    const auto content_of = [](std::string_view output) {
        const ParsedReply reply = parse(output);
        EXPECT_TRUE(reply.tool_calls.empty()) << output;
        EXPECT_EQ(reply.broken_calls.size(), 1U) << output;
        return reply.content.value_or("");
    };
    for (const std::string_view body :
         {"call:{}", "call:f", "f{}", "call:f(a:1)", "call:f{a:1", "call:f{a}", "call:f{a:[1}",
          "call:f{a:1}}", "call:f{a:1} x", "call:f{a:b<|\"|>c<|\"|>}", "call:f{a,b:1}", "call:f{a:{b:1}",
          "call:f{a:1]}", "", "call:f}{"}) {
        const std::string whole = "<|tool_call>" + std::string(body) + "<tool_call|>";
        EXPECT_EQ(content_of(whole + "<turn|>"), whole);
    }
    const std::string open = "<|tool_call>call:f{a:1}";
    EXPECT_EQ(content_of(open), open);
    EXPECT_EQ(content_of(open + "<turn|>"), open);
    EXPECT_EQ(content_of(open + "<eos>more"), open);
    EXPECT_EQ(content_of(open + "<|channel>thought\nx"), open);
    EXPECT_EQ(content_of("a" + open), "a" + open);
    EXPECT_EQ(content_of("<|tool_call>call:f{a:<|\"|>x"), "<|tool_call>call:f{a:<|\"|>x");
    EXPECT_EQ(shown(parse("<|tool_call>call:f{<|tool_call>call:g{}<tool_call|>")),
              reply("", "<|tool_call>call:f{", R"({"name":"g","arguments":{}})", "",
                    "the call has no closing marker"));
    // The model goes straight to the response: the call is whole but for its closing marker.
    EXPECT_EQ(shown(parse(open + "<|tool_response>")),
              reply("", "", R"({"name":"f","arguments":{"a":1}})", "<|tool_response>"));
    EXPECT_EQ(content_of("<|tool_call>call:f{a:<|tool_response>"), "<|tool_call>call:f{a:");
    // A call that is only talked about stays text.
    EXPECT_EQ(shown(parse("Write `call:f{x:1}` to call.")),
              reply("", "Write `call:f{x:1}` to call.", "", ""));
}

TEST(OutputParser, RefusesCallsThatNestTooDeep) {
    const std::string open(100000, '[');
    EXPECT_EQ(parse_output("<|tool_call>call:f{a:" + open + "<tool_call|>", {}).broken_calls.size(), 1U);
}

TEST(OutputParser, KeepsControlTokensWithinQuotes) {
    const std::string_view output =
        "<|tool_call>call:f{a:<|\"|>x<turn|><tool_call|><|image|>y<|\"|>}<tool_call|><turn|>";
    EXPECT_EQ(shown(parse(output)),
              reply("", "", R"({"name":"f","arguments":{"a":"x<turn|><tool_call|><|image|>y"}})", "<turn|>"));
    ParserOptions strict;
    strict.tool_aware_stop = false;
    EXPECT_EQ(shown(parse_output(output, strict)),
              reply("", "<|tool_call>call:f{a:<|\"|>x", "", "<turn|>", "the call has no closing marker"));
    // A forgotten closing quote does not keep the reply from ending.
    EXPECT_EQ(shown(parse("<|tool_call>call:f{a:<|\"|>x}<tool_call|><|tool_response>")),
              reply("", "<|tool_call>call:f{a:<|\"|>x}<tool_call|>", "", "<|tool_response>",
                    "a string has no closing quote marker"));
}

TEST(ToolQuoteTracker, AgreesWithTheParser) {
    std::mt19937 random(2);
    for (int round = 0; round < 5000; ++round) {
        IdOutputParser parser(made_up_ids(), {});
        ToolQuoteTracker tracker(made_up_ids());
        std::vector<ParserEvent> events;
        for (const std::int32_t id : ids_of(random_output(random))) {
            parser.push(id, id < first_marker ? std::string(1, static_cast<char>(id)) : "", events);
            if (parser.stopped()) break;
            tracker.feed(id);
            ASSERT_EQ(tracker.inside_open_quote(), parser.inside_open_quote());
        }
    }
}

TEST(OutputParser, TellsWhetherAReplyShowsAnything) {
    for (const std::string_view output :
         {"", "<eos>", " \n\u3000<turn|>", "<|channel>thought\nlong thought\n<channel|>\n<turn|>",
          "<|channel>thought\n<channel|><turn|>", "<|channel>thought<turn|>"})
        EXPECT_TRUE(shows_nothing(parse(output))) << output;
    for (const std::string_view output :
         {"a", "<|tool_call>call:f{}<tool_call|>", "<|tool_call>broken", "<|channel>x<channel|>."})
        EXPECT_FALSE(shows_nothing(parse(output))) << output;
}

TEST(OutputParser, NamesTheFinishReason) {
    EXPECT_EQ(finish_reason(parse("a<turn|>"), false), "stop");
    EXPECT_EQ(finish_reason(parse("a"), true), "length");
    EXPECT_EQ(finish_reason(parse("<|tool_call>call:f{}<tool_call|>"), true), "tool_calls");
    EXPECT_EQ(finish_reason(parse("<|tool_call>call:f{<|tool_response>"), false), "stop");
}

}  // namespace
}  // namespace dgemma::text
