#include "engine/logits_pool.h"

#include <cstdint>

#include <gtest/gtest.h>

#include "backend/cpu/cpu.h"

namespace dgemma::engine {
namespace {

// Heavy: a sanitizer's allocator takes a request that no machine can fulfil for a mistake of ours.
TEST(LogitsPoolHeavy, WithoutMemoryItNamesTheRemedy) {
    const auto backend = backend::make_reference_backend(backend::Precision::f32);
    LogitsPool pool(*backend, 1 << 30, 1);
    const auto taken = pool.take(std::int64_t{1} << 20);
    ASSERT_FALSE(taken);
    EXPECT_EQ(taken.error().kind, ErrorKind::io);
    EXPECT_NE(taken.error().message.find("--canvas-length"), std::string::npos) << taken.error().message;
}

TEST(LogitsPool, GivesOutWhatWasGivenBack) {
    const auto backend = backend::make_reference_backend(backend::Precision::f32);
    LogitsPool pool(*backend, 8, 1);
    auto first = pool.take(2);
    ASSERT_TRUE(first);
    const backend::Logits* same = first->get();
    pool.give_back(std::move(first).value());
    EXPECT_EQ(pool.take(2)->get(), same);
    EXPECT_NE(pool.take(3)->get(), nullptr);
}

}  // namespace
}  // namespace dgemma::engine
