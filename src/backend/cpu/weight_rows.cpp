#include "backend/cpu/weight_rows.h"

#include <cassert>
#include <cstring>

#include "base/small_floats.h"

namespace dgemma::backend::cpu {

namespace {

std::uint16_t half_at(const std::byte* base, std::int64_t i) {
    std::uint16_t bits;  // files promise no alignment
    std::memcpy(&bits, base + 2 * i, 2);
    return bits;
}

float float_at(const std::byte* base, std::int64_t i) {
    float value;
    std::memcpy(&value, base + 4 * i, 4);
    return value;
}

void load_plain(const WeightView& w, std::int64_t first, std::int64_t count, float* out) {
    if (w.type == Dtype::f32) {
        std::memcpy(out, w.codes + 4 * first, static_cast<std::size_t>(count) * 4);
    } else if (w.type == Dtype::bf16) {
        const std::byte* from = w.codes + 2 * first;
        for (std::int64_t i = 0; i < count; ++i) out[i] = bf16_to_f32(half_at(from, i));
    } else {
        for (std::int64_t i = 0; i < count; ++i) out[i] = f16_to_f32(half_at(w.codes, first + i));
    }
}

// The code of column c of a tile's row, of an affine encoding.
unsigned tile_code(const WeightView& w, const TileView& tile, std::int64_t row, std::int64_t c) {
    if (w.encoding == Encoding::affine8) {
        return std::to_integer<unsigned>(tile.codes[(c / 4 * kTileRows + row) * 4 + c % 4]);
    }
    const unsigned byte = std::to_integer<unsigned>(tile.codes[(c / 8 * kTileRows + row) * 4 + c % 4]);
    return c % 8 < 4 ? byte & 15u : byte >> 4;
}

unsigned nibble(const std::byte* codes, std::int64_t i) {
    const unsigned byte = std::to_integer<unsigned>(codes[i / 2]);
    return i % 2 == 0 ? byte & 15u : byte >> 4;
}

}  // namespace

std::int64_t rows_of(const WeightView& w) { return w.shape.size() < 2 ? 1 : w.shape[w.shape.size() - 2]; }
std::int64_t cols_of(const WeightView& w) { return w.shape.back(); }

TileView tile_of(const WeightView& w, std::int64_t matrix, std::int64_t row) {
    assert(w.layout == Layout::tiles);
    const std::int64_t cols = cols_of(w);
    const std::int64_t tile = matrix * ((rows_of(w) + kTileRows - 1) / kTileRows) + row / kTileRows;
    const std::int64_t bits = w.encoding == Encoding::affine4 ? 4 : w.encoding == Encoding::affine8 ? 8 : 16;
    TileView out{w.codes + tile * kTileRows * cols * bits / 8, nullptr, nullptr};
    if (w.encoding != Encoding::plain) {
        const std::int64_t at = tile * kTileRows * (cols / kAffineGroup) * 2;
        out.scales = reinterpret_cast<const std::uint16_t*>(w.scales + at);
        out.biases = reinterpret_cast<const std::uint16_t*>(w.biases + at);
    }
    return out;
}

void load_part(const WeightView& w, std::int64_t row, std::int64_t first, std::int64_t count, float* out) {
    assert(w.encoding == Encoding::plain && w.layout == Layout::rows);
    load_plain(w, row * cols_of(w) + first, count, out);
}

void load_row(const WeightView& w, std::int64_t row, float* out) {
    const std::int64_t cols = cols_of(w);
    if (w.layout == Layout::tiles) {
        const std::int64_t within = row % rows_of(w);
        const TileView tile = tile_of(w, row / rows_of(w), within);
        const std::int64_t r = within % kTileRows;
        for (std::int64_t c = 0; c < cols; ++c) {
            if (w.encoding == Encoding::plain) {
                out[c] = bf16_to_f32(half_at(tile.codes, (c / 2 * kTileRows + r) * 2 + c % 2));
            } else {
                const std::int64_t group = c / kAffineGroup * kTileRows + r;
                out[c] = static_cast<float>(tile_code(w, tile, r, c)) * bf16_to_f32(tile.scales[group]) +
                         bf16_to_f32(tile.biases[group]);
            }
        }
        return;
    }
    switch (w.encoding) {
        case Encoding::plain:
            load_plain(w, row * cols, cols, out);
            return;
        case Encoding::affine8:
        case Encoding::affine4:
            for (std::int64_t c = 0; c < cols; ++c) {
                const std::int64_t group = (row * cols + c) / kAffineGroup;
                const unsigned code = w.encoding == Encoding::affine8
                                          ? std::to_integer<unsigned>(w.codes[row * cols + c])
                                          : nibble(w.codes, row * cols + c);
                out[c] = static_cast<float>(code) * bf16_to_f32(half_at(w.scales, group)) +
                         bf16_to_f32(half_at(w.biases, group));
            }
            return;
        case Encoding::fp8_row:
            for (std::int64_t c = 0; c < cols; ++c)
                out[c] = e4m3_to_f32(std::to_integer<std::uint8_t>(w.codes[row * cols + c])) *
                         float_at(w.scales, row);
            return;
        case Encoding::nvfp4: {
            const float global = float_at(w.globals, row / rows_of(w));
            for (std::int64_t c = 0; c < cols; ++c) {
                out[c] =
                    e2m1_to_f32(nibble(w.codes, row * cols + c)) *
                    e4m3_to_f32(std::to_integer<std::uint8_t>(w.scales[(row * cols + c) / kNvfp4Group])) *
                    global;
            }
            return;
        }
    }
}

}  // namespace dgemma::backend::cpu
