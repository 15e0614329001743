// CUDA's words and device.cuh of src/backend/cuda, on the emulated machine.
#pragma once

#include "base/small_floats.h"
#include "base/tensor.h"
#include "emulated/machine.h"

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)

struct uint4 {
    std::uint32_t x, y, z, w;
};
struct int4 {
    int x, y, z, w;
};
struct float2 {
    float x, y;
};
inline uint4 make_uint4(std::uint32_t x, std::uint32_t y, std::uint32_t z, std::uint32_t w) {
    return {x, y, z, w};
}
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }

inline dgemma::emulated::Index<dgemma::emulated::ThreadNumber> threadIdx;
inline dgemma::emulated::Index<dgemma::emulated::BlockNumber> blockIdx;
inline dgemma::emulated::Index<dgemma::emulated::Blocks> gridDim;
inline dgemma::emulated::Index<dgemma::emulated::Threads> blockDim;

template <class T>
T __shfl_xor_sync(unsigned, T mine, int mask) {
    return dgemma::emulated::shuffle(mine, [&](int lane) { return lane ^ mask; });
}
template <class T>
T __shfl_up_sync(unsigned, T mine, int by) {
    return dgemma::emulated::shuffle(mine, [&](int lane) { return lane >= by ? lane - by : lane; });
}
template <class T>
T __shfl_sync(unsigned, T mine, int from) {
    return dgemma::emulated::shuffle(mine, [&](int) { return from; });
}
inline unsigned __ballot_sync(unsigned, bool mine) {
    std::uint32_t all[32];
    dgemma::emulated::exchange(mine ? 1 : 0, all);
    unsigned out = 0;
    for (int i = 0; i < 32; ++i) out |= all[i] << i;
    return out;
}
inline void __syncwarp() {
    std::uint32_t all[32];
    dgemma::emulated::exchange(0, all);
}
inline void __syncthreads() {
    dgemma::emulated::meet(dgemma::emulated::machine.current->block->meetings[-1],
                           static_cast<int>(dgemma::emulated::machine.threads));
}
inline std::uint32_t __reduce_or_sync(unsigned, std::uint32_t mine) {
    std::uint32_t all[32], out = 0;
    dgemma::emulated::exchange(mine, all);
    for (const std::uint32_t x : all) out |= x;
    return out;
}
template <class T>
T __ldcg(const T* p) {
    return *p;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int atomicAdd(std::int32_t* p, int by) { return std::exchange(*p, *p + by); }
inline std::uint32_t __byte_perm(std::uint32_t low, std::uint32_t high, std::uint32_t selector) {
    const std::uint64_t bytes = static_cast<std::uint64_t>(high) << 32 | low;
    std::uint32_t out = 0;
    for (int i = 0; i < 4; ++i)
        out |= static_cast<std::uint32_t>(bytes >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return out;
}

namespace dgemma::backend::cuda {

using std::max;
using std::min;

struct bf16 {
    std::uint16_t bits;
};
template <class T>
float rounded(float x);
template <>
inline float rounded<bf16>(float x) {
    return round_bf16(x);
}
inline std::uint32_t pack2(float low, float high) {
    return f32_to_bf16(low) | static_cast<std::uint32_t>(f32_to_bf16(high)) << 16;
}
inline float warp_max(float x) {
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, step));
    return x;
}
inline int over(int count, int tile) { return (count + tile - 1) / tile; }
inline float gelu(float x) {
    constexpr float root = 0.7978845608028654f;
    return 0.5f * x * (1.0f + std::tanh(root * (x + 0.044715f * x * x * x)));
}

inline std::uint32_t shared_address(const void* pointer) {
    const auto at = static_cast<const std::uint8_t*>(pointer) - emulated::machine.current->block->memory;
    if (at < 0 || at >= static_cast<std::ptrdiff_t>(emulated::shared_bytes))
        emulated::fail("an address outside of shared memory");
    return static_cast<std::uint32_t>(at);
}
inline std::uint8_t* shared_pointer(std::uint32_t address) {
    return emulated::block_of(address).memory + emulated::inside_block(address);
}
inline void copy16_async(std::uint32_t to, const void* from, bool valid) {
    if (to % 16 != 0 || reinterpret_cast<std::uintptr_t>(from) % 16 != 0)
        emulated::fail("a copy that is not aligned");
    emulated::machine.current->copies.emplace_back([=] {
        if (valid) {
            std::memcpy(shared_pointer(to), from, 16);
        } else {
            std::memset(shared_pointer(to), 0, 16);
        }
        emulated::machine.current->block->ordinary[to / 16] = true;
    });
}
inline void copy4_async(std::uint32_t to, const void* from) { std::memcpy(shared_pointer(to), from, 4); }
inline void commit_copies() {}
template <int>
void wait_copies() {}

}  // namespace dgemma::backend::cuda
