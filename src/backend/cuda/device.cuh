// What kernels of every family share: element types, rounding, reductions, and the instructions of compute
// capability 8.0.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace dgemma::backend::cuda {

using bf16 = __nv_bfloat16;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }

template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
    return x;
}
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x) {
    return __float2bfloat16_rn(x);
}

// rb of the contract where activations are T: a rounding point of the bf16 profile, nothing in f32.
template <class T>
__device__ __forceinline__ float rounded(float x) {
    return to_float(from_float<T>(x));
}

// Eight consecutive elements; the address is a multiple of their size.
template <class T>
__device__ __forceinline__ void load8(const T* from, float (&out)[8]);
template <>
__device__ __forceinline__ void load8<float>(const float* from, float (&out)[8]) {
    const float4 a = reinterpret_cast<const float4*>(from)[0];
    const float4 b = reinterpret_cast<const float4*>(from)[1];
    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
    out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
}
__device__ __forceinline__ void unpack8(uint4 bits, float (&out)[8]) {
    const std::uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        out[2 * i] = __uint_as_float(words[i] << 16);
        out[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
    }
}
template <>
__device__ __forceinline__ void load8<bf16>(const bf16* from, float (&out)[8]) {
    unpack8(*reinterpret_cast<const uint4*>(from), out);
}

// Two floats as a pair of bf16, the first in the lower half.
__device__ __forceinline__ std::uint32_t pack2(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
}

template <class T>
__device__ __forceinline__ void store8(T* to, const float (&in)[8]);
template <>
__device__ __forceinline__ void store8<float>(float* to, const float (&in)[8]) {
    reinterpret_cast<float4*>(to)[0] = make_float4(in[0], in[1], in[2], in[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(in[4], in[5], in[6], in[7]);
}
template <>
__device__ __forceinline__ void store8<bf16>(bf16* to, const float (&in)[8]) {
    *reinterpret_cast<uint4*>(to) =
        make_uint4(pack2(in[0], in[1]), pack2(in[2], in[3]), pack2(in[4], in[5]), pack2(in[6], in[7]));
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
    return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, step));
    return x;
}

// The sum over a block of at most 1024 threads, in every thread. `shared` has room for 32 floats; two calls
// in a row need two such places.
__device__ __forceinline__ float block_sum(float x, float* shared) {
    x = warp_sum(x);
    const int warps = static_cast<int>(blockDim.x + 31) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    return warp_sum(lane < warps ? shared[lane] : 0.0f);
}

// How many tiles of so many something has.
__device__ __forceinline__ int over(int count, int tile) { return (count + tile - 1) / tile; }

constexpr float log2e = 1.4426950408889634f;
// 2^x and 1 / x to about two ulps; what would be smaller than the smallest normal number is zero.
__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
    return y;
}

// The tanh form of GELU.
__device__ __forceinline__ float gelu(float x) {
    constexpr float root = 0.7978845608028654f;  // sqrt(2 / pi)
    return 0.5f * x * (1.0f + tanhf(root * (x + 0.044715f * x * x * x)));
}

// --- compute capability 8.0

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes to shared memory; zeros where `valid` is false (the source is then not read).
__device__ __forceinline__ void copy16_async(std::uint32_t to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
}
// Four bytes to shared memory.
__device__ __forceinline__ void copy4_async(std::uint32_t to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\n" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int Left>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(Left) : "memory");
}

__device__ __forceinline__ void load_matrices(std::uint32_t (&r)[4], std::uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&r)[4], std::uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

// d += a [16, 16] b [16, 8]: bf16 operands, f32 sums.
__device__ __forceinline__ void multiply_add(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace dgemma::backend::cuda
