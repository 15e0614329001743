#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <new>
#include <utility>

#include <fmt/core.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/weight_rows.h"

namespace dgemma::backend::cpu {

HostWeight::HostWeight(const WeightView& host) : Weight(host.shape), view_(host) {
    if (host.shape.size() == 1) {
        vector_.resize(static_cast<std::size_t>(host.elements()));
        load_row(host, 0, vector_.data());
    }
}

HostLogits::HostLogits(std::int64_t rows, std::int64_t vocab)
    : vocab_(vocab),
      zt_(static_cast<std::size_t>(rows * vocab) * sizeof(float)),
      stats_(static_cast<std::size_t>(rows)),
      sums_(static_cast<std::size_t>(rows)) {}

std::span<const float> HostLogits::row(int position) {
    return {zt(position), static_cast<std::size_t>(vocab_)};
}

Result<std::unique_ptr<Storage>> HostBackend::allocate(std::size_t bytes) {
    try {
        return std::unique_ptr<Storage>(std::make_unique<HostStorage>(bytes));
    } catch (const std::bad_alloc&) {
        return Error{
            ErrorKind::io,
            fmt::format("no memory for {} more bytes of working space: use a shorter context", bytes)};
    }
}

Result<std::unique_ptr<Weight>> HostBackend::prepare_encoded(const WeightView& host) {
    if (host.encoding == Encoding::plain && host.type != Dtype::f32 && host.type != Dtype::bf16 &&
        host.type != Dtype::f16) {
        return Error{
            ErrorKind::unsupported,
            fmt::format("a weight of type {} cannot be computed with on the CPU: use f32, f16 or bf16",
                        name_of(host.type))};
    }
    return std::unique_ptr<Weight>(std::make_unique<HostWeight>(host));
}

Result<std::unique_ptr<Logits>> HostBackend::make_logits(std::int64_t rows, std::int64_t vocab) {
    try {
        return std::unique_ptr<Logits>(std::make_unique<HostLogits>(rows, vocab));
    } catch (const std::bad_alloc&) {
        return Error{ErrorKind::io,
                     fmt::format("no memory for the logits of {} rows of {} tokens", rows, vocab)};
    }
}

void HostBackend::set_logits(Logits& logits, std::span<const float> zt) {
    auto& own = static_cast<HostLogits&>(logits);
    assert(static_cast<std::int64_t>(zt.size()) == own.rows() * own.vocab());
    std::copy(zt.begin(), zt.end(), own.zt(0));
    for (std::int64_t r = 0; r < own.rows(); ++r) own.sum_of(r) = 0;
}

void HostBackend::download(const Mat& from, std::span<float> to) {
    assert(static_cast<std::int64_t>(to.size()) == from.rows * from.cols);
    std::copy_n(f32(from), to.size(), to.data());
}

void HostBackend::upload(std::span<const float> from, const Mat& to) {
    assert(static_cast<std::int64_t>(from.size()) == to.rows * to.cols);
    std::copy(from.begin(), from.end(), f32(to));
}

void HostBackend::read_memory(const void* from, std::span<std::byte> to) {
    std::memcpy(to.data(), from, to.size());
}

void HostBackend::fill_zero(const Mat& to) { std::fill_n(f32(to), to.rows * to.cols, 0.0f); }

void HostBackend::copy(const Mat& from, const Mat& to) {
    assert(from.rows == to.rows && from.cols == to.cols);
    std::copy_n(f32(from), from.rows * from.cols, f32(to));
}

void HostBackend::soft_embed(std::span<Logits* const> previous, const Weight& table, float scale,
                             const Mat& out) {
    std::int64_t first = 0;
    for (Logits* logits : previous) {
        soft_embed_canvas(static_cast<HostLogits&>(*logits), table, scale,
                          rows_of(out, first, logits->rows()));
        first += logits->rows();
    }
}

void HostBackend::store_kv(const Mat& k, const Mat& v, std::span<const AttentionSegment> segments,
                           std::span<const std::int32_t> positions, int kv_heads) {
    const std::int64_t head_dim = k.cols / kv_heads;
    for (const AttentionSegment& s : segments) {
        for (std::int64_t r = s.first_row; r < s.first_row + s.rows; ++r) {
            const std::int64_t slot = positions[static_cast<std::size_t>(r)] % s.cache.capacity;
            const auto page = static_cast<std::size_t>(slot / page_tokens);
            for (int h = 0; h < kv_heads; ++h) {
                const std::int64_t at = (h * page_tokens + slot % page_tokens) * head_dim;
                const auto write = [&](const Mat& from, void* to) {
                    const float* source = row(from, r) + h * head_dim;
                    if (s.cache.type == Dtype::bf16) {
                        auto* out = static_cast<std::uint16_t*>(to) + at;
                        for (std::int64_t d = 0; d < head_dim; ++d) out[d] = f32_to_bf16(source[d]);
                    } else if (s.cache.type == Dtype::f16) {
                        auto* out = static_cast<std::uint16_t*>(to) + at;
                        for (std::int64_t d = 0; d < head_dim; ++d) out[d] = f32_to_f16(source[d]);
                    } else {
                        std::copy_n(source, head_dim, static_cast<float*>(to) + at);
                    }
                };
                write(k, s.cache.keys[page]);
                write(v, s.cache.values[page]);
            }
        }
    }
}

void HostBackend::watch(const Mat& x, std::int32_t stage) {
    assert(x.rows == static_cast<std::int64_t>(marks_.size()));
    for (std::int64_t r = 0; r < x.rows; ++r) watch_row(row(x, r), x.cols, r, stage);
}

void HostBackend::watch_row(const float* values, std::int64_t n, std::int64_t r, std::int32_t stage) {
    // Exponent bits all set: an integer test, which the compiler may vectorise where it may not reorder sums.
    std::uint32_t broken = 0;
    for (std::int64_t c = 0; c < n; ++c) {
        broken |= static_cast<std::uint32_t>((std::bit_cast<std::uint32_t>(values[c]) & 0x7F800000u) ==
                                             0x7F800000u);
    }
    std::int32_t& mark = marks_[static_cast<std::size_t>(r)];
    if (broken != 0 && mark < 0) mark = stage;
}

void HostBackend::begin_stage(Stage stage) {
    close_stage();
    stage_ = stage;
    stage_begin_ = std::chrono::steady_clock::now();
}

void HostBackend::close_stage() {
    if (!stage_) return;
    stage_ms_[static_cast<std::size_t>(*stage_)] +=
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - stage_begin_).count();
    stage_.reset();
}

std::array<double, kStages> HostBackend::take_stage_times() { return std::exchange(stage_ms_, {}); }

}  // namespace dgemma::backend::cpu
