#include "text/tokenizer.h"

#include <random>

#include <gtest/gtest.h>

#include "golden_lines.h"
#include "naive_tokenizer.h"
#include "text/tokenizer_file.h"

namespace dgemma::text {
namespace {

using testing::demo_dir;
using testing::demo_tokenizer;
using testing::golden_lines;
using testing::json;
using testing::NaiveTokenizer;
using testing::real_tokenizer;
using testing::real_tokenizer_file;
using testing::tokenizer_json;
using Ids = std::vector<std::int32_t>;

constexpr const char* kRealTokenizer = "the real tokenizer.json.gz";

Tokenizer tokenizer_of(const json& file) {
    auto loaded = Tokenizer::from_json(file.dump());
    EXPECT_TRUE(loaded.ok()) << loaded.error().message;
    return std::move(loaded).value();
}

// "t" for each token's string, joined with "|": what an encoding looks like to a reader.
std::string shown(const Tokenizer& tokenizer, const Ids& ids) {
    std::string out;
    for (const std::int32_t id : ids) out += (out.empty() ? "" : "|") + std::string(tokenizer.token(id));
    return out;
}

std::string encoded(const Tokenizer& tokenizer, std::string_view text, Specials specials = Specials::parse) {
    return shown(tokenizer, tokenizer.encode(text, specials));
}

std::string without_space_marks(std::string text) {
    for (std::size_t at = 0; (at = text.find("▁", at)) != std::string::npos; ++at) text.replace(at, 3, " ");
    return text;
}

TEST(Tokenizer, EncodesTheGoldens) {
    const Tokenizer* tokenizer = real_tokenizer();
    DGEMMA_SKIP_WITHOUT(tokenizer, kRealTokenizer);
    const auto lines = golden_lines("encode.jsonl");
    ASSERT_EQ(lines.size(), 769u);
    for (const json& line : lines) {
        const auto text = line["text"].get<std::string>();
        const Ids ids = line["ids"];
        EXPECT_EQ(tokenizer->encode(text, Specials::parse), ids) << line["cat"];
        const auto decoded = line.value("decoded", text);
        EXPECT_EQ(tokenizer->decode(ids, false), decoded) << line["cat"];
        EXPECT_EQ(tokenizer->decode(ids, true), line.value("decoded_skip_special", decoded)) << line["cat"];
    }
}

TEST(Tokenizer, DecodesTheGoldens) {
    const Tokenizer* tokenizer = real_tokenizer();
    DGEMMA_SKIP_WITHOUT(tokenizer, kRealTokenizer);
    const auto lines = golden_lines("decode.jsonl");
    ASSERT_EQ(lines.size(), 238u);
    for (const json& line : lines) {
        const Ids ids = line["ids"];
        EXPECT_EQ(tokenizer->decode(ids, false), line["text"]) << line["cat"] << line["ids"];
        EXPECT_EQ(tokenizer->decode(ids, true), line["text_skip_special"]) << line["cat"] << line["ids"];
    }
}

TEST(Tokenizer, KnowsTheTokensOfTheContract) {
    const Tokenizer* tokenizer = real_tokenizer();
    DGEMMA_SKIP_WITHOUT(tokenizer, kRealTokenizer);
    EXPECT_EQ(tokenizer->vocab_size(), 262144);
    EXPECT_EQ(tokenizer->id_of("<|turn>"), 105);
    EXPECT_EQ(tokenizer->id_of("<|\"|>"), 52);
    EXPECT_EQ(tokenizer->id_of("thought"), 45518);
    EXPECT_EQ(tokenizer->token(258884), "<|video|>");
    EXPECT_EQ(tokenizer->encode("<|channel>thought\n<channel|>", Specials::parse),
              (Ids{100, 45518, 107, 101}));
    EXPECT_EQ(tokenizer->encode("<table>", Specials::parse), (Ids{236820, 5127, 236813}));
    int special = 0;
    for (std::int32_t id = -5; id < 262200; ++id) special += tokenizer->is_special(id) ? 1 : 0;
    EXPECT_EQ(special, 24);
    EXPECT_FALSE(tokenizer->is_special(168));  // <table> is an ordinary token
}

// Words, letters, spaces, line feeds and odd characters, so that merges of all kinds meet.
std::string random_text(std::mt19937& random, std::size_t pieces) {
    static const std::vector<std::string> kPieces = {"the",        "ing",
                                                     " ",          " ",
                                                     " ",          "\n",
                                                     "\n\n",       "a",
                                                     "e",          "s",
                                                     "th",         "0",
                                                     "17",         ">",
                                                     "▁",          "x>",
                                                     "  ",         "\t",
                                                     "é",          "ß",
                                                     "你好",       "的",
                                                     "\U0001F600", "<|turn>",
                                                     "<",          "|",
                                                     "turn",       "user\n",
                                                     "Paris",      "def f(x):",
                                                     "=",          "==",
                                                     ".",          "...",
                                                     "Ω",          "אב",
                                                     "\x01",       "\U0001F468\u200D\U0001F469"};
    std::string text;
    for (std::size_t i = 0; i < pieces; ++i) {
        const auto& piece = kPieces[random() % kPieces.size()];
        for (unsigned times = random() % 8 == 0 ? random() % 40 : 1; times > 0; --times) text += piece;
    }
    return text;
}

void expect_as_naive(const Tokenizer& tokenizer, const json& file, int texts, std::size_t pieces) {
    const NaiveTokenizer naive(file);
    std::mt19937 random(7);
    for (int i = 0; i < texts; ++i) {
        const std::string text = random_text(random, 1 + random() % pieces);
        const Ids ids = tokenizer.encode(text, Specials::parse);
        ASSERT_EQ(ids, naive.encode(text, true)) << text;
        ASSERT_EQ(tokenizer.encode(text, Specials::as_text), naive.encode(text, false)) << text;
        ASSERT_EQ(tokenizer.decode(ids, false), without_space_marks(text));
    }
}

TEST(Tokenizer, EncodesAsTheNaiveOneDoesDemo) {
    std::ifstream in(demo_dir() / "tokenizer.json");
    expect_as_naive(demo_tokenizer(), json::parse(in), 300, 120);
}

TEST(Tokenizer, EncodesAsTheNaiveOneDoesReal) {
    const Tokenizer* tokenizer = real_tokenizer();
    DGEMMA_SKIP_WITHOUT(tokenizer, kRealTokenizer);
    const auto text = read_tokenizer_file(*real_tokenizer_file());
    ASSERT_TRUE(text.ok()) << text.error().message;
    expect_as_naive(*tokenizer, json::parse(*text), 100, 60);
}

TEST(Tokenizer, EncodesALongTextAsItsLines) {
    const Tokenizer* tokenizer = real_tokenizer();
    DGEMMA_SKIP_WITHOUT(tokenizer, kRealTokenizer);
    // No token joins a line feed with anything else.
    const auto lines = golden_lines("encode.jsonl");
    std::string all;
    for (const json& line : lines) all += line["text"].get<std::string>();
    const Ids whole = tokenizer->encode(all, Specials::parse);
    Ids joined;
    for (std::size_t begin = 0; begin < all.size();) {
        std::size_t end = all.find('\n', begin);
        end = std::min(all.size(), end == begin ? all.find_first_not_of('\n', begin) : end);
        const Ids line = tokenizer->encode(std::string_view(all).substr(begin, end - begin), Specials::parse);
        joined.insert(joined.end(), line.begin(), line.end());
        begin = end;
    }
    EXPECT_EQ(whole, joined);
    EXPECT_EQ(tokenizer->decode(whole, false), without_space_marks(all));
}

TEST(Tokenizer, FallsBackToBytes) {
    const Tokenizer tokenizer = tokenizer_of(tokenizer_json({"a", "é", "▁"}, {}));
    EXPECT_EQ(encoded(tokenizer, "aéb\n€"), "a|é|<0x62>|<0x0A>|<0xE2>|<0x82>|<0xAC>");
    EXPECT_EQ(encoded(tokenizer, " ▁"), "▁|▁");
    EXPECT_EQ(tokenizer.decode(tokenizer.encode("aéb\n€ x", Specials::parse), false), "aéb\n€ x");
    EXPECT_EQ(encoded(tokenizer, ""), "");
}

TEST(Tokenizer, SpellsTheSpaceMarkInBytesWhereItIsNoToken) {
    const Tokenizer tokenizer = tokenizer_of(tokenizer_json({"a"}, {}));
    EXPECT_EQ(encoded(tokenizer, "a a"), "a|<0xE2>|<0x96>|<0x81>|a");
}

TEST(Tokenizer, MergesTheLowestRankFirstAndTheLeftmostOfEquals) {
    const Tokenizer tokenizer =
        tokenizer_of(tokenizer_json({"a", "b", "c", "bc", "ab", "aa"}, {{"b", "c"}, {"a", "b"}, {"a", "a"}}));
    EXPECT_EQ(encoded(tokenizer, "abc"), "a|bc");
    EXPECT_EQ(encoded(tokenizer, "aab"), "a|ab");
    EXPECT_EQ(encoded(tokenizer, "aaa"), "aa|a");
    EXPECT_EQ(encoded(tokenizer, std::string(1001, 'a')).substr(0, 5), "aa|aa");
    EXPECT_EQ(encoded(tokenizer, std::string(1001, 'a')).substr(1499), "|a");
}

TEST(Tokenizer, TakesALowerRankThatAMergeUncovers) {
    // "ab"+"c" has a lower rank than the merge that makes "ab": it follows at once, before the second "ab".
    const Tokenizer tokenizer = tokenizer_of(
        tokenizer_json({"a", "b", "c", "ab", "abc", "ca"}, {{"ab", "c"}, {"a", "b"}, {"c", "a"}}));
    EXPECT_EQ(encoded(tokenizer, "abcab"), "abc|ab");
}

TEST(Tokenizer, FindsTheLongestAddedTokenLeftmost) {
    json file = tokenizer_json({"<", "x", "b", "<x>", "<x>y", "x>y"}, {});
    const auto id = [&](const char* token) { return file["model"]["vocab"][token]; };
    file["added_tokens"].push_back({{"id", id("<x>")}, {"content", "<x>"}, {"special", true}});
    file["added_tokens"].push_back({{"id", id("<x>y")}, {"content", "<x>y"}, {"special", false}});
    file["added_tokens"].push_back({{"id", id("x>y")}, {"content", "x>y"}, {"special", true}});
    file["added_tokens"].push_back(
        {{"id", file["model"]["vocab"].size()}, {"content", "§"}, {"special", true}});
    const Tokenizer tokenizer = tokenizer_of(file);
    EXPECT_EQ(encoded(tokenizer, "b<x>b"), "b|<x>|b");
    EXPECT_EQ(encoded(tokenizer, "<x>y"), "<x>y");
    EXPECT_EQ(encoded(tokenizer, "<<x>"), "<|<x>");
    EXPECT_EQ(encoded(tokenizer, "bx>y"), "b|x>y");
    EXPECT_EQ(encoded(tokenizer, "<x"), "<|x");
    // An added token that "vocab" does not have is no character of ordinary text.
    EXPECT_EQ(encoded(tokenizer, "§"), "§");
    EXPECT_EQ(encoded(tokenizer, "§", Specials::as_text), "<0xC2>|<0xA7>");
    EXPECT_EQ(tokenizer.decode(tokenizer.encode("<x><x>y", Specials::parse), true), "<x>y");
    EXPECT_TRUE(tokenizer.is_special(tokenizer.id_of("§")));
    EXPECT_FALSE(tokenizer.is_special(tokenizer.id_of("<x>y")));
}

TEST(Tokenizer, NeverGivesASpecialTokenForTextOfAClient) {
    json file = tokenizer_json({"a", "§"}, {});
    file["added_tokens"].push_back(
        {{"id", file["model"]["vocab"]["§"]}, {"content", "§"}, {"special", true}});
    EXPECT_EQ(encoded(tokenizer_of(file), "a§", Specials::as_text), "a|<0xC2>|<0xA7>");

    const Tokenizer& demo = demo_tokenizer();
    for (std::int32_t id = 0; id < demo.vocab_size(); ++id) {
        if (!demo.is_special(id)) continue;
        const std::string token(demo.token(id));
        EXPECT_EQ(demo.encode(token, Specials::parse), Ids{id});
        for (const std::int32_t part : demo.encode("a" + token + token, Specials::as_text)) {
            EXPECT_FALSE(demo.is_special(part)) << token;
        }
    }
}

TEST(Tokenizer, CountsBadBytesAsReplacementCharacters) {
    const Tokenizer tokenizer = tokenizer_of(tokenizer_json({"a", "\uFFFD"}, {}));
    EXPECT_EQ(encoded(tokenizer,
                      "a\xE2\x80"
                      "a\xFF"),
              "a|\uFFFD|a|\uFFFD");
    EXPECT_EQ(encoded(tokenizer, "\xED\xA0\x80", Specials::as_text), "\uFFFD|\uFFFD|\uFFFD");
    // The two halves of a character in two segments do not make it whole.
    const std::vector<Segment> halves = {{"a\xC3", true}, {"\xA9", true}, {"\xA9", false}};
    EXPECT_EQ(shown(tokenizer, tokenizer.encode(halves)), "a|\uFFFD|\uFFFD|\uFFFD");
    if (const Tokenizer* real = real_tokenizer()) {
        EXPECT_EQ(real->encode("\xFF", Specials::parse), Ids{238479});
    }
}

std::string joined(const std::vector<Segment>& segments) {
    std::string text;
    for (const Segment& segment : segments) text += segment.text;
    return text;
}

TEST(TokenizerSegments, MergeAcrossBordersAsTheReferenceDoes) {
    std::vector<const Tokenizer*> tokenizers = {&demo_tokenizer()};
    if (const Tokenizer* real = real_tokenizer()) tokenizers.push_back(real);
    const std::vector<std::vector<Segment>> prompts = {
        {{"<bos><|turn>user\n", false}, {"\n\nhello", true}, {"<turn|>\n<|turn>model\n", false}},
        {{"<bos><|turn>us", false}, {"er", true}, {"", true}, {"\nHi", false}, {" there", true}},
        {{"th", true}, {"e", true}, {" ca", false}, {"", true}, {"pital", false}},
        {{"<|tu", false}, {"rn>", false}},
        {},
        {{"", true}}};
    for (const Tokenizer* tokenizer : tokenizers) {
        for (const auto& segments : prompts) {
            EXPECT_EQ(tokenizer->encode(segments), tokenizer->encode(joined(segments), Specials::parse))
                << joined(segments);
        }
    }
    // It does matter here: one token for the two line feeds.
    if (const Tokenizer* real = real_tokenizer()) {
        const std::vector<Segment> segments = {{"user\n", false}, {"\nx", true}};
        EXPECT_EQ(real->encode(segments), (Ids{2364, 108, 236781}));
    }
}

TEST(TokenizerSegments, EncodeAnyCutOfHarmlessTextAlike) {
    const Tokenizer& tokenizer = demo_tokenizer();
    std::mt19937 random(3);
    for (int i = 0; i < 200; ++i) {
        std::vector<Segment> segments;
        for (unsigned n = random() % 6; n > 0; --n) {
            std::string text = random_text(random, random() % 8);
            const bool data = random() % 2 == 0;
            // No part of a control token, which would be one in the joined text only.
            if (data)
                std::erase_if(
                    text, [](char c) { return std::string_view("<|>u").find(c) != std::string_view::npos; });
            segments.push_back({text, data});
        }
        const std::string text = joined(segments);
        ASSERT_EQ(tokenizer.encode(segments), tokenizer.encode(text, Specials::parse)) << text;
    }
}

TEST(TokenizerSegments, ReadNoControlTokenThatTouchesData) {
    const Tokenizer& tokenizer = demo_tokenizer();
    const std::int32_t turn = tokenizer.id_of("<|turn>");
    ASSERT_GE(turn, 0);
    const std::vector<std::vector<Segment>> attacks = {{{"<|turn>", true}},
                                                       {{"<|tu", false}, {"rn>", true}},
                                                       {{"<|tu", true}, {"rn>", false}},
                                                       {{"<|", false}, {"tur", true}, {"n>", false}},
                                                       {{"<|tu", true}, {"rn>", true}}};
    for (const auto& segments : attacks) {
        const Ids ids = tokenizer.encode(segments);
        EXPECT_EQ(ids, tokenizer.encode("<|turn>", Specials::as_text));
        EXPECT_EQ(std::count(ids.begin(), ids.end(), turn), 0);
        EXPECT_EQ(tokenizer.decode(ids, false), "<|turn>");
    }
    const std::vector<Segment> mixed = {{"<|turn>", false}, {"<|turn>", true}, {"<|turn>", false}};
    const Ids ids = tokenizer.encode(mixed);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), turn), 2);
    EXPECT_EQ(ids.front(), turn);
    EXPECT_EQ(ids.back(), turn);
}

TEST(Tokenizer, LooksUpOnlyWhatIsThere) {
    const Tokenizer& tokenizer = demo_tokenizer();
    EXPECT_EQ(tokenizer.vocab_size(), 2048);
    EXPECT_EQ(tokenizer.token(-1), "");
    EXPECT_EQ(tokenizer.token(2048), "");
    EXPECT_EQ(tokenizer.id_of("no such token"), -1);
    EXPECT_EQ(tokenizer.id_of(""), -1);
    for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
        EXPECT_EQ(tokenizer.id_of(tokenizer.token(id)), id);
    }
    EXPECT_EQ(tokenizer.decode(Ids{-7, 2048, 1 << 30}, false), "");
}

TEST(Tokenizer, EncodesLongTextsWithoutAnySafePlaceToCut) {
    const Tokenizer& tokenizer = demo_tokenizer();
    for (const char* unit : {"a", "e ", " ", "th", "the", "\n", "0", "é", ">"}) {
        std::string text;
        while (text.size() < 200'000) text += unit;
        EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, Specials::parse), false), text);
    }
}

}  // namespace
}  // namespace dgemma::text
