// What the CUDA backend owns: weights, logits, and the inputs of a pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/context.h"
#include "backend/cuda/kernels.h"

namespace dgemma::backend::cuda {

// Device memory from the context's pool.
class DeviceStorage final : public Storage {
  public:
    static Result<std::unique_ptr<DeviceStorage>> make(Context& context, std::size_t bytes);
    ~DeviceStorage() override { context_.release(memory_, bytes_); }
    DeviceStorage(const DeviceStorage&) = delete;
    DeviceStorage& operator=(const DeviceStorage&) = delete;
    void* data() override { return memory_; }
    [[nodiscard]] std::size_t bytes() const override { return bytes_; }

  private:
    DeviceStorage(Context& context, void* memory, std::size_t bytes)
        : context_(context), memory_(memory), bytes_(bytes) {}
    Context& context_;
    void* memory_;
    std::size_t bytes_;
};

// Host memory that the device copies to and from without a detour.
class PinnedMemory {
  public:
    PinnedMemory() = default;
    ~PinnedMemory();
    PinnedMemory(const PinnedMemory&) = delete;
    PinnedMemory& operator=(const PinnedMemory&) = delete;
    // At least `bytes`; what was there is lost when it grows.
    Status reserve(std::size_t bytes);
    [[nodiscard]] std::byte* data() { return data_; }
    [[nodiscard]] const std::byte* data() const { return data_; }

  private:
    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
};

// Matrices and banks in f32 or bf16 as they came (f16 as f32), vectors in f32; or packed; or in E4M3 as it is
// stored.
class DeviceWeight final : public Weight {
  public:
    static Result<std::unique_ptr<DeviceWeight>> upload(Context& context, const Tensor& host);
    // Any encoding and layout, as numbers of `type`.
    static Result<std::unique_ptr<DeviceWeight>> unpack(Context& context, const WeightView& host,
                                                        Element type);
    // As pieces; packable(host) holds.
    static Result<std::unique_ptr<DeviceWeight>> pack(Context& context, const WeightView& host);
    static bool packable(const Shape& shape, Encoding encoding);
    // Random pieces.
    static Result<std::unique_ptr<DeviceWeight>> make_random(Context& context, const Shape& shape,
                                                             Packing packing, float deviation,
                                                             std::uint64_t seed);
    // As it is stored, for kernels that multiply E4M3; keeps_e4m3 holds.
    static Result<std::unique_ptr<DeviceWeight>> keep_e4m3(Context& context, const WeightView& host);
    static bool keeps_e4m3(const Shape& shape, Encoding encoding);
    static Result<std::unique_ptr<DeviceWeight>> make_random_e4m3(Context& context, const Shape& shape,
                                                                  float deviation, std::uint64_t seed);
    // Contents undefined. type: f32 or bf16.
    static Result<std::unique_ptr<DeviceWeight>> make(Context& context, const Shape& shape, Dtype type);

    [[nodiscard]] const DeviceMatrix& matrix() const { return matrix_; }  // no data: it is one of the others
    [[nodiscard]] const PackedMatrix& packed() const { return packed_; }
    [[nodiscard]] bool is_packed() const { return packed_.packing != Packing::none; }
    [[nodiscard]] const E4m3Matrix& e4m3() const { return e4m3_; }
    [[nodiscard]] bool is_e4m3() const { return e4m3_.codes != nullptr; }
    [[nodiscard]] const float* vector() const { return static_cast<const float*>(matrix_.data); }
    [[nodiscard]] void* data() { return memory_->data(); }

  private:
    DeviceWeight(const Shape& shape, Element type, std::unique_ptr<DeviceStorage> memory);
    static Result<std::unique_ptr<DeviceWeight>> make_packed(Context& context, const Shape& shape,
                                                             Packing packing);
    static Result<std::unique_ptr<DeviceWeight>> make_e4m3(Context& context, const Shape& shape);
    std::unique_ptr<DeviceStorage> memory_;
    std::unique_ptr<DeviceStorage> factors_;  // row scales or globals of a packed weight or one in E4M3
    DeviceMatrix matrix_;
    PackedMatrix packed_;
    E4m3Matrix e4m3_;
};

// Scores of a canvas and what says how to read them (see LogitsForm).
class DeviceLogits final : public Logits {
  public:
    static Result<std::unique_ptr<DeviceLogits>> make(Context& context, Element type, std::int64_t rows,
                                                      std::int64_t vocab);
    [[nodiscard]] std::int64_t rows() const override { return rows_; }
    [[nodiscard]] std::int64_t vocab() const { return vocab_; }
    // Tells these logits from any that were or will be, wherever they lie.
    [[nodiscard]] std::uint64_t number() const { return number_; }
    [[nodiscard]] std::span<const RowStats> stats() const override;
    [[nodiscard]] std::span<const float> row(int position) override;

    [[nodiscard]] void* scores() { return scores_->data(); }
    [[nodiscard]] LogitsForm* form() { return static_cast<LogitsForm*>(form_->data()); }
    [[nodiscard]] RowStats* device_stats() { return static_cast<RowStats*>(stats_->data()); }
    [[nodiscard]] float* rounded_sums() { return static_cast<float*>(rounded_sums_->data()); }
    // Statistics of zt = softcap * tanh(score / softcap) / *temperature (on the device), or, softcap zero, of
    // scores that are zt; and their way to the host.
    void take_statistics(float softcap, const float* temperature);

  private:
    DeviceLogits(Context& context, Element type, std::int64_t rows, std::int64_t vocab)
        : context_(context), type_(type), rows_(rows), vocab_(vocab), number_(context.next_number()) {}
    Context& context_;
    Element type_;
    std::int64_t rows_, vocab_;
    std::uint64_t number_;
    std::unique_ptr<DeviceStorage> scores_, form_, stats_, rounded_sums_, one_row_;
    PinnedMemory host_stats_;
    mutable bool arriving_ = false;  // the statistics are on their way
    std::vector<float> row_;
};

// The inputs of the running pass on the device, and the way from the host's spans to them. Spans that are not
// part of a pass (tests) are uploaded when named and live as long as the answer.
class Inputs {
  public:
    explicit Inputs(Context& context) : context_(context) {}
    Status stage(const PassInputs& inputs);
    [[nodiscard]] std::span<const HeadArgs::Canvas> canvases() const { return staged_.canvases; }
    void forget() { staged_ = {}; }  // the host's spans are about to go

    template <class T>
    class Borrowed {
      public:
        Borrowed(const T* data, Context* owner, std::size_t bytes = 0)
            : data_(data), owner_(owner), bytes_(bytes) {}
        ~Borrowed() {
            if (owner_ != nullptr && data_ != nullptr) owner_->release(const_cast<T*>(data_), bytes_);
        }
        Borrowed(const Borrowed&) = delete;
        Borrowed& operator=(const Borrowed&) = delete;
        [[nodiscard]] const T* get() const { return data_; }

      private:
        const T* data_;
        Context* owner_;  // null: part of the pass
        std::size_t bytes_;
    };
    Borrowed<std::int32_t> numbers(std::span<const std::int32_t> host);
    Borrowed<DeviceSegment> segments(std::span<const AttentionSegment> host);
    // The temperature of a canvas of the head.
    Borrowed<float> temperature(const HeadArgs::Canvas& canvas);

  private:
    Context& context_;
    PassInputs staged_;
    PinnedMemory host_;
    std::unique_ptr<DeviceStorage> device_;
    std::size_t segments_at_ = 0, temperatures_at_ = 0;
};

}  // namespace dgemma::backend::cuda
