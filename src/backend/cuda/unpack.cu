// Encoded weights to row-major numbers, or to the pieces of packing.h, once, when they are loaded.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"

namespace dgemma::backend::cuda {

namespace {

constexpr int tile_rows = static_cast<int>(kTileRows);

__device__ __forceinline__ std::uint16_t half_at(const std::uint8_t* from, std::int64_t i) {
    // Parts of a file's tensors may lie at odd addresses, but here they were copied to the device's own.
    return reinterpret_cast<const std::uint16_t*>(from)[i];
}
__device__ __forceinline__ float bf16_value(std::uint16_t bits) {
    return __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
}
__device__ __forceinline__ float e4m3_value(std::uint8_t code) {
    // Exponent and mantissa as those of an f32, 2^120 too small; subnormal numbers come out right too.
    const std::uint32_t magnitude = static_cast<std::uint32_t>(code & 0x7Fu) << 20;
    const float value = (code & 0x7Fu) == 0x7Fu ? NAN : __uint_as_float(magnitude) * 0x1p120f;
    return (code & 0x80u) != 0 ? -value : value;
}
__device__ __forceinline__ float e2m1_value(unsigned code) {
    const float value = __uint_as_float((code & 7u) << 22) * 0x1p126f;
    return (code & 8u) != 0 ? -value : value;
}

// Where things stand in an encoded weight. Codes are numbered, whatever their size.
struct Place {
    __device__ Place(const EncodedMatrix& m, std::int64_t group, std::int64_t row) : m_(m) {
        row_ = group * m.outs + row;
        const std::int64_t tiles = (m.outs + tile_rows - 1) / tile_rows;
        tile_ = group * tiles + row / tile_rows;
        inside_ = static_cast<int>(row % tile_rows);
    }
    [[nodiscard]] __device__ unsigned byte_code(std::int64_t column) const {
        if (m_.layout == Layout::rows) return m_.codes[row_ * m_.ins + column];
        return m_.codes[tile_ * m_.ins * tile_rows + column / 4 * (4 * tile_rows) + inside_ * 4 + column % 4];
    }
    [[nodiscard]] __device__ unsigned nibble_code(std::int64_t column) const {
        if (m_.layout == Layout::rows) {
            const unsigned byte = m_.codes[(row_ * m_.ins + column) / 2];
            return column % 2 == 0 ? byte & 15u : byte >> 4;
        }
        const unsigned byte = m_.codes[tile_ * (m_.ins / 2) * tile_rows + column / 8 * (4 * tile_rows) +
                                       inside_ * 4 + column % 4];
        return column % 8 < 4 ? byte & 15u : byte >> 4;
    }
    [[nodiscard]] __device__ std::uint16_t plain_half(std::int64_t column) const {
        if (m_.layout == Layout::rows) return half_at(m_.codes, row_ * m_.ins + column);
        return half_at(m_.codes,
                       tile_ * m_.ins * tile_rows + column / 2 * (2 * tile_rows) + inside_ * 2 + column % 2);
    }
    // Of an affine group: the number of its scale and bias.
    [[nodiscard]] __device__ std::int64_t affine_group(std::int64_t column) const {
        const std::int64_t groups = m_.ins / kAffineGroup, g = column / kAffineGroup;
        return m_.layout == Layout::rows ? row_ * groups + g : (tile_ * groups + g) * tile_rows + inside_;
    }
    [[nodiscard]] __device__ std::uint8_t nvfp4_scale(std::int64_t column) const {
        return m_.scales[row_ * (m_.ins / kNvfp4Group) + column / kNvfp4Group];
    }
    [[nodiscard]] __device__ std::int64_t row() const { return row_; }

  private:
    const EncodedMatrix& m_;
    std::int64_t row_, tile_;
    int inside_;
};

__device__ float value_at(const EncodedMatrix& m, const Place& place, std::int64_t group,
                          std::int64_t column) {
    switch (m.encoding) {
        case Encoding::plain:
            return bf16_value(place.plain_half(column));
        case Encoding::affine8:
        case Encoding::affine4: {
            const std::int64_t g = place.affine_group(column);
            const unsigned q =
                m.encoding == Encoding::affine8 ? place.byte_code(column) : place.nibble_code(column);
            return fmaf(bf16_value(half_at(m.scales, g)), static_cast<float>(q),
                        bf16_value(half_at(m.biases, g)));
        }
        case Encoding::fp8_row:
            return e4m3_value(static_cast<std::uint8_t>(place.byte_code(column))) *
                   reinterpret_cast<const float*>(m.scales)[place.row()];
        case Encoding::nvfp4:
            return e2m1_value(place.nibble_code(column)) * e4m3_value(place.nvfp4_scale(column)) *
                   reinterpret_cast<const float*>(m.globals)[group];
    }
    return 0;
}

template <class T>
__global__ void unpack_kernel(EncodedMatrix m, T* to) {
    begin_kernel();
    const std::int64_t count = m.groups * m.outs * m.ins;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
         i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
        const std::int64_t column = i % m.ins, row = i / m.ins % m.outs, group = i / m.ins / m.outs;
        to[i] = from_float<T>(value_at(m, Place(m, group, row), group, column));
    }
}

// Where a code of pair i stands in its half of a word.
__device__ unsigned bits_of_code(Packing packing, int i, unsigned code) {
    switch (packing) {
        case Packing::none:
            break;
        case Packing::affine4:
            return code << 4 * i;
        case Packing::affine8:
            return code << 8 * (i % 2);
        case Packing::fp8:
            return i % 2 == 0 ? (code & 0x80u) << 8 | (code & 0x7Fu) << 4
                              : (code & 0x80u) << 7 | (code & 0x70u) << 7 | (code & 0x0Fu);
        case Packing::nvfp4:
            if (i < 3) return ((code & 8u) << 12 | (code & 7u) << 6) >> 3 * i;
            return (code & 8u) << 11 | (code & 4u) << 11 | (code & 3u) << 10;
    }
    return 0;
}

// One block of 128 threads a piece.
__global__ void pack_kernel(EncodedMatrix m, Packing packing, std::uint8_t* pieces) {
    begin_kernel();
    const std::int64_t along = m.ins / piece_columns, piece = blockIdx.x;
    const std::int64_t row0 = piece / along * piece_rows, column0 = piece % along * piece_columns;
    const std::int64_t group = row0 / m.outs, first_row = row0 % m.outs;
    const int t = static_cast<int>(threadIdx.x), warp = t / 32, lane = t % 32;
    std::uint8_t* to = pieces + piece * piece_bytes(packing);
    const Place places[2] = {Place(m, group, first_row + 16 * warp + lane / 4),
                             Place(m, group, first_row + 16 * warp + lane / 4 + 8)};
    const bool bytes = code_bytes(packing) == 4096;
    for (int kk = 0; kk < 4; ++kk) {
        std::uint32_t words[2] = {};
        for (int i = 0; i < 4; ++i) {
            const std::int64_t column = column0 + 16 * kk + i / 2 * 8 + lane % 4 * 2;
            const Place& place = places[i % 2];
            for (int high = 0; high < 2; ++high) {
                const unsigned code =
                    bytes ? place.byte_code(column + high) : place.nibble_code(column + high);
                words[bytes ? i / 2 : 0] |= bits_of_code(packing, i, code) << 16 * high;
            }
        }
        if (bytes) {
            auto* word = reinterpret_cast<std::uint32_t*>(to + kk / 2 * 2048 + 16 * t + kk % 2 * 8);
            word[0] = words[0], word[1] = words[1];
        } else {
            reinterpret_cast<std::uint32_t*>(to + 16 * t)[kk] = words[0];
        }
    }
    if (lane % 4 != 0 || packing == Packing::fp8) return;
    auto* scales = reinterpret_cast<std::uint16_t*>(to + code_bytes(packing) + 16 * (warp * 8 + lane / 4));
    const auto bf16_bits = [](float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); };
    for (int r = 0; r < 2; ++r) {
        if (packing == Packing::nvfp4) {
            for (int g = 0; g < 4; ++g)
                scales[4 * r + g] = bf16_bits(e4m3_value(places[r].nvfp4_scale(column0 + 16 * g)) * 0x1p118f);
        } else {
            const float up = packing == Packing::affine4 && r == 1 ? 0x1p113f : 0x1p117f;
            for (int g = 0; g < 2; ++g) {
                const std::int64_t at = places[r].affine_group(column0 + 32 * g);
                scales[4 * r + 2 * g] = bf16_bits(bf16_value(half_at(m.scales, at)) * up);
                scales[4 * r + 2 * g + 1] = bf16_bits(bf16_value(half_at(m.biases, at)) * 0x1p-16f);
            }
        }
    }
}

__device__ __forceinline__ std::uint32_t mixed(std::uint64_t x) {
    x ^= x >> 33;
    x *= 0xFF51AFD7ED558CCDull;
    x ^= x >> 33;
    x *= 0xC4CEB9FE1A85EC53ull;
    return static_cast<std::uint32_t>(x >> 32);
}

__global__ void random_pieces_kernel(Packing packing, std::uint32_t* pieces, std::int64_t words,
                                     std::uint32_t scale_word, std::uint32_t other_scale_word,
                                     std::uint64_t seed) {
    begin_kernel();
    const int piece = piece_bytes(packing) / 4, codes = code_bytes(packing) / 4;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words;
         i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
        std::uint32_t word = mixed(seed * 0x9E3779B97F4A7C15ull + static_cast<std::uint64_t>(i));
        if (packing == Packing::fp8) word &= 0xDBFFDBFFu;  // magnitudes below 2
        pieces[i] = i % piece < codes ? word : i % 4 < 2 ? scale_word : other_scale_word;
    }
}

// Clearing the highest bit of the exponent leaves magnitudes below 2, and no NaN.
__global__ void random_codes_kernel(std::uint32_t* codes, std::int64_t words, std::uint64_t seed) {
    begin_kernel();
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words;
         i += static_cast<std::int64_t>(gridDim.x) * blockDim.x)
        codes[i] = mixed(seed * 0x9E3779B97F4A7C15ull + static_cast<std::uint64_t>(i)) & 0xBFBFBFBFu;
}

}  // namespace

void unpack_weight(Context& c, const EncodedMatrix& from, Element type, void* to) {
    if (c.failed()) return;
    if (type == Element::bf16) {
        launch(c, "unpacking weights", unpack_kernel<bf16>, 8192, 256, 0, from, static_cast<bf16*>(to));
    } else {
        launch(c, "unpacking weights", unpack_kernel<float>, 8192, 256, 0, from, static_cast<float*>(to));
    }
}

void pack_weight(Context& c, const EncodedMatrix& from, Packing packing, void* pieces) {
    if (c.failed()) return;
    const std::int64_t count = from.groups * (from.outs / piece_rows) * (from.ins / piece_columns);
    launch(c, "packing weights", pack_kernel, static_cast<unsigned>(count), 128, 0, from, packing,
           static_cast<std::uint8_t*>(pieces));
}

void fill_random_codes(Context& c, void* codes, std::int64_t bytes, std::uint64_t seed) {
    if (c.failed()) return;
    launch(c, "making random weights", random_codes_kernel, 8192, 256, 0, static_cast<std::uint32_t*>(codes),
           bytes / 4, seed);
}

void fill_random_pieces(Context& c, Packing packing, void* pieces, std::int64_t bytes, float deviation,
                        std::uint64_t seed) {
    if (c.failed()) return;
    // Evenly spread codes: of n levels the step that gives the deviation, and half of the range below zero.
    const float levels = packing == Packing::affine8 ? 256 : 16;
    const float step = deviation * 3.4641016f / levels;
    std::uint32_t word = 0, other = 0;  // of rows r, of rows r + 8
    if (packing == Packing::nvfp4) {
        word = other = 0x3F803F80u + (118u << 7 | 118u << 23);  // twice 2^118
    } else {
        const auto bits = [](float x) { return static_cast<std::uint32_t>(f32_to_bf16(x)); };
        const std::uint32_t bias = bits(-step * (levels - 1) / 2 * 0x1p-16f) << 16;
        word = bits(step * 0x1p117f) | bias;
        other = bits(step * (packing == Packing::affine4 ? 0x1p113f : 0x1p117f)) | bias;
    }
    launch(c, "making random weights", random_pieces_kernel, 8192, 256, 0, packing,
           static_cast<std::uint32_t*>(pieces), bytes / 4, word, other, seed);
}

}  // namespace dgemma::backend::cuda
