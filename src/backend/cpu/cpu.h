// The CPU backends and what they share: f32 activations in host memory, weights read where the file mapping
// left them.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "backend/backend.h"

namespace dgemma::backend {

// The strict scalar backend: the oracle every faster kernel is tested against. One thread, no vector code,
// sums in double rounded once to f32. e4m3_activations: rows that meet a weight in E4M3 (Encoding::fp8_row)
// become E4M3 before (base/e4m3_rows.h), as on a card with CudaOptions::e4m3_activations, whose oracle this
// is. No other CPU backend does that: no CPU multiplies E4M3, so it would cost answers and save nothing.
std::unique_ptr<Backend> make_reference_backend(Precision precision, bool e4m3_activations = false);

// The instruction sets that the plain backend has kernels for and this machine runs, weakest first. The last
// one is what it uses unless told otherwise. All names: "baseline" (what every machine of this kind has);
// "avx2" (with FMA), "avx512" (F, BW, VL, DQ), "avx512_bf16_vnni"; "neon", "neon_dot", "neon_i8mm_bf16".
std::vector<std::string_view> available_isas();

// Threaded kernels for the instruction set of this name; empty for the best one. Null where this machine
// cannot run it.
std::unique_ptr<Backend> make_plain_backend(Precision precision, int threads, std::string_view isa = {},
                                            bool pin = false);

namespace cpu {

class HostStorage final : public Storage {
  public:
    explicit HostStorage(std::size_t bytes) : buffer_(bytes) {}
    void* data() override { return buffer_.data(); }
    [[nodiscard]] std::size_t bytes() const override { return buffer_.size(); }

  private:
    Buffer buffer_;
};

// A view of the file's bytes; vectors are copied to f32 since every use wants them so.
class HostWeight final : public Weight {
  public:
    explicit HostWeight(const WeightView& host);
    [[nodiscard]] const WeightView& view() const { return view_; }
    [[nodiscard]] const float* vector() const { return vector_.data(); }  // [n]; of one-dimensional weights

  private:
    WeightView view_;
    std::vector<float> vector_;
};

class HostLogits final : public Logits {
  public:
    HostLogits(std::int64_t rows, std::int64_t vocab);
    [[nodiscard]] std::int64_t rows() const override { return static_cast<std::int64_t>(stats_.size()); }
    [[nodiscard]] std::int64_t vocab() const { return vocab_; }
    [[nodiscard]] std::span<const RowStats> stats() const override { return stats_; }
    [[nodiscard]] std::span<const float> row(int position) override;
    [[nodiscard]] float* zt(std::int64_t r) { return zt_.as<float>().data() + r * vocab_; }
    [[nodiscard]] RowStats& stats_of(std::int64_t r) { return stats_[static_cast<std::size_t>(r)]; }
    // The sum of e^(zt - max) of a row; 0 where nobody has counted it.
    [[nodiscard]] float& sum_of(std::int64_t r) { return sums_[static_cast<std::size_t>(r)]; }

  private:
    std::int64_t vocab_;
    Buffer zt_;  // f32 [rows, vocab]
    std::vector<RowStats> stats_;
    std::vector<float> sums_;
};

inline const HostWeight& host(const Weight& w) { return static_cast<const HostWeight&>(w); }
inline float* f32(const Mat& m) { return static_cast<float*>(m.data); }
inline float* row(const Mat& m, std::int64_t r) { return f32(m) + r * m.cols; }

// Memory of the host, common to every CPU backend.
class HostBackend : public Backend {
  public:
    explicit HostBackend(Precision precision) : precision_(precision) {}
    [[nodiscard]] Precision precision() const override { return precision_; }
    [[nodiscard]] std::size_t activation_bytes() const override { return sizeof(float); }
    Result<std::unique_ptr<Storage>> allocate(std::size_t bytes) override;
    Result<std::unique_ptr<Weight>> prepare(const Tensor& host) override {
        return prepare_encoded(WeightView::of(host));
    }
    Result<std::unique_ptr<Weight>> prepare_encoded(const WeightView& host) override;
    Result<std::unique_ptr<Logits>> make_logits(std::int64_t rows, std::int64_t vocab) override;
    void set_logits(Logits& logits, std::span<const float> zt) override;
    void download(const Mat& from, std::span<float> to) override;
    void upload(std::span<const float> from, const Mat& to) override;
    void read_memory(const void* from, std::span<std::byte> to) override;
    void fill_zero(const Mat& to) override;
    void copy(const Mat& from, const Mat& to) override;
    void store_kv(const Mat& k, const Mat& v, std::span<const AttentionSegment> segments,
                  std::span<const std::int32_t> positions, int kv_heads) override;
    void soft_embed(std::span<Logits* const> previous, const Weight& table, float scale,
                    const Mat& out) final;
    Status begin_pass(const PassInputs& inputs) override {
        marks_.assign(static_cast<std::size_t>(inputs.rows), -1);
        return {};
    }
    Result<std::span<const std::int32_t>> end_pass() override {
        close_stage();
        return std::span<const std::int32_t>(marks_);
    }
    void watch(const Mat& x, std::int32_t stage) override;
    void begin_stage(Stage stage) override;
    std::array<double, kStages> take_stage_times() override;

  protected:
    // rb of the contract: a rounding point of the bf16 profile.
    [[nodiscard]] float rb(float x) const { return precision_ == Precision::bf16 ? round_bf16(x) : x; }
    // soft_embed of one canvas.
    virtual void soft_embed_canvas(HostLogits& previous, const Weight& table, float scale,
                                   const Mat& out) = 0;
    // watch for row r alone; rows may be watched by several threads.
    void watch_row(const float* values, std::int64_t n, std::int64_t r, std::int32_t stage);

  private:
    void close_stage();

    Precision precision_;
    std::array<double, kStages> stage_ms_{};
    std::optional<Stage> stage_;
    std::chrono::steady_clock::time_point stage_begin_;
    std::vector<std::int32_t> marks_;  // of the pass under watch
};

}  // namespace cpu
}  // namespace dgemma::backend
