#include "files/pack_compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>

#include "base/small_floats.h"

namespace dgemma::files {

namespace {

// The share of what is allowed; nothing allowed and nothing taken is no share.
double share(double taken, double allowed) { return taken == 0 ? 0 : taken / allowed; }

// Half a scale of the covering rule, and what rounding the sum to f32 adds: the range from the bias (at most
// 2^-7 of the least value below it) in equal steps, rounded up to bf16 (by at most 2^-7).
double affine_bound(const float* x, double levels) {
    const auto [low, high] = std::minmax_element(x, x + kAffineGroup);
    const double range = double{*high} - double{*low} + std::abs(double{*low}) * 0x1p-7;
    const double scale = std::max(range / levels * (1 + 0x1p-7), 0x1p-126);
    return scale / 2 + (std::abs(double{*low}) + std::abs(double{*high})) * 0x1p-23;
}

double worst_of_affine8(const float* x, const float* y) {
    double largest = 0;
    for (std::int64_t i = 0; i < kAffineGroup; ++i)
        largest = std::max(largest, std::abs(double{x[i]} - double{y[i]}));
    return share(largest, affine_bound(x, 255));
}

double worst_of_affine4(const float* x, const float* y) {
    double squares = 0;
    for (std::int64_t i = 0; i < kAffineGroup; ++i) squares += std::pow(double{x[i]} - double{y[i]}, 2);
    return share(std::sqrt(squares / kAffineGroup), affine_bound(x, 15));
}

// Of the group whose largest magnitude is put at 6: half the distance of neighbouring codes, and beyond the
// last one what the scale's own rounding leaves out, which is less.
double worst_of_nvfp4(const float* x, const float* y, double global) {
    double top = 0, squares = 0, allowed = 0;
    for (std::int64_t i = 0; i < kNvfp4Group; ++i) top = std::max(top, std::abs(double{x[i]}));
    const auto code = std::max<std::uint8_t>(f32_to_e4m3(static_cast<float>(top / 6 / global)), 1);
    const double scale = double{e4m3_to_f32(code)} * global;
    for (std::int64_t i = 0; i < kNvfp4Group; ++i) {
        const double steps = std::abs(double{x[i]}) / scale;
        squares += std::pow((double{x[i]} - double{y[i]}) / scale, 2);
        allowed += std::pow(steps < 2 ? 0.25 : steps < 4 ? 0.5 : 1, 2);
    }
    return share(std::sqrt(squares), std::sqrt(allowed));
}

double worst_of_fp8(const float* x, const float* y, std::int64_t n) {
    float top = 0;
    for (std::int64_t i = 0; i < n; ++i) top = std::max(top, std::abs(x[i]));
    const double scale = std::max(double{top} / double{kLargestE4m3}, 0x1p-126);
    double worst = 0;
    for (std::int64_t i = 0; i < n; ++i) {
        const double allowed = std::max(std::abs(double{x[i]}) * 0x1p-4, scale * 0x1p-10);
        worst = std::max(worst, share(std::abs(double{x[i]} - double{y[i]}), allowed));
    }
    return worst;
}

// Plain numbers are the same, or rounded to bf16 once.
double worst_of_plain(const float* x, const float* y, std::int64_t n, Dtype type) {
    double worst = 0;
    for (std::int64_t i = 0; i < n; ++i) {
        const double allowed = type == Dtype::bf16 ? std::max(std::abs(double{x[i]}) * 0x1p-8, 0x1p-134) : 0;
        worst = std::max(worst, share(std::abs(double{x[i]} - double{y[i]}), allowed));
    }
    return worst;
}

double worst_of_row(const WeightView& w, double global, const float* x, const float* y, std::int64_t n) {
    double worst = 0;
    switch (w.encoding) {
        case Encoding::plain:
            return worst_of_plain(x, y, n, w.type);
        case Encoding::fp8_row:
            return worst_of_fp8(x, y, n);
        case Encoding::affine8:
            for (std::int64_t c = 0; c < n; c += kAffineGroup)
                worst = std::max(worst, worst_of_affine8(x + c, y + c));
            return worst;
        case Encoding::affine4:
            for (std::int64_t c = 0; c < n; c += kAffineGroup)
                worst = std::max(worst, worst_of_affine4(x + c, y + c));
            return worst;
        case Encoding::nvfp4:
            for (std::int64_t c = 0; c < n; c += kNvfp4Group)
                worst = std::max(worst, worst_of_nvfp4(x + c, y + c, global));
            return worst;
    }
    return worst;
}

}  // namespace

void WeightError::add(const WeightError& other) {
    squares += other.squares;
    source_squares += other.source_squares;
    elements += other.elements;
    worst = std::max(worst, other.worst);
}

double WeightError::relative() const {
    return source_squares == 0 ? std::sqrt(squares) : std::sqrt(squares / source_squares);
}

Result<WeightError> compare_weight(const StoredRows& stored, const RowSource& source, ThreadPool& pool,
                                   const LongRun& run) {
    const WeightView& view = stored.view();
    const auto grid = weight_grid(view);
    const std::int64_t rows = grid->matrices * grid->rows, cols = grid->cols;
    const auto width = static_cast<std::size_t>(cols);
    // About 64 MB of bf16 between two releases, in pieces of half a megabyte.
    const std::int64_t block = std::max<std::int64_t>(1, (std::int64_t{1} << 25) / cols);
    const std::int64_t piece = std::max<std::int64_t>(1, (std::int64_t{1} << 18) / cols);
    WeightError sum;
    std::mutex mutex;
    for (std::int64_t first = 0; first < rows; first += block) {
        const std::int64_t last = std::min(first + block, rows);
        pool.parallel_for(last - first, piece, [&](std::int64_t begin, std::int64_t end) {
            if (run.stopped()) return;
            const std::unique_ptr<float[]> x(new float[width]), y(new float[width]);
            WeightError own;
            for (std::int64_t row = first + begin; row < first + end; ++row) {
                source.read(row, x.get());
                stored.read(row, y.get());
                float global = 1;
                if (view.encoding == Encoding::nvfp4)
                    std::memcpy(&global, view.globals + 4 * (row / grid->rows), sizeof(global));
                for (std::size_t c = 0; c < width; ++c) {
                    const double error = double{x[c]} - double{y[c]};
                    own.squares += error * error;
                    own.source_squares += double{x[c]} * double{x[c]};
                }
                const double worst = worst_of_row(view, double{global}, x.get(), y.get(), cols);
                own.worst = std::isnan(worst) ? INFINITY : std::max(own.worst, worst);
            }
            own.elements = (end - begin) * cols;
            run.advance(static_cast<std::uint64_t>(own.elements) * 2);
            const std::lock_guard lock(mutex);
            sum.add(own);
        });
        if (run.stopped()) return Error{ErrorKind::cancelled, "The check was stopped."};
        source.release(first, last);
        stored.release(first, last);
    }
    return sum;
}

}  // namespace dgemma::files
