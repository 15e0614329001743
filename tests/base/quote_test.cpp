#include "base/quote.h"

#include <gtest/gtest.h>

#include "base/utf8.h"

namespace dgemma {
namespace {

TEST(Quote, LeavesTextOfEveryLanguageAlone) {
    EXPECT_EQ(quote(""), "\"\"");
    EXPECT_EQ(quote("modèles/模型/🙂 x"), "\"modèles/模型/🙂 x\"");
}

TEST(Quote, WritesWhatSteersATerminalAsBytes) {
    EXPECT_EQ(quote("a\n\x1b[2J\x7f"), R"("a\x0A\x1B[2J\x7F")");
    EXPECT_EQ(quote("\xC2\x9B"
                    "1m\xC2\xA0"),
              "\"\\xC2\\x9B1m\xC2\xA0\"");
    EXPECT_EQ(quote("\xE2\x80\xAE\xE2\x81\xA6\xE2\x80\xA8\xE2\x80\x9C"),
              "\"\\xE2\\x80\\xAE\\xE2\\x81\\xA6\\xE2\\x80\\xA8\xE2\x80\x9C\"");
}

TEST(Quote, WritesWhatIsNotUtf8AsBytes) {
    EXPECT_EQ(quote("caf\xE9"), R"("caf\xE9")");
    EXPECT_EQ(quote("\xED\xA0\x80"), R"("\xED\xA0\x80")") << "a surrogate";
    EXPECT_EQ(quote("\xE2\x80"
                    "A"),
              R"("\xE2\x80A")");
    EXPECT_EQ(quote(std::string_view("a\0b", 3)), R"("a\x00b")");
}

TEST(Quote, CutsBetweenCharacters) {
    EXPECT_EQ(quote(std::string(200, 'x')), "\"" + std::string(200, 'x') + "\"");
    std::string long_name;
    for (int i = 0; i < 100'000; ++i) long_name += "é";
    const std::string quoted = quote("x" + long_name);
    EXPECT_EQ(quoted.size(), 1 + 1 + 200 + 3 + 1);
    EXPECT_TRUE(quoted.ends_with("é...\""));
}

TEST(Utf8Unit, EndsWhereACharacterOrAMaximalBadPartEnds) {
    const auto unit = [](std::string_view bytes) {
        const Utf8Unit found = utf8_unit(bytes);
        return std::pair(found.length, found.valid);
    };
    EXPECT_EQ(unit("a"), std::pair(std::size_t{1}, true));
    EXPECT_EQ(unit("\xF0\x9F\x99\x82x"), std::pair(std::size_t{4}, true));
    EXPECT_EQ(unit("\xF4\x90\x80\x80"), std::pair(std::size_t{1}, false));
    EXPECT_EQ(unit("\xE2\x80"), std::pair(std::size_t{2}, false));
    EXPECT_EQ(unit("\xC0\x80"), std::pair(std::size_t{1}, false));
}

}  // namespace
}  // namespace dgemma
