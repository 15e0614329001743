#include "cli/memory_fit.h"

#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/shared.h"

namespace dgemma::cli {
namespace {

MemoryFit fit_with(std::vector<std::string> words) {
    words.insert(words.begin(), {"info", "--fit"});
    const auto arguments = Arguments::parse(words, {});
    EXPECT_TRUE(arguments) << (arguments ? "" : arguments.error().message);
    auto fit = fit_of(testing::demo_dir(), arguments.value());
    EXPECT_TRUE(fit) << (fit ? "" : fit.error().message);
    return fit.value();
}

TEST(MemoryFit, CountsTheDemo) {
    const MemoryFit fit = fit_with({"--memory", "1G"});
    EXPECT_EQ(fit.weights, 2u * 12'213'600);
    EXPECT_EQ(fit.kv, Dtype::bf16);
    EXPECT_EQ(fit.token, 2u * 2 * 128 * 2);  // keys and values of two full layers with one head of 128
    EXPECT_EQ(fit.limit, std::uint64_t{1} << 30);
    EXPECT_EQ(fit.need(1000) - fit.need(0), 1000 * fit.token);
    EXPECT_EQ(fit.largest_context(), fit.longest);
    EXPECT_TRUE(check_memory(fit, fit.longest));

    EXPECT_EQ(fit_with({"--kv", "f32"}).token, 2 * fit.token);
    EXPECT_EQ(fit_with({"--kv", "f16"}).token, fit.token);
    EXPECT_EQ(fit_with({"--exact"}).kv, Dtype::f32);
    EXPECT_EQ(fit_with({"--ctx", "777"}).longest, 777);
    EXPECT_LT(fit_with({"--canvas-length", "16"}).logits, fit.logits);
}

TEST(MemoryFit, RefusesWithTheNumbers) {
    MemoryFit fit = fit_with({});
    fit.limit = fit.need(500);
    EXPECT_EQ(fit.largest_context(), 500);
    EXPECT_TRUE(check_memory(fit, 500));
    const auto longer = check_memory(fit, 501);
    ASSERT_FALSE(longer);
    EXPECT_NE(longer.error().message.find("501 tokens"), std::string::npos) << longer.error().message;
    EXPECT_NE(longer.error().message.find("500 tokens fit"), std::string::npos) << longer.error().message;

    fit.limit = fit.need(fit.least) - 1;
    EXPECT_EQ(fit.largest_context(), 0);
    const auto never = check_memory(fit, fit.least);
    ASSERT_FALSE(never);
    EXPECT_NE(never.error().message.find("quantize --profile q4"), std::string::npos)
        << never.error().message;
    fit.limit.reset();  // where nobody knows, nobody refuses
    EXPECT_TRUE(check_memory(fit, fit.longest));
}

TEST(MemoryFit, PrintsBothForms) {
    MemoryFit fit = fit_with({});
    fit.limit = fit.need(500);
    std::ostringstream text, json;
    print_fit(fit, text);
    EXPECT_NE(text.str().find("500 tokens"), std::string::npos) << text.str();
    print_fit_json(fit, json);
    const auto object = nlohmann::json::parse(json.str());
    EXPECT_EQ(object.at("largest_context"), 500);
    EXPECT_EQ(object.at("memory_bytes"), fit.need(500));
    EXPECT_EQ(object.at("kv"), "bf16");
}

TEST(MemoryFit, ReadsSizes) {
    EXPECT_EQ(read_size("24G"), std::uint64_t{24} << 30);
    EXPECT_EQ(read_size("24 GiB"), std::uint64_t{24} << 30);
    EXPECT_EQ(read_size("1.5t"), std::uint64_t{1536} << 30);
    EXPECT_EQ(read_size("512MB"), std::uint64_t{512} << 20);
    EXPECT_EQ(read_size("4096"), 4096u);
    EXPECT_EQ(read_size("7B"), 7u);
    for (const char* wrong : {"", "G", "-1G", "0", "1.2.3G", "1X", "1GG", "1e9", ".", "99999999T", "nan"})
        EXPECT_FALSE(read_size(wrong)) << wrong;
}

}  // namespace
}  // namespace dgemma::cli
