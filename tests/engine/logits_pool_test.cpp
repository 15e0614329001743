#include "engine/logits_pool.h"

#include <cstdint>

#include <gtest/gtest.h>

#include "backend/cpu/cpu.h"

namespace dgemma::engine {
namespace {

// A sanitizer's allocator takes a request that no machine can fulfil for a mistake of ours.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(LogitsPool, WithoutMemoryItNamesTheRemedy) {
    const auto backend = backend::make_reference_backend(backend::Precision::f32);
    LogitsPool pool(*backend, 1 << 30, 1);
    const auto taken = pool.take(std::int64_t{1} << 20);
    ASSERT_FALSE(taken);
    EXPECT_EQ(taken.error().kind, ErrorKind::io);
    EXPECT_NE(taken.error().message.find("--canvas-length"), std::string::npos) << taken.error().message;
}
#endif

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

TEST(LogitsPool, CountsWhatNobodyUses) {
    const auto backend = backend::make_reference_backend(backend::Precision::f32);
    LogitsPool pool(*backend, 8, 2);
    auto first = pool.take(2), second = pool.take(3);
    EXPECT_EQ(pool.unused_bytes(), 0u);
    pool.give_back(std::move(first).value());
    EXPECT_EQ(pool.unused_bytes(), 2u * 8 * 4);
    pool.give_back(std::move(second).value());
    EXPECT_EQ(pool.unused_bytes(), 5u * 8 * 4);
    pool.drop_unused();
    EXPECT_EQ(pool.unused_bytes(), 0u);
}

}  // namespace
}  // namespace dgemma::engine
