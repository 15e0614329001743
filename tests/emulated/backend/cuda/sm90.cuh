// sm90.cuh of src/backend/cuda on the emulated machine.
#pragma once

#include "backend/cuda/device.cuh"
#include "backend/cuda/tensor_map.h"

namespace dgemma::backend::cuda {

inline std::uint32_t padding_to_1024(const void* shared) {
    return (1024 - shared_address(shared) % 1024) % 1024;
}

inline void barrier_init(std::uint64_t* barrier, int arrivals) {
    emulated::machine.current->block->barriers[shared_address(barrier)] = {arrivals, arrivals, 0, 0};
}
inline void barrier_init_done() {}
inline void barrier_expect(std::uint64_t* barrier, int bytes) {
    emulated::arrive(shared_address(barrier), bytes);
}
inline void barrier_arrive(std::uint64_t* barrier) { emulated::arrive(shared_address(barrier)); }
inline void barrier_arrive_after_copies(std::uint64_t* barrier) {
    emulated::Thread* own = emulated::machine.current;
    emulated::machine.later.emplace_back(
        own, [copies = std::exchange(own->copies, {}), at = shared_address(barrier)] {
            for (const auto& copy : copies) copy();
            emulated::arrive(at);
        });
}
inline void wait_at(std::uint32_t barrier, int phase) {
    emulated::wait_until([&] { return emulated::barrier_at(barrier).phase % 2 != phase; });
}
inline void barrier_wait(std::uint64_t* barrier, int phase) { wait_at(shared_address(barrier), phase); }

// 128-byte swizzle: the 16 bytes of a row change places by the row's number among eight.
inline std::uint32_t swizzled(std::uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

inline void copy_box_to(std::uint32_t to, const CUtensorMap& map, int column, int row,
                        std::uint32_t barrier) {
    if (map.data == nullptr || to % 1024 != 0)
        emulated::fail("a box from nowhere, or to no multiple of 1024");
    emulated::machine.later.emplace_back(emulated::machine.current, [=] {
        for (int r = 0; r < map.box_rows; ++r) {
            for (int byte = 0; byte < 128; ++byte) {
                const std::int64_t at = 2 * std::int64_t{column} + byte;
                const bool inside = row + r < map.rows && at < 2 * map.cols;
                *shared_pointer(swizzled(to + static_cast<std::uint32_t>(r * 128 + byte))) =
                    inside ? map.data[(row + r) * 2 * map.cols + at] : 0;
            }
        }
        emulated::land(barrier, map.box_rows * 128);
    });
}
inline void copy_box(void* to, const CUtensorMap& map, int column, int row, std::uint64_t* barrier) {
    copy_box_to(shared_address(to), map, column, row, shared_address(barrier));
}
inline void prefetch_box(const CUtensorMap& map, int column, int row) {
    if (map.data == nullptr || column >= map.cols || row >= map.rows) emulated::fail("a prefetch of nothing");
}
// Of what anybody in the block wrote so far: which threads a fence serves is not looked at.
inline void fence_copy_engine() {
    auto& ordinary = emulated::machine.current->block->ordinary;
    std::fill(ordinary.begin(), ordinary.end(), false);
}

inline void warpgroup_begin() {}
inline void warpgroup_commit() {
    emulated::Thread& own = *emulated::machine.current;
    own.committed.push_back(std::exchange(own.products, {}));
}
template <int Left>
void warpgroup_wait() {
    emulated::Thread& own = *emulated::machine.current;
    if (!own.products.empty()) emulated::fail("products that were not committed");
    ++emulated::machine.progress;
    emulated::yield();  // others go on before this thread's products are done
    while (own.committed.size() > Left) {
        for (const auto& product : own.committed.front()) product();
        own.committed.erase(own.committed.begin());
    }
}
template <int Count>
void hold(float (&)[Count]) {}

inline void warpgroup_barrier(int warpgroup) {
    emulated::meet(emulated::machine.current->block->meetings[warpgroup], 128);
}
inline void both_warpgroups_barrier() { emulated::meet(emulated::machine.current->block->meetings[2], 256); }
inline int load_acquire(const std::int32_t* counter) {
    emulated::yield();
    return *counter;
}
inline void add_one_release(std::int32_t* counter) { ++*counter, ++emulated::machine.progress; }
template <int Registers>
void give_registers() {
    if (emulated::machine.current->registers < Registers)
        emulated::fail("a gift of registers that there are not");
    emulated::set_registers(Registers);
}
template <int Registers>
void take_registers() {
    if (emulated::machine.current->registers > Registers) emulated::fail("registers were taken that are had");
    emulated::set_registers(Registers);
}

inline std::uint32_t tile_descriptor_word(std::uint32_t tile, int block = 16) {
    return (tile & 0x3FFFFu) >> 4 | static_cast<std::uint32_t>(block >> 4) << 16;
}
inline std::uint32_t uniform(std::uint32_t x) {
    if (__reduce_or_sync(0xFFFFFFFFu, x) != x)
        emulated::fail("a value that the lanes of a warp have not alike");
    return x;
}
inline std::uint64_t tile_descriptor_of(std::uint32_t word) {
    return std::uint64_t{1} << 62 | std::uint64_t{1024 >> 4} << 32 | word;
}

inline std::uint32_t transpose8(std::uint32_t x) {
    std::uint32_t all[32], out = 0;
    emulated::exchange(x, all);
    const std::uint32_t lane = emulated::machine.current->number % 32, row = lane / 4;
    for (std::uint32_t i = 0; i < 2; ++i)
        out |= (all[4 * (lane % 4 * 2 + i) + row / 2] >> 16 * (row % 2) & 0xFFFFu) << 16 * i;
    return out;
}
inline void store_transposed(std::uint32_t to, std::uint32_t a, std::uint32_t b, std::uint32_t c,
                             std::uint32_t d) {
    if (to % 16 != 0) emulated::fail("a row of a matrix that is not aligned");
    const std::uint32_t words[4] = {a, b, c, d}, lane = emulated::machine.current->number % 32,
                        row = lane % 8;
    for (std::uint32_t m = 0; m < 4; ++m) {
        std::uint32_t all[32];
        emulated::exchange(words[m], all);
        if (lane / 8 != m) continue;
        for (std::uint32_t i = 0; i < 8; ++i) {
            const auto element = static_cast<std::uint16_t>(all[4 * i + row / 2] >> 16 * (row % 2));
            std::memcpy(shared_pointer(to + 2 * i), &element, 2);
        }
    }
}

}  // namespace dgemma::backend::cuda

#include "backend/cuda/sm90_wgmma.cuh"
