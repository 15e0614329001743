// From sums as the matrix unit leaves them to pieces of 16 bytes.
#pragma once

#include <cstdint>

#include "backend/cuda/device.cuh"

namespace dgemma::backend::cuda {

// Lane t of four comes with a word of each of four blocks of columns, and leaves with block t whole.
__device__ __forceinline__ uint4 gather_block(std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                              std::uint32_t d) {
    const bool odd = threadIdx.x % 2 != 0, high = threadIdx.x / 2 % 2 != 0;
    const std::uint32_t ab = __shfl_xor_sync(0xFFFFFFFFu, odd ? a : b, 1);
    const std::uint32_t cd = __shfl_xor_sync(0xFFFFFFFFu, odd ? c : d, 1);
    a = odd ? ab : a, b = odd ? b : ab;
    c = odd ? cd : c, d = odd ? d : cd;
    const std::uint32_t first = __shfl_xor_sync(0xFFFFFFFFu, high ? a : c, 2);
    const std::uint32_t second = __shfl_xor_sync(0xFFFFFFFFu, high ? b : d, 2);
    return high ? make_uint4(first, second, c, d) : make_uint4(a, b, first, second);
}

}  // namespace dgemma::backend::cuda
