// What the emulated machine must not let pass: kernels that would hang, or read what is not there yet.
#include <gtest/gtest.h>

#include "backend/cuda/sm90_cluster.cuh"
#include "backend/cuda/sm90_wgmma_e4m3.cuh"

namespace dgemma::emulated {
namespace {

using namespace backend::cuda;

std::string end_of(unsigned threads, const std::function<void()>& kernel, unsigned cluster = 1) {
    try {
        run_grid(2, threads, kernel, cluster);
    } catch (const std::exception& e) {
        return e.what();
    }
    return "";
}

// 384 threads begin with 168 registers each.
template <int Copier, int Multiplier>
void share_registers() {
    if (threadIdx.x < 128) {
        give_registers<Copier>();
    } else {
        take_registers<Multiplier>();
    }
}

TEST(Emulated, RegistersThatNobodyGaveAreWaitedFor) {
    EXPECT_EQ(end_of(384, share_registers<56, 224>), "");
    EXPECT_EQ(end_of(384, share_registers<40, 232>), "");
    EXPECT_EQ(end_of(512, share_registers<56, 152>), "");
    EXPECT_EQ(end_of(384, share_registers<64, 224>), "nobody goes on");
    EXPECT_EQ(end_of(512, share_registers<64, 152>), "nobody goes on");
}

template <bool Fence>
void multiply_what_was_copied() {
    static std::uint8_t numbers[16];
    auto* barrier = reinterpret_cast<std::uint64_t*>(machine.current->block->memory);
    std::uint8_t* tile = machine.current->block->memory + 8192;
    if (threadIdx.x == 0) barrier_init(barrier, 128);
    __syncthreads();
    for (unsigned i = 0; i < 4; ++i)
        copy16_async(shared_address(tile) + (i * 128 + threadIdx.x) * 16, numbers, true);
    barrier_arrive_after_copies(barrier);
    barrier_wait(barrier, 0);
    if (Fence) fence_copy_engine();
    float sums[8];
    const std::uint64_t descriptor = tile_descriptor_of(tile_descriptor_word(shared_address(tile)));
    WarpgroupMultiplyE4m3<16>::run(sums, descriptor, descriptor, false);
    warpgroup_commit();
    warpgroup_wait<0>();
}

TEST(Emulated, ProductsOfOrdinaryCopiesNeedAFence) {
    EXPECT_EQ(end_of(128, multiply_what_was_copied<true>), "");
    EXPECT_EQ(end_of(128, multiply_what_was_copied<false>),
              "a product of what ordinary copies brought, without a fence");
}

void wait_for_bytes(int bytes) {
    auto* barrier = reinterpret_cast<std::uint64_t*>(machine.current->block->memory);
    const std::uint8_t row[128] = {};
    if (threadIdx.x == 0) {
        barrier_init(barrier, 1);
        barrier_expect(barrier, bytes);
        // Beyond the end of the matrix: zeros, that count as bytes.
        copy_box_to(8192, {row, 1, 64, 2}, 32, 0, shared_address(barrier));
    }
    __syncthreads();
    barrier_wait(barrier, 0);
}

TEST(Emulated, BytesOfWholeBoxesCount) {
    EXPECT_EQ(end_of(32, [] { wait_for_bytes(256); }), "");
    EXPECT_EQ(end_of(32, [] { wait_for_bytes(64); }), "nobody goes on");
}

// The second block copies the same row to both.
void copy_to_both(bool stay, int told) {
    auto* barrier = reinterpret_cast<std::uint64_t*>(machine.current->block->memory);
    static const std::uint8_t row[128] = {1};
    if (threadIdx.x == 0) {
        barrier_init(barrier, 1);
        if (cluster_rank() < told) barrier_expect(barrier, 128);
    }
    cluster_arrive();
    cluster_wait();
    const CUtensorMap map{row, 1, 64, 1};
    if (threadIdx.x == 0 && cluster_rank() == 1)
        copy_box_at<true>(3, 8192, &map, 0, 0, shared_address(barrier));
    if (cluster_rank() < told && (stay || cluster_rank() == 1)) {
        barrier_wait(barrier, 0);
        if (machine.current->block->memory[8192] != 1) fail("another row");
    }
    if (stay) {
        cluster_arrive();
        cluster_wait();
    }
}

TEST(Emulated, NobodyLeavesWhileOthersCopyToHim) {
    EXPECT_EQ(end_of(
                  32, [] { copy_to_both(true, 2); }, 2),
              "");
    EXPECT_EQ(end_of(
                  32, [] { copy_to_both(false, 2); }, 2),
              "a block that has left");
    EXPECT_EQ(end_of(
                  32, [] { copy_to_both(true, 1); }, 2),
              "a barrier still waits for bytes");
}

}  // namespace
}  // namespace dgemma::emulated
