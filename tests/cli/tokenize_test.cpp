#include "cli/tokenize.h"

#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "support/shared.h"

namespace dgemma::cli {
namespace {

using nlohmann::json;

const text::Tokenizer& demo_tokenizer() {
    static const text::Tokenizer tokenizer = text::load_tokenizer_for(testing::demo_dir()).value();
    return tokenizer;
}

struct Outcome {
    Status status;
    std::vector<json> lines;
};

Outcome run(const text::Tokenizer& tokenizer, const std::string& in, TokenizeOptions options = {}) {
    std::istringstream input(in);
    std::ostringstream output;
    Outcome outcome{tokenize_lines(tokenizer, options, input, output), {}};
    std::istringstream written(output.str());
    for (std::string line; std::getline(written, line);) outcome.lines.push_back(json::parse(line));
    return outcome;
}

TEST(TokenizeLines, GoThereAndBack) {
    const auto& tokenizer = demo_tokenizer();
    const std::string text = "The capital\n of \"France\" \U0001F600\x01<turn|>";
    // Further keys and blank lines do not matter.
    const Outcome there = run(tokenizer, json{{"text", text}, {"cat", 1}}.dump() + "\n\n{\"text\":\"\"}\n");
    ASSERT_TRUE(there.status.ok()) << there.status.error().message;
    ASSERT_EQ(there.lines.size(), 2u);
    EXPECT_EQ(there.lines[0], (json{{"ids", tokenizer.encode(text, text::Specials::parse)}}));
    EXPECT_EQ(there.lines[1], (json{{"ids", json::array()}}));
    const Outcome back = run(tokenizer, there.lines[0].dump(), {.decode = true});
    ASSERT_TRUE(back.status.ok()) << back.status.error().message;
    EXPECT_EQ(back.lines.at(0), (json{{"text", text}}));
    const Outcome bare = run(tokenizer, there.lines[0].dump(), {.decode = true, .skip_special = true});
    EXPECT_EQ(bare.lines.at(0), (json{{"text", text.substr(0, text.size() - 7)}}));
}

TEST(TokenizeLines, TakeControlTokensAsTextOnRequest) {
    const auto& tokenizer = demo_tokenizer();
    const Outcome parsed = run(tokenizer, R"({"text": "<turn|>"})");
    EXPECT_EQ(parsed.lines.at(0), (json{{"ids", {tokenizer.id_of("<turn|>")}}}));
    const Outcome as_text = run(tokenizer, R"({"text": "<turn|>"})", {.no_special = true});
    EXPECT_EQ(as_text.lines.at(0), (json{{"ids", tokenizer.encode("<turn|>", text::Specials::as_text)}}));
    EXPECT_GT(as_text.lines.at(0)["ids"].size(), 1u);
}

TEST(TokenizeLines, ReplaceWhatIsNotUnicode) {
    const auto& tokenizer = demo_tokenizer();
    const auto expected = tokenizer.encode("a\uFFFDb", text::Specials::parse);
    EXPECT_EQ(run(tokenizer, "{\"text\": \"a\\ud800b\"}").lines.at(0)["ids"], json(expected));
    EXPECT_EQ(run(tokenizer,
                  "{\"text\": \"a\xFF"
                  "b\"}")
                  .lines.at(0)["ids"],
              json(expected));
}

TEST(TokenizeLines, DropIdsThatNoTokenHas) {
    const auto& tokenizer = demo_tokenizer();
    const auto a = std::to_string(tokenizer.id_of("a"));
    const Outcome outcome =
        run(tokenizer,
            R"({"ids": [-1, )" + a + ", 2048, 4294967296, 99999999999999999999999, -9223372036854775809]}",
            {.decode = true});
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.error().message;
    EXPECT_EQ(outcome.lines.at(0), (json{{"text", "a"}}));
}

TEST(TokenizeLines, NameTheBrokenLine) {
    const auto& tokenizer = demo_tokenizer();
    const auto expect = [&](const std::string& line, bool decode, const std::string& part) {
        const std::string good = decode ? R"({"ids": []})" : R"({"text": "a"})";
        const Outcome outcome = run(tokenizer, good + "\n" + line + "\n" + good, {.decode = decode});
        ASSERT_FALSE(outcome.status.ok()) << line;
        EXPECT_EQ(outcome.lines.size(), 1u);
        const std::string& message = outcome.status.error().message;
        EXPECT_NE(message.find("line 2"), std::string::npos) << message;
        EXPECT_NE(message.find(part), std::string::npos) << message;
        EXPECT_EQ(outcome.status.error().kind, ErrorKind::invalid);
    };
    for (const bool decode : {false, true}) {
        expect("{", decode, "");
        expect("[1]", decode, "object");
        expect("{}", decode, decode ? "`ids`" : "`text`");
        expect("{\"text\": 1, \"ids\": 1}", decode, decode ? "`ids`" : "`text`");
    }
    expect(R"({"ids": [1, "2"]})", true, "a string among");
    expect(R"({"ids": [1.0]})", true, "integers");
    expect(R"({"ids": [null]})", true, "integers");
}

TEST(TokenizeLines, GiveTheGoldens) {
    const auto shared = testing::shared_dir();
    const auto file = shared ? *shared / "tokenizer/tokenizer.json.gz" : std::filesystem::path();
    DGEMMA_SKIP_WITHOUT(shared && std::filesystem::exists(file), "the real tokenizer.json.gz");
    const auto tokenizer = text::Tokenizer::load(file);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
    const auto compare = [&](const char* name, const TokenizeOptions& options, const char* key,
                             const char* wanted) {
        std::ifstream in(testing::data_dir() / "goldens/tokenizer" / name);
        std::ostringstream out;
        ASSERT_TRUE(tokenize_lines(*tokenizer, options, in, out).ok());
        in.clear();
        in.seekg(0);
        std::istringstream written(out.str());
        std::string golden, line;
        int lines = 0;
        for (; std::getline(in, golden) && std::getline(written, line); ++lines) {
            ASSERT_EQ(json::parse(line)[key], json::parse(golden)[wanted]) << golden;
        }
        EXPECT_GT(lines, 200);
    };
    compare("encode.jsonl", {}, "ids", "ids");
    compare("decode.jsonl", {.decode = true}, "text", "text");
    compare("decode.jsonl", {.decode = true, .skip_special = true}, "text", "text_skip_special");
}

}  // namespace
}  // namespace dgemma::cli
