#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include "golden_lines.h"
#include "text/utf8.h"

namespace dgemma::text {
namespace {

using testing::demo_tokenizer;
using testing::golden_lines;
using testing::real_tokenizer;
using Ids = std::vector<std::int32_t>;

constexpr const char* kRealTokenizer = "the real tokenizer.json.gz";

std::int32_t byte_id(const Tokenizer& tokenizer, int byte) {
    constexpr std::string_view kDigits = "0123456789ABCDEF";
    std::string token = "<0x";
    token += kDigits[static_cast<std::size_t>(byte / 16)];
    token += kDigits[static_cast<std::size_t>(byte % 16)];
    return tokenizer.id_of(token + ">");
}

// Pushes `ids` in two parts cut at `cut`, the first part id by id.
void expect_cut(const Tokenizer& tokenizer, const Ids& ids, std::size_t cut, bool skip,
                const std::string& text) {
    Detokenizer detokenizer(tokenizer, skip);
    std::string out;
    const auto take = [&](const std::string& piece) {
        ASSERT_TRUE(is_valid_utf8(piece));
        out += piece;
        // Never more than the final text, so nothing has to be taken back.
        ASSERT_TRUE(text.starts_with(out));
    };
    const std::span<const std::int32_t> all(ids);
    for (const std::int32_t id : all.first(cut)) take(detokenizer.push(id));
    take(detokenizer.push(all.subspan(cut)));
    take(detokenizer.flush());
    EXPECT_EQ(out, text);
    EXPECT_EQ(detokenizer.flush(), "");
}

TEST(Detokenizer, StreamsEveryCutOfTheGoldens) {
    const Tokenizer* tokenizer = real_tokenizer();
    DGEMMA_SKIP_WITHOUT(tokenizer, kRealTokenizer);
    for (const auto& line : golden_lines("decode.jsonl")) {
        const Ids ids = line["ids"];
        for (std::size_t cut = 0; cut <= ids.size(); ++cut) {
            expect_cut(*tokenizer, ids, cut, false, line["text"]);
            expect_cut(*tokenizer, ids, cut, true, line["text_skip_special"]);
        }
    }
    for (const auto& line : golden_lines("encode.jsonl")) {
        const Ids ids = line["ids"];
        const std::string text = line.value("decoded", line["text"].get<std::string>());
        // Every cut of the short ones; of the long ones (12,000 characters) some.
        const std::size_t step = 1 + ids.size() / 50;
        for (std::size_t cut = 0; cut <= ids.size(); cut += step)
            expect_cut(*tokenizer, ids, cut, false, text);
    }
}

TEST(Detokenizer, HoldsBackARunOfByteTokens) {
    const Tokenizer& tokenizer = demo_tokenizer();
    const auto byte = [&](int value) { return byte_id(tokenizer, value); };
    Detokenizer detokenizer(tokenizer, false);
    EXPECT_EQ(detokenizer.push(byte(0xE2)), "");
    EXPECT_EQ(detokenizer.push(byte(0x82)), "");
    EXPECT_EQ(detokenizer.push(byte(0xAC)), "");  // whole, but a bad byte could follow
    EXPECT_EQ(detokenizer.push(tokenizer.id_of("a")), "€a");
    EXPECT_EQ(detokenizer.push(byte('A')), "");
    EXPECT_EQ(detokenizer.flush(), "A");
}

TEST(Detokenizer, GivesOneReplacementForEveryByteOfABadRun) {
    const Tokenizer& tokenizer = demo_tokenizer();
    const auto byte = [&](int value) { return byte_id(tokenizer, value); };
    const Ids ids = {byte(0xE2), byte(0x80), byte(0xA8), byte(0xFF)};
    EXPECT_EQ(tokenizer.decode(ids, false), "\uFFFD\uFFFD\uFFFD\uFFFD");
    EXPECT_EQ(tokenizer.decode(Ids{byte(0xC0), byte(0x80)}, false), "\uFFFD\uFFFD");
    EXPECT_EQ(tokenizer.decode(Ids{byte('o'), byte('k'), byte(0xED), byte(0xA0), byte(0x80)}, false),
              "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD");
}

TEST(Detokenizer, JoinsBytesAcrossWhatIsDropped) {
    const Tokenizer& tokenizer = demo_tokenizer();
    const auto byte = [&](int value) { return byte_id(tokenizer, value); };
    const std::int32_t turn = tokenizer.id_of("<turn|>");
    const Ids ids = {byte(0xE2), turn, byte(0x80), 1'000'000, -1, byte(0xA8)};
    EXPECT_EQ(tokenizer.decode(ids, true), "\u2028");
    EXPECT_EQ(tokenizer.decode(ids, false), "\uFFFD<turn|>\uFFFD\uFFFD");
    for (std::size_t cut = 0; cut <= ids.size(); ++cut) {
        expect_cut(tokenizer, ids, cut, true, "\u2028");
        expect_cut(tokenizer, ids, cut, false, "\uFFFD<turn|>\uFFFD\uFFFD");
    }
}

TEST(Detokenizer, KeepsALeadingSpace) {
    const Tokenizer& tokenizer = demo_tokenizer();
    const Ids ids = tokenizer.encode("  the  ", Specials::parse);
    EXPECT_EQ(tokenizer.decode(ids, false), "  the  ");
    expect_cut(tokenizer, ids, ids.size(), false, "  the  ");
}

}  // namespace
}  // namespace dgemma::text
