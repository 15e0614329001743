// Weights back to f32, and from layout to layout.
#include <algorithm>
#include <cassert>
#include <cstring>

#include <fmt/format.h>

#include "base/small_floats.h"
#include "files/quantizers.h"

namespace dgemma::files {

namespace {

template <class T>
T load(const std::byte* base, std::uint64_t i) {
    T value;  // files promise no alignment
    std::memcpy(&value, base + i * sizeof(T), sizeof(T));
    return value;
}

WeightGrid grid_of(const WeightView& w) {
    const auto grid = weight_grid(w);
    assert(grid && "a weight that exists");
    return *grid;
}

unsigned bits_of(const WeightView& w) {
    switch (w.encoding) {
        case Encoding::plain:
            return static_cast<unsigned>(size_of(w.type)) * 8;
        case Encoding::affine8:
        case Encoding::fp8_row:
            return 8;
        case Encoding::affine4:
        case Encoding::nvfp4:
            return 4;
    }
    return 8;
}

// Where the code of an element stands: a byte, and for four bits which half of it.
struct Place {
    std::uint64_t byte = 0;
    bool high = false;
};

// The places of one row, counted from the first of all rows.
class RowPlaces {
  public:
    RowPlaces(const WeightView& w, const WeightGrid& grid, std::int64_t row)
        : bits_(bits_of(w)), tiled_(w.layout == Layout::tiles) {
        const std::int64_t within = row % grid.rows;
        if (tiled_) {
            const WeightBytes tile = grid.offset(row / grid.rows, within - within % kTileRows);
            lane_ = static_cast<std::uint64_t>(within % kTileRows);
            codes_ = tile.codes + lane_ * 4;
            groups_ = tile.scales / 2 + lane_;
        } else {
            codes_ = static_cast<std::uint64_t>(row) * grid.row.codes;
            groups_ = static_cast<std::uint64_t>(row * (grid.cols / group_of(w.encoding)));
        }
    }

    [[nodiscard]] Place code(std::int64_t col) const {
        const auto c = static_cast<std::uint64_t>(col);
        if (!tiled_) return {codes_ + c * bits_ / 8, bits_ == 4 && c % 2 != 0};
        if (bits_ == 4) return {codes_ + c / 8 * (kTileRows * 4) + c % 4, c % 8 >= 4};
        const unsigned per_word = 32 / bits_;
        return {codes_ + c / per_word * (kTileRows * 4) + c % per_word * (bits_ / 8), false};
    }

    // The index of a group's scale and bias among all of them.
    [[nodiscard]] std::uint64_t group(std::int64_t index) const {
        return groups_ + static_cast<std::uint64_t>(index) * (tiled_ ? kTileRows : 1);
    }

    [[nodiscard]] unsigned code_at(const WeightView& w, std::int64_t col) const {
        const Place place = code(col);
        const auto byte = std::to_integer<unsigned>(w.codes[place.byte]);
        if (bits_ == 8) return byte;
        return place.high ? byte >> 4 : byte & 15u;
    }

  private:
    unsigned bits_;
    bool tiled_;
    std::uint64_t lane_ = 0, codes_ = 0, groups_ = 0;
};

float plain_at(const WeightView& w, std::uint64_t byte) {
    switch (w.type) {
        case Dtype::f32:
            return load<float>(w.codes + byte, 0);
        case Dtype::bf16:
            return bf16_to_f32(load<std::uint16_t>(w.codes + byte, 0));
        case Dtype::f16:
            return f16_to_f32(load<std::uint16_t>(w.codes + byte, 0));
        default:
            assert(!"a floating type");
            return 0;
    }
}

void decode_row(const WeightView& w, const WeightGrid& grid, std::int64_t row, float* out) {
    const RowPlaces places(w, grid, row);
    const std::int64_t group = group_of(w.encoding);
    switch (w.encoding) {
        case Encoding::plain:
            for (std::int64_t c = 0; c < grid.cols; ++c) out[c] = plain_at(w, places.code(c).byte);
            return;
        case Encoding::affine8:
        case Encoding::affine4:
            for (std::int64_t c = 0; c < grid.cols; c += group) {
                const float scale = bf16_to_f32(load<std::uint16_t>(w.scales, places.group(c / group)));
                const float bias = bf16_to_f32(load<std::uint16_t>(w.biases, places.group(c / group)));
                for (std::int64_t i = c; i < c + group; ++i)
                    out[i] = scale * static_cast<float>(places.code_at(w, i)) + bias;
            }
            return;
        case Encoding::fp8_row: {
            const float scale = load<float>(w.scales, static_cast<std::uint64_t>(row));
            for (std::int64_t c = 0; c < grid.cols; ++c)
                out[c] = e4m3_to_f32(static_cast<std::uint8_t>(places.code_at(w, c))) * scale;
            return;
        }
        case Encoding::nvfp4: {
            const float global = load<float>(w.globals, static_cast<std::uint64_t>(row / grid.rows));
            for (std::int64_t c = 0; c < grid.cols; c += group) {
                const float scale = e4m3_to_f32(load<std::uint8_t>(w.scales, places.group(c / group)));
                for (std::int64_t i = c; i < c + group; ++i)
                    out[i] = e2m1_to_f32(places.code_at(w, i)) * scale * global;
            }
            return;
        }
    }
}

}  // namespace

void decode_rows(const WeightView& weight, std::int64_t first, std::int64_t count, float* out,
                 std::int64_t stride) {
    const WeightGrid grid = grid_of(weight);
    // Plain rows are what every conversion starts from: not element by element.
    if (weight.encoding == Encoding::plain && weight.layout == Layout::rows && weight.type != Dtype::f16) {
        for (std::int64_t r = 0; r < count; ++r) {
            const std::byte* from = weight.codes + static_cast<std::uint64_t>(first + r) * grid.row.codes;
            if (weight.type == Dtype::bf16) {
                choose_quantize_kernels().widen(from, grid.cols, out + r * stride);
            } else {
                std::memcpy(out + r * stride, from, grid.row.codes);
            }
        }
        return;
    }
    for (std::int64_t r = 0; r < count; ++r) decode_row(weight, grid, first + r, out + r * stride);
}

StoredRows::StoredRows(WeightView weight, bool mapped)
    : weight_(std::move(weight)), grid_(grid_of(weight_)), mapped_(mapped) {}

void StoredRows::read(std::int64_t row, float* out) const { decode_rows(weight_, row, 1, out, grid_.cols); }

Result<OwnedWeight> with_layout(const WeightView& weight, Layout layout) {
    const auto wanted = weight_grid(weight.shape, weight.encoding, layout, weight.type);
    const auto given = weight_grid(weight);
    if (!wanted || !given) {
        return Error{ErrorKind::unsupported,
                     fmt::format("A weight of shape {} cannot be {} in {}.", to_string(weight.shape),
                                 name_of(weight.encoding), name_of(layout))};
    }
    OwnedWeight out;
    const WeightBytes bytes = wanted->total();
    out.codes = Buffer(bytes.codes);
    out.scales = Buffer(bytes.scales);
    out.biases = Buffer(bytes.biases);
    out.globals = Buffer(bytes.globals);
    std::memset(out.codes.data(), 0, bytes.codes);  // rows that fill the last tile are zeros
    if (bytes.scales != 0) std::memset(out.scales.data(), 0, bytes.scales);
    if (bytes.biases != 0) std::memset(out.biases.data(), 0, bytes.biases);
    if (bytes.globals != 0) std::memcpy(out.globals.data(), weight.globals, bytes.globals);
    out.view = weight;
    out.view.layout = layout;
    out.view.codes = out.codes.data();
    out.view.scales = out.scales.data();
    out.view.biases = out.biases.data();
    out.view.globals = out.globals.data();

    const std::size_t element = bits_of(weight) / 8;
    const bool affine = weight.encoding == Encoding::affine8 || weight.encoding == Encoding::affine4;
    for (std::int64_t row = 0; row < given->matrices * given->rows; ++row) {
        const RowPlaces from(weight, *given, row), to(out.view, *wanted, row);
        for (std::int64_t c = 0; c < given->cols; ++c) {
            const Place source = from.code(c), target = to.code(c);
            if (element != 0) {
                std::memcpy(out.codes.data() + target.byte, weight.codes + source.byte, element);
            } else {
                out.codes.data()[target.byte] |=
                    static_cast<std::byte>(from.code_at(weight, c) << (target.high ? 4 : 0));
            }
        }
        for (std::int64_t g = 0; affine && g < given->cols / kAffineGroup; ++g) {
            std::memcpy(out.scales.data() + 2 * to.group(g), weight.scales + 2 * from.group(g), 2);
            std::memcpy(out.biases.data() + 2 * to.group(g), weight.biases + 2 * from.group(g), 2);
        }
    }
    if (!affine && bytes.scales != 0) std::memcpy(out.scales.data(), weight.scales, bytes.scales);
    return out;
}

}  // namespace dgemma::files
