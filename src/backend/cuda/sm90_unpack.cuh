// From the codes of a piece (packing.h) to the fragment that the matrix instruction takes from registers.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

#include "backend/cuda/packing.h"

namespace dgemma::backend::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

__device__ __forceinline__ std::uint32_t bits_of(__nv_bfloat162 x) {
    return *reinterpret_cast<const std::uint32_t*>(&x);
}
__device__ __forceinline__ __nv_bfloat162 pair_of(std::uint32_t bits) {
    return *reinterpret_cast<const __nv_bfloat162*>(&bits);
}

__device__ __forceinline__ uint4 load_shared(std::uint32_t address) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(address)
                 : "memory");
    return x;
}

template <Packing P>
struct Codes {
    uint4 codes[code_bytes(P) / 2048];
    uint4 scales;
    // piece: its address in shared memory; t: of the warpgroup's threads.
    __device__ __forceinline__ void load(std::uint32_t piece, int t) {
#pragma unroll
        for (int i = 0; i < code_bytes(P) / 2048; ++i) codes[i] = load_shared(piece + 2048 * i + 16 * t);
        if (P != Packing::fp8) scales = load_shared(piece + code_bytes(P) + 16 * (t / 32 * 8 + t % 32 / 4));
    }
    __device__ __forceinline__ std::uint32_t word(int i) const {
        const uint4& c = codes[i / 4];
        return i % 4 == 0 ? c.x : i % 4 == 1 ? c.y : i % 4 == 2 ? c.z : c.w;
    }
    __device__ __forceinline__ std::uint32_t scale(int i) const {
        return i == 0 ? scales.x : i == 1 ? scales.y : i == 2 ? scales.z : scales.w;
    }
};

// Of an affine group: scale and bias of rows r and r + 8, each twice.
template <Packing P>
struct Affine {
    __nv_bfloat162 scale[2], bias[2];
    __device__ __forceinline__ Affine(const Codes<P>& c, int group) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const __nv_bfloat162 both = pair_of(c.scale(2 * r + group));
            scale[r] = __low2bfloat162(both);
            bias[r] = __high2bfloat162(both);
        }
    }
    __device__ __forceinline__ std::uint32_t operator()(std::uint32_t codes, int i) const {
        return bits_of(__hfma2(pair_of(codes), scale[i % 2], bias[i % 2]));
    }
};

// The 32 columns of one half of a piece as pairs of bf16: a[4 j + i] is pair i of columns 16 j and on.
__device__ __forceinline__ void unpack(const Codes<Packing::affine4>& c, int half, std::uint32_t (&a)[8]) {
#pragma unroll
    for (int kk = 0; kk < 2; ++kk) {
        const Affine<Packing::affine4> value(c, half);
        const std::uint32_t word = c.word(2 * half + kk), upper = word >> 8;
        a[4 * kk] = value(word & 0x000F000Fu, 0);
        a[4 * kk + 1] = value(word & 0x00F000F0u, 1);
        a[4 * kk + 2] = value(upper & 0x000F000Fu, 2);
        a[4 * kk + 3] = value(upper & 0x00F000F0u, 3);
    }
}

__device__ __forceinline__ void unpack(const Codes<Packing::affine8>& c, int half, std::uint32_t (&a)[8]) {
#pragma unroll
    for (int kk = 0; kk < 2; ++kk) {
        const Affine<Packing::affine8> value(c, half);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const std::uint32_t word = c.word(4 * half + 2 * kk + i / 2);
            a[4 * kk + i] = value(i % 2 == 0 ? word & 0x00FF00FFu : __byte_perm(word, 0, 0x4341), i);
        }
    }
}

__device__ __forceinline__ void unpack(const Codes<Packing::fp8>& c, int half, std::uint32_t (&a)[8]) {
    const __nv_bfloat162 up = pair_of(0x7B807B80u);  // 2^120
#pragma unroll
    for (int kk = 0; kk < 2; ++kk) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            // Exponent and mantissa at their places: the value times 2^-120, subnormal ones too.
            const std::uint32_t word = c.word(4 * half + 2 * kk + i / 2);
            const std::uint32_t bits = i % 2 == 0 ? word & 0x87F087F0u
                                                  : (word << 4 & 0x00F000F0u) | (word >> 3 & 0x07000700u) |
                                                        (word << 1 & 0x80008000u);
            a[4 * kk + i] = bits_of(__hmul2(pair_of(bits), up));
        }
    }
}

__device__ __forceinline__ void unpack(const Codes<Packing::nvfp4>& c, int half, std::uint32_t (&a)[8]) {
    constexpr std::uint32_t all = 0x81C081C0u;
#pragma unroll
    for (int kk = 0; kk < 2; ++kk) {
        const std::uint32_t word = c.word(2 * half + kk);
        __nv_bfloat162 scale[2];
#pragma unroll
        for (int r = 0; r < 2; ++r)
            scale[r] = kk == 0 ? __low2bfloat162(pair_of(c.scale(2 * r + half)))
                               : __high2bfloat162(pair_of(c.scale(2 * r + half)));
        // The value times 2^-126; the scale brings 2^118.
        const std::uint32_t bits[4] = {
            word & all, word << 3 & all, word << 6 & all,
            (word << 1 & 0x80008000u) | (word >> 5 & 0x01000100u) | (word >> 4 & 0x00C000C0u)};
#pragma unroll
        for (int i = 0; i < 4; ++i) a[4 * kk + i] = bits_of(__hmul2(pair_of(bits[i]), scale[i % 2]));
    }
}

#endif

}  // namespace dgemma::backend::cuda
