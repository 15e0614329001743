#include "files/quantizers.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "base/quote.h"
#include "base/small_floats.h"
#include "files/mapping.h"

namespace dgemma::files {

namespace {

constexpr std::uint32_t largest_bits = std::bit_cast<std::uint32_t>(kLargestWeight);

void put_f32(std::byte* to, float value) { std::memcpy(to, &value, sizeof(value)); }

}  // namespace

const QuantizeKernels* quantize_kernels_named(std::string_view name) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (name == quantize_avx512.name && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq")) {
        return &quantize_avx512;
    }
    if (name == quantize_avx2.name && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &quantize_avx2;
#endif
    return name == quantize_baseline.name ? &quantize_baseline : nullptr;
}

const QuantizeKernels& choose_quantize_kernels() {
    static const QuantizeKernels& chosen = []() -> const QuantizeKernels& {
        for (const char* name : {"avx512", "avx2"}) {
            if (const QuantizeKernels* kernels = quantize_kernels_named(name)) return *kernels;
        }
        return quantize_baseline;
    }();
    return chosen;
}

bool can_encode(const WeightForm& form) {
    if (!weight_grid(form.shape, form.encoding, form.layout, form.type)) return false;
    switch (form.encoding) {
        case Encoding::plain:
            return form.type == Dtype::f32 || form.type == Dtype::bf16 || form.type == Dtype::f16;
        case Encoding::affine8:
        case Encoding::affine4:
            return form.layout == Layout::tiles;
        case Encoding::fp8_row:
        case Encoding::nvfp4:
            return form.layout == Layout::rows;
    }
    return false;
}

void RowSource::release(std::int64_t /*first*/, std::int64_t /*last*/) const {}

void StoredRows::release(std::int64_t first, std::int64_t last) const {
    if (!mapped_) return;
    // Of tiles only whole ones: a neighbour may still be reading the others.
    const auto place = [&](std::int64_t row) {
        const std::int64_t within = row % grid_.rows;
        return grid_.offset(row / grid_.rows,
                            weight_.layout == Layout::tiles ? within - within % kTileRows : within);
    };
    const WeightBytes begin = place(first), end = place(last);
    const auto release_part = [](const std::byte* part, std::uint64_t from, std::uint64_t to) {
        if (part != nullptr && from < to) release_pages({part + from, static_cast<std::size_t>(to - from)});
    };
    release_part(weight_.codes, begin.codes, end.codes);
    release_part(weight_.scales, begin.scales, end.scales);
    release_part(weight_.biases, begin.biases, end.biases);
}

// One tile of rows in f32. The rows stand an odd number of cache lines apart, or columns of wide tiles would
// all fall into a few sets of the cache.
struct WeightEncoder::Scratch {
    explicit Scratch(std::int64_t cols)
        : stride((cols + 15) / 16 * 16 + ((cols + 15) / 16 % 2 == 0 ? 16 : 0)),
          values(new float[static_cast<std::size_t>(stride * kTileRows)]) {}

    [[nodiscard]] float* row(std::int64_t r) const { return values.get() + r * stride; }

    std::int64_t stride;
    std::unique_ptr<float[]> values;
};

WeightEncoder::WeightEncoder(std::string name, WeightForm form, const RowSource& rows,
                             const QuantizeKernels& kernels)
    : name_(std::move(name)), form_(std::move(form)), rows_(rows), kernels_(kernels) {
    assert(can_encode(form_));
    grid_ = *weight_grid(form_.shape, form_.encoding, form_.layout, form_.type);
    if (form_.encoding == Encoding::nvfp4) globals_.resize(static_cast<std::size_t>(grid_.matrices));
}

WeightBytes WeightEncoder::offset(std::int64_t tile) const {
    return grid_.offset(tile / grid_.tiles, tile % grid_.tiles * kTileRows);
}

std::int64_t WeightEncoder::first_row(std::int64_t tile) const {
    return tile / grid_.tiles * grid_.rows + tile % grid_.tiles * kTileRows;
}

std::int64_t WeightEncoder::rows_in(std::int64_t tile) const {
    return std::min(kTileRows, grid_.rows - tile % grid_.tiles * kTileRows);
}

// Fills the scratch and returns the largest magnitude in it, as bits.
std::uint32_t WeightEncoder::read_tile(std::int64_t tile, Scratch& scratch) const {
    const std::int64_t count = rows_in(tile);
    std::uint32_t magnitude = 0;
    for (std::int64_t r = 0; r < count; ++r) {
        rows_.read(first_row(tile) + r, scratch.row(r));
        magnitude = std::max(magnitude, kernels_.magnitude(scratch.row(r), grid_.cols));
    }
    for (std::int64_t r = count; r < kTileRows; ++r) std::fill_n(scratch.row(r), grid_.cols, 0.0f);
    return magnitude;
}

Error WeightEncoder::bad_number(std::int64_t tile) const {
    Scratch scratch(grid_.cols);
    for (std::int64_t r = 0; r < rows_in(tile); ++r) {
        rows_.read(first_row(tile) + r, scratch.row(r));
        for (std::int64_t c = 0; c < grid_.cols; ++c) {
            const float value = scratch.row(r)[c];
            if (std::abs(value) <= kLargestWeight) continue;
            Shape place;
            if (grid_.matrices > 1) place.push_back(tile / grid_.tiles);
            if (form_.shape.size() > 1) place.push_back(tile % grid_.tiles * kTileRows + r);
            place.push_back(c);
            const std::string what = std::isnan(value)   ? "a NaN"
                                     : std::isinf(value) ? "an infinity"
                                                         : fmt::format("the number {:g}", value);
            return {ErrorKind::invalid,
                    fmt::format("Tensor {} holds {} at {}, which no weight can be: the model is damaged; "
                                "download it again.",
                                quote(name_), what, to_string(place))};
        }
    }
    return {ErrorKind::invalid,
            fmt::format("Tensor {} changed while it was read; leave the model's files alone and try again.",
                        quote(name_))};
}

void WeightEncoder::encode_tile(std::int64_t tile, const Parts& to, Scratch& scratch) const {
    const std::int64_t count = rows_in(tile);
    const TileRows rows{scratch.values.get(), scratch.stride, grid_.cols};
    switch (form_.encoding) {
        case Encoding::plain:
            if (form_.layout == Layout::tiles) {
                kernels_.bf16_tile(rows, to.codes);
                return;
            }
            for (std::int64_t r = 0; r < count; ++r) {
                std::byte* out = to.codes + static_cast<std::uint64_t>(r) * grid_.row.codes;
                if (form_.type == Dtype::f32) {
                    std::memcpy(out, scratch.row(r), grid_.row.codes);
                } else if (form_.type == Dtype::bf16) {
                    kernels_.bf16_row(scratch.row(r), grid_.cols, out);
                } else {
                    for (std::int64_t c = 0; c < grid_.cols; ++c) {
                        const std::uint16_t half = f32_to_f16(scratch.row(r)[c]);
                        std::memcpy(out + 2 * c, &half, 2);
                    }
                }
            }
            return;
        case Encoding::affine8:
            kernels_.affine8_tile(rows, to.codes, to.scales, to.biases);
            return;
        case Encoding::affine4:
            kernels_.affine4_tile(rows, to.codes, to.scales, to.biases);
            return;
        case Encoding::fp8_row:
            for (std::int64_t r = 0; r < count; ++r) {
                const float top = std::bit_cast<float>(kernels_.magnitude(scratch.row(r), grid_.cols));
                const float scale = std::max(top / kLargestE4m3, 0x1p-126f);
                kernels_.fp8_row(scratch.row(r), grid_.cols, scale, to.codes + r * grid_.cols);
                put_f32(to.scales + 4 * r, scale);
            }
            return;
        case Encoding::nvfp4:
            kernels_.nvfp4_tile(rows, count, globals_[static_cast<std::size_t>(tile / grid_.tiles)], to.codes,
                                to.scales);
            return;
    }
}

Status WeightEncoder::find_globals(std::int64_t first, std::int64_t last, ThreadPool& pool) {
    const std::int64_t matrices = (last + grid_.tiles - 1) / grid_.tiles;
    const std::int64_t begin = std::max(globals_known_, first / grid_.tiles);
    if (begin >= matrices) return {};
    std::vector<std::atomic<std::uint32_t>> tops(static_cast<std::size_t>(matrices - begin));
    pool.parallel_for((matrices - begin) * grid_.tiles, 4, [&](std::int64_t from, std::int64_t to) {
        Scratch scratch(grid_.cols);
        for (std::int64_t i = from; i < to; ++i) {
            const std::uint32_t top = read_tile(begin * grid_.tiles + i, scratch);
            auto& largest = tops[static_cast<std::size_t>(i / grid_.tiles)];
            std::uint32_t before = largest.load();
            while (before < top && !largest.compare_exchange_weak(before, top)) {
            }
        }
    });
    for (std::size_t i = 0; i < tops.size(); ++i) {
        // A bad number is found again, and its place, when its tile is encoded.
        const float top = std::bit_cast<float>(std::min(tops[i].load(), largest_bits));
        globals_[static_cast<std::size_t>(begin) + i] =
            std::max(top / (kLargestE4m3 * kLargestE2m1), 0x1p-100f);
    }
    globals_known_ = matrices;
    return {};
}

Status WeightEncoder::encode(std::int64_t first, std::int64_t last, const Parts& to, ThreadPool& pool) {
    if (form_.encoding == Encoding::nvfp4) DGEMMA_CHECK(find_globals(first, last, pool));
    const WeightBytes start = offset(first);
    std::atomic<std::int64_t> bad{last};
    pool.parallel_for(last - first, 4, [&](std::int64_t from, std::int64_t end) {
        Scratch scratch(grid_.cols);
        for (std::int64_t tile = first + from; tile < first + end; ++tile) {
            if (read_tile(tile, scratch) > largest_bits) {
                // Each range ends at its first, so the least of them is the first of all.
                std::int64_t before = bad.load();
                while (tile < before && !bad.compare_exchange_weak(before, tile)) {
                }
                return;
            }
            const WeightBytes at = offset(tile);
            encode_tile(tile,
                        {to.codes + (at.codes - start.codes), to.scales + (at.scales - start.scales),
                         to.biases + (at.biases - start.biases)},
                        scratch);
        }
    });
    if (bad.load() < last) return bad_number(bad.load());
    return {};
}

Result<OwnedWeight> encode_weight(const std::string& name, const WeightForm& form, const RowSource& rows,
                                  ThreadPool& pool, const QuantizeKernels& kernels) {
    if (!can_encode(form)) {
        return Error{ErrorKind::unsupported,
                     fmt::format("Tensor {} of shape {} cannot be written as {} in {}.", quote(name),
                                 to_string(form.shape), name_of(form.encoding), name_of(form.layout))};
    }
    WeightEncoder encoder(name, form, rows, kernels);
    const WeightBytes bytes = encoder.grid().total();
    OwnedWeight out;
    out.codes = Buffer(bytes.codes);
    out.scales = Buffer(bytes.scales);
    out.biases = Buffer(bytes.biases);
    DGEMMA_CHECK(
        encoder.encode(0, encoder.tiles(), {out.codes.data(), out.scales.data(), out.biases.data()}, pool));
    out.globals = Buffer(bytes.globals);
    if (bytes.globals != 0) std::memcpy(out.globals.data(), encoder.globals().data(), bytes.globals);
    out.view = {.shape = form.shape,
                .encoding = form.encoding,
                .layout = form.layout,
                .type = form.type,
                .codes = out.codes.data(),
                .scales = out.scales.data(),
                .biases = out.biases.data(),
                .globals = out.globals.data()};
    return out;
}

}  // namespace dgemma::files
