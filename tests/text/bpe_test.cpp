#include "text/bpe.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>

#include <gtest/gtest.h>

namespace dgemma::text {
namespace {

using Ids = std::vector<std::int32_t>;

// Merges over up to three letters. Their order is random: products may rank before their parts.
struct RandomMerges {
    std::vector<Merge> merges;
    std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> ranks;
    std::int32_t letters = 1;

    explicit RandomMerges(std::mt19937& random) {
        letters = 1 + static_cast<std::int32_t>(random() % 3);
        std::vector<std::string> tokens;
        for (std::int32_t i = 0; i < letters; ++i) tokens.emplace_back(1, static_cast<char>('a' + i));
        const std::size_t longest = random() % 2 == 0 ? 24 : 100;
        for (unsigned tries = random() % 25; tries > 0; --tries) {
            const auto left = static_cast<std::int32_t>(random() % tokens.size());
            const auto right = static_cast<std::int32_t>(random() % tokens.size());
            const std::string& left_token = tokens[static_cast<std::size_t>(left)];
            const std::string& right_token = tokens[static_cast<std::size_t>(right)];
            const std::string joined = left_token + right_token;
            if (joined.size() > longest || !ranks.insert({{left, right}, 0}).second) continue;
            const Merge merge{left, right, 0, left_token.back() - 'a', right_token.front() - 'a'};
            auto product = std::find(tokens.begin(), tokens.end(), joined);
            merges.push_back(merge);
            merges.back().product = static_cast<std::int32_t>(product - tokens.begin());
            if (product == tokens.end()) tokens.push_back(joined);
        }
        if (random() % 2 == 0) std::shuffle(merges.begin(), merges.end(), random);
        for (std::size_t i = 0; i < merges.size(); ++i) ranks[{merges[i].left, merges[i].right}] = i;
    }

    [[nodiscard]] Ids merged_naively(Ids ids) const {
        for (;;) {
            std::size_t best = merges.size(), place = 0;
            for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
                const auto found = ranks.find({ids[i], ids[i + 1]});
                if (found == ranks.end() || found->second >= best) continue;
                best = found->second;
                place = i;
            }
            if (best == merges.size()) return ids;
            ids[place] = merges[best].product;
            ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(place) + 1);
        }
    }
};

Ids random_symbols(std::mt19937& random, std::int32_t letters, std::size_t count) {
    const auto letter = [&] { return static_cast<std::int32_t>(random() % static_cast<unsigned>(letters)); };
    Ids symbols(count, 0);
    const unsigned kind = random() % 3;  // one letter, all random, or long runs
    for (std::size_t i = 0; i < count && kind != 0; ++i) {
        symbols[i] = kind == 1 || i == 0 || random() % 10 == 0 ? letter() : symbols[i - 1];
    }
    return symbols;
}

// Windows from far too small for the tokens to larger than the text: every way to put windows together is
// met.
TEST(Bpe, MergesAsTheNaiveRuleWhateverTheMergesAndTheWindow) {
    std::mt19937 random(11);
    for (int round = 0; round < 3000; ++round) {
        const RandomMerges rule(random);
        Bpe bpe(rule.merges.size(), 16 + random() % 100);
        ASSERT_EQ(bpe.add(rule.merges), rule.merges.size());
        const Ids symbols = random_symbols(random, rule.letters, random() % 500);
        Ids out;
        bpe.encode(symbols, out);
        ASSERT_EQ(out, rule.merged_naively(symbols)) << "round " << round;
    }
}

// Close to the end of the text a short window replaced a longer one and was replaced by it, for ever.
TEST(Bpe, EndsWhereWindowsWouldTakeTurns) {
    const std::vector<Merge> of_runs = {
        {0, 0, 1, 0, 0}, {1, 1, 2, 0, 0}, {2, 2, 3, 0, 0}, {3, 2, 4, 0, 0}, {3, 3, 5, 0, 0}};
    for (std::size_t window = 16; window < 64; ++window) {
        Bpe bpe(of_runs.size(), window);
        ASSERT_EQ(bpe.add(of_runs), of_runs.size());
        for (int count = 0; count < 300; ++count) {
            Ids out;
            bpe.encode(Ids(static_cast<std::size_t>(count), 0), out);
            // Eights, the last of which joins a four behind it before two eights join.
            const bool four = count % 8 >= 4, twelve = four && count >= 8;
            const int eights = count / 8 - (twelve ? 1 : 0);
            Ids expected(static_cast<std::size_t>(eights / 2), 5);
            if (eights % 2 == 1) expected.push_back(3);
            if (four) expected.push_back(twelve ? 4 : 2);
            if (count % 4 >= 2) expected.push_back(1);
            if (count % 2 == 1) expected.push_back(0);
            ASSERT_EQ(out, expected) << count << " symbols in windows of " << window;
        }
    }
}

TEST(Bpe, AppendsToWhatIsThere) {
    Bpe bpe;
    ASSERT_EQ(bpe.add(std::vector<Merge>{{0, 1, 2, 0, 1}}), 1u);
    Ids out = {9};
    bpe.encode(Ids{0, 1, 0}, out);
    bpe.encode(Ids{}, out);
    EXPECT_EQ(out, (Ids{9, 2, 0}));
}

TEST(Bpe, StopsAtAPairThatIsThereTwice) {
    Bpe bpe;
    EXPECT_EQ(bpe.add(std::vector<Merge>{{0, 1, 2, 0, 1}, {1, 0, 3, 1, 0}, {0, 1, 3, 0, 1}, {2, 2, 4, 1, 0}}),
              2u);
}

TEST(Bpe, GrowsBeyondTheMergesItWasMadeFor) {
    Bpe bpe(1);
    std::vector<Merge> merges;
    for (std::int32_t i = 0; i < 1000; ++i) merges.push_back({i, i + 1, 5000 + i, i, i + 1});
    ASSERT_EQ(bpe.add(std::span(merges).first(10)), 10u);
    ASSERT_EQ(bpe.add(std::span(merges).subspan(10)), 990u);
    for (std::int32_t i = 0; i < 1000; ++i) {
        Ids out;
        bpe.encode(Ids{i, i + 1}, out);
        EXPECT_EQ(out, Ids{5000 + i});
    }
}

}  // namespace
}  // namespace dgemma::text
