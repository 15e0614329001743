#include "base/host_memory.h"

#include <filesystem>

#include <gtest/gtest.h>

namespace dgemma {
namespace {

TEST(HostMemory, WhatIsAvailableIsPartOfAll) {
    if (!std::filesystem::exists("/proc/meminfo")) GTEST_SKIP() << "no /proc/meminfo here";
    const HostMemory memory = host_memory();
    ASSERT_TRUE(memory.all && memory.available);
    EXPECT_GT(*memory.all, std::uint64_t{64} << 20);
    EXPECT_GT(*memory.available, 0u);
    EXPECT_LE(*memory.available, *memory.all);
}

}  // namespace
}  // namespace dgemma
