#include "backend/cuda/memory.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>
#include <utility>

#include <fmt/core.h>

#include "base/weight_bytes.h"

namespace dgemma::backend::cuda {

Result<std::unique_ptr<DeviceStorage>> DeviceStorage::make(Context& context, std::size_t bytes) {
    DGEMMA_TRY(void* memory, context.allocate(bytes));
    return std::unique_ptr<DeviceStorage>(new DeviceStorage(context, memory, bytes));
}

PinnedMemory::~PinnedMemory() {
    if (data_ != nullptr) cudaFreeHost(data_);
}

Status PinnedMemory::reserve(std::size_t bytes) {
    if (bytes <= bytes_) return {};
    if (data_ != nullptr) cudaFreeHost(data_);
    data_ = nullptr;
    bytes_ = 0;
    void* memory = nullptr;
    if (cudaMallocHost(&memory, bytes) != cudaSuccess) {
        cudaGetLastError();
        return Error{ErrorKind::io, fmt::format("no memory for {} bytes that the GPU can copy from", bytes)};
    }
    data_ = static_cast<std::byte*>(memory);
    bytes_ = bytes;
    return {};
}

// --- weights

DeviceWeight::DeviceWeight(const Shape& shape, Element type, std::unique_ptr<DeviceStorage> memory)
    : Weight(shape), memory_(std::move(memory)) {
    matrix_.data = memory_->data();
    matrix_.type = type;
    matrix_.groups = shape.size() == 3 ? shape[0] : 1;
    matrix_.outs = shape.size() >= 2 ? shape[shape.size() - 2] : 1;
    matrix_.ins = shape.empty() ? 1 : shape.back();
}

Result<std::unique_ptr<DeviceWeight>> DeviceWeight::make(Context& context, const Shape& shape, Dtype type) {
    const Element element = type == Dtype::bf16 && shape.size() > 1 ? Element::bf16 : Element::f32;
    const auto bytes = static_cast<std::size_t>(elements_of(shape)) * size_of(element);
    DGEMMA_TRY(auto memory, DeviceStorage::make(context, bytes));
    return std::unique_ptr<DeviceWeight>(new DeviceWeight(shape, element, std::move(memory)));
}

Result<std::unique_ptr<DeviceWeight>> DeviceWeight::upload(Context& context, const Tensor& host) {
    if (host.type != Dtype::f32 && host.type != Dtype::bf16 && host.type != Dtype::f16) {
        return Error{
            ErrorKind::unsupported,
            fmt::format("a weight of type {} cannot be computed with on the GPU: use f32, f16 or bf16",
                        name_of(host.type))};
    }
    DGEMMA_TRY(auto weight, make(context, host.shape, host.type));
    const auto bytes = static_cast<std::size_t>(host.elements()) * size_of(weight->matrix().type);
    const bool as_it_is = host.bytes() == bytes && (host.type != Dtype::f16);
    if (as_it_is) {
        context.load(weight->data(), host.data, bytes);
    } else {
        const std::vector<float> values = to_f32(host);
        context.to_device(weight->data(), values.data(), bytes, "loading weights");
        context.synchronize("loading weights");
    }
    DGEMMA_CHECK(context.take_failure());
    return weight;
}

namespace {

// The bytes of an encoded weight on the device, for as long as they are turned into something else.
class EncodedOnDevice {
  public:
    static Result<std::unique_ptr<EncodedOnDevice>> upload(Context& context, const WeightView& host) {
        const auto grid = weight_grid(host);
        if (!grid || (host.encoding == Encoding::plain && host.type != Dtype::bf16)) {
            return Error{ErrorKind::unsupported,
                         fmt::format("a weight of shape {} stored as {} cannot be computed with on the GPU",
                                     to_string(host.shape), name_of(host.encoding))};
        }
        const WeightBytes total = grid->total();
        const std::uint64_t parts[] = {total.codes, total.scales, total.biases, total.globals};
        const std::byte* const from[] = {host.codes, host.scales, host.biases, host.globals};
        std::uint64_t at[5] = {};
        for (int i = 0; i < 4; ++i) at[i + 1] = (at[i] + parts[i] + 255) / 256 * 256;
        std::unique_ptr<EncodedOnDevice> out(new EncodedOnDevice);
        DGEMMA_TRY(out->memory_, DeviceStorage::make(context, at[4]));
        auto* base = static_cast<std::uint8_t*>(out->memory_->data());
        for (int i = 0; i < 4; ++i) context.load(base + at[i], from[i], parts[i]);
        EncodedMatrix& m = out->matrix;
        m.encoding = host.encoding, m.layout = host.layout, m.type = host.type;
        m.codes = base, m.scales = base + at[1], m.biases = base + at[2], m.globals = base + at[3];
        m.groups = grid->matrices, m.outs = grid->rows, m.ins = grid->cols;
        return out;
    }
    EncodedMatrix matrix;

  private:
    std::unique_ptr<DeviceStorage> memory_;
};

}  // namespace

Result<std::unique_ptr<DeviceWeight>> DeviceWeight::unpack(Context& context, const WeightView& host,
                                                           Element type) {
    context.enter();
    DGEMMA_TRY(auto encoded, EncodedOnDevice::upload(context, host));
    DGEMMA_TRY(auto weight, make(context, host.shape, type == Element::bf16 ? Dtype::bf16 : Dtype::f32));
    context.nothing_early();
    unpack_weight(context, encoded->matrix, weight->matrix().type, weight->data());
    context.nothing_early();
    DGEMMA_CHECK(context.take_failure());
    return weight;
}

bool DeviceWeight::packable(const Shape& shape, Encoding encoding) {
    // The two matrices of a bank's gate and up share the bank's rows in halves, each of whole boxes.
    const bool bank = shape.size() == 3;
    return packing_of(encoding) != Packing::none && (bank || shape.size() == 2) &&
           shape[shape.size() - 2] % (bank ? 2 * piece_rows : piece_rows) == 0 &&
           shape.back() % piece_columns == 0;
}

Result<std::unique_ptr<DeviceWeight>> DeviceWeight::make_packed(Context& context, const Shape& shape,
                                                                Packing packing) {
    const std::int64_t pieces = elements_of(shape) / (piece_rows * piece_columns);
    DGEMMA_TRY(auto memory,
               DeviceStorage::make(context, static_cast<std::size_t>(pieces * piece_bytes(packing))));
    std::unique_ptr<DeviceWeight> weight(new DeviceWeight(shape, Element::bf16, std::move(memory)));
    PackedMatrix& m = weight->packed_;
    m.packing = packing;
    m.pieces = static_cast<const std::uint8_t*>(weight->matrix_.data);
    m.groups = weight->matrix_.groups, m.outs = weight->matrix_.outs, m.ins = weight->matrix_.ins;
    weight->matrix_.data = nullptr;
    const std::int64_t factors = packing == Packing::fp8     ? m.groups * m.outs
                                 : packing == Packing::nvfp4 ? m.groups
                                                             : 0;
    if (factors > 0) {
        DGEMMA_TRY(weight->factors_,
                   DeviceStorage::make(context, static_cast<std::size_t>(factors) * sizeof(float)));
        (packing == Packing::fp8 ? m.row_scales : m.globals) =
            static_cast<const float*>(weight->factors_->data());
    }
    return weight;
}

Result<std::unique_ptr<DeviceWeight>> DeviceWeight::pack(Context& context, const WeightView& host) {
    context.enter();
    DGEMMA_TRY(auto encoded, EncodedOnDevice::upload(context, host));
    DGEMMA_TRY(auto weight, make_packed(context, host.shape, packing_of(host.encoding)));
    context.nothing_early();
    pack_weight(context, encoded->matrix, weight->packed_.packing, weight->memory_->data());
    context.nothing_early();
    if (weight->factors_ != nullptr) {
        const std::uint8_t* from =
            host.encoding == Encoding::fp8_row ? encoded->matrix.scales : encoded->matrix.globals;
        context.check(cudaMemcpyAsync(weight->factors_->data(), from, weight->factors_->bytes(),
                                      cudaMemcpyDeviceToDevice, context.stream()),
                      "loading weights");
    }
    DGEMMA_CHECK(context.take_failure());
    return weight;
}

Result<std::unique_ptr<DeviceWeight>> DeviceWeight::make_random(Context& context, const Shape& shape,
                                                                Packing packing, float deviation,
                                                                std::uint64_t seed) {
    context.enter();
    DGEMMA_TRY(auto weight, make_packed(context, shape, packing));
    context.nothing_early();
    fill_random_pieces(context, packing, weight->memory_->data(),
                       static_cast<std::int64_t>(weight->memory_->bytes()), deviation, seed);
    if (weight->factors_ != nullptr) {
        // The codes of fp8 are those below 2 and of nvfp4 all; their deviations.
        const float factor = deviation / (packing == Packing::fp8 ? 0.62f : 2.93f);
        fill_random(context, weight->factors_->data(), Element::f32,
                    static_cast<std::int64_t>(weight->factors_->bytes() / sizeof(float)), 0, factor, seed);
    }
    context.nothing_early();
    DGEMMA_CHECK(context.take_failure());
    return weight;
}

bool DeviceWeight::keeps_e4m3(const Shape& shape, Encoding encoding) {
    return encoding == Encoding::fp8_row && packable(shape, encoding);
}

Result<std::unique_ptr<DeviceWeight>> DeviceWeight::make_e4m3(Context& context, const Shape& shape) {
    DGEMMA_TRY(auto memory, DeviceStorage::make(context, static_cast<std::size_t>(elements_of(shape))));
    std::unique_ptr<DeviceWeight> weight(new DeviceWeight(shape, Element::bf16, std::move(memory)));
    E4m3Matrix& m = weight->e4m3_;
    m.groups = weight->matrix_.groups, m.outs = weight->matrix_.outs, m.ins = weight->matrix_.ins;
    m.codes = static_cast<const std::uint8_t*>(weight->matrix_.data);
    weight->matrix_.data = nullptr;
    DGEMMA_TRY(weight->factors_,
               DeviceStorage::make(context, static_cast<std::size_t>(m.groups * m.outs) * sizeof(float)));
    m.scales = static_cast<const float*>(weight->factors_->data());
    return weight;
}

Result<std::unique_ptr<DeviceWeight>> DeviceWeight::keep_e4m3(Context& context, const WeightView& host) {
    context.enter();
    DGEMMA_TRY(auto weight, make_e4m3(context, host.shape));
    context.load(weight->memory_->data(), host.codes, weight->memory_->bytes());
    context.load(weight->factors_->data(), host.scales, weight->factors_->bytes());
    DGEMMA_CHECK(context.take_failure());
    return weight;
}

Result<std::unique_ptr<DeviceWeight>> DeviceWeight::make_random_e4m3(Context& context, const Shape& shape,
                                                                     float deviation, std::uint64_t seed) {
    context.enter();
    DGEMMA_TRY(auto weight, make_e4m3(context, shape));
    context.nothing_early();
    fill_random_codes(context, weight->memory_->data(), static_cast<std::int64_t>(weight->memory_->bytes()),
                      seed);
    fill_random(context, weight->factors_->data(), Element::f32,
                static_cast<std::int64_t>(weight->factors_->bytes() / sizeof(float)), 0, deviation / 0.62f,
                seed);
    context.nothing_early();
    DGEMMA_CHECK(context.take_failure());
    return weight;
}

// --- logits

Result<std::unique_ptr<DeviceLogits>> DeviceLogits::make(Context& context, Element type, std::int64_t rows,
                                                         std::int64_t vocab) {
    std::unique_ptr<DeviceLogits> logits(new DeviceLogits(context, type, rows, vocab));
    const auto n = static_cast<std::size_t>(rows), v = static_cast<std::size_t>(vocab);
    DGEMMA_TRY(logits->scores_, DeviceStorage::make(context, n * v * size_of(type)));
    DGEMMA_TRY(logits->form_, DeviceStorage::make(context, sizeof(LogitsForm)));
    DGEMMA_TRY(logits->stats_, DeviceStorage::make(context, n * sizeof(RowStats)));
    DGEMMA_TRY(logits->rounded_sums_, DeviceStorage::make(context, n * sizeof(float)));
    DGEMMA_CHECK(logits->host_stats_.reserve(std::max<std::size_t>(n, 1) * sizeof(RowStats)));
    auto* stats = reinterpret_cast<RowStats*>(logits->host_stats_.data());
    std::uninitialized_fill_n(stats, n, RowStats{});
    return logits;
}

void DeviceLogits::take_statistics(float softcap, const float* temperature) {
    if (softcap == 0.0f) {
        given_statistics(context_, type_, scores(), rows_, vocab_, form(), device_stats(), rounded_sums());
    } else {
        logit_statistics(context_, type_, scores(), rows_, vocab_, softcap, temperature, form(),
                         device_stats(), rounded_sums());
    }
    if (context_.failed()) return;
    context_.nothing_early();
    context_.check(cudaMemcpyAsync(host_stats_.data(), device_stats(),
                                   static_cast<std::size_t>(rows_) * sizeof(RowStats), cudaMemcpyDeviceToHost,
                                   context_.stream()),
                   "reading statistics");
    arriving_ = true;
}

std::span<const RowStats> DeviceLogits::stats() const {
    if (arriving_) {
        context_.enter();
        context_.synchronize("reading statistics");
        arriving_ = false;
    }
    return {reinterpret_cast<const RowStats*>(host_stats_.data()), static_cast<std::size_t>(rows_)};
}

std::span<const float> DeviceLogits::row(int position) {
    context_.enter();
    row_.assign(static_cast<std::size_t>(vocab_), std::numeric_limits<float>::quiet_NaN());
    if (one_row_ == nullptr) {
        auto memory = DeviceStorage::make(context_, row_.size() * sizeof(float));
        if (!memory) {
            context_.fail(memory.error().kind, memory.error().message);
            return row_;
        }
        one_row_ = std::move(memory).value();
    }
    auto* out = static_cast<float*>(one_row_->data());
    logit_row(context_, type_, scores(), position, vocab_, form(), out);
    context_.to_host(row_.data(), out, row_.size() * sizeof(float), "reading a row of logits");
    return row_;
}

// --- inputs of a pass

namespace {

constexpr std::size_t round_up(std::size_t bytes) { return (bytes + 15) / 16 * 16; }

std::size_t segment_bytes(std::span<const AttentionSegment> segments) {
    std::size_t bytes = round_up(segments.size() * sizeof(DeviceSegment));
    for (const AttentionSegment& s : segments)
        bytes += (s.cache.keys.size() + s.cache.values.size()) * sizeof(void*);
    return bytes;
}

// Writes segments and their page tables as they will lie at `device`.
void write_segments(std::span<const AttentionSegment> segments, std::byte* host, const std::byte* device) {
    std::size_t at = round_up(segments.size() * sizeof(DeviceSegment));
    const auto table = [&](std::span<void* const> pages) {
        if (!pages.empty()) std::memcpy(host + at, pages.data(), pages.size_bytes());
        const auto* placed = reinterpret_cast<const void* const*>(device + at);
        at += pages.size_bytes();
        return placed;
    };
    for (std::size_t i = 0; i < segments.size(); ++i) {
        const AttentionSegment& s = segments[i];
        DeviceSegment to{};
        to.first_row = static_cast<std::int32_t>(s.first_row);
        to.rows = static_cast<std::int32_t>(s.rows);
        to.canvas_position = static_cast<std::int32_t>(s.canvas_position);
        const std::int64_t pages = std::max<std::int64_t>(1, s.cache.capacity / page_tokens);
        to.ring_pages = static_cast<std::int32_t>(
            std::min<std::int64_t>(pages, std::numeric_limits<std::int32_t>::max()));
        to.keys = table(s.cache.keys);
        to.values = table(s.cache.values);
        std::memcpy(host + i * sizeof(DeviceSegment), &to, sizeof to);
    }
}

template <class T>
bool inside(std::span<const T> part, std::span<const T> whole) {
    return !part.empty() && part.data() >= whole.data() &&
           part.data() + part.size() <= whole.data() + whole.size();
}

}  // namespace

Status Inputs::stage(const PassInputs& inputs) {
    staged_ = {};
    // Pages come last: where the rest lies then depends on the numbers of rows, segments and canvases alone.
    temperatures_at_ = round_up(inputs.numbers.size_bytes());
    segments_at_ = temperatures_at_ + round_up(inputs.canvases.size() * sizeof(float));
    const std::size_t bytes =
        segments_at_ + round_up(std::max<std::size_t>(1, segment_bytes(inputs.segments)));
    // The copy of the pass before may still be under way if that pass was never ended.
    context_.synchronize("beginning a pass");
    DGEMMA_CHECK(host_.reserve(bytes));
    if (device_ == nullptr || device_->bytes() < bytes) {
        device_.reset();
        DGEMMA_TRY(device_, DeviceStorage::make(context_, 2 * bytes));
        context_.memory_moved();
    }
    if (!inputs.numbers.empty())
        std::memcpy(host_.data(), inputs.numbers.data(), inputs.numbers.size_bytes());
    write_segments(inputs.segments, host_.data() + segments_at_,
                   static_cast<const std::byte*>(device_->data()) + segments_at_);
    for (std::size_t i = 0; i < inputs.canvases.size(); ++i) {
        std::memcpy(host_.data() + temperatures_at_ + i * sizeof(float), &inputs.canvases[i].temperature,
                    sizeof(float));
    }
    context_.to_device(device_->data(), host_.data(), bytes, "beginning a pass");
    staged_ = inputs;
    return context_.take_failure();
}

Inputs::Borrowed<std::int32_t> Inputs::numbers(std::span<const std::int32_t> host) {
    if (host.empty()) return {nullptr, nullptr};
    if (inside(host, staged_.numbers)) {
        return {static_cast<const std::int32_t*>(device_->data()) + (host.data() - staged_.numbers.data()),
                nullptr};
    }
    auto memory = context_.allocate(host.size_bytes());
    if (!memory) {
        context_.fail(memory.error().kind, memory.error().message);
        return {nullptr, nullptr};
    }
    context_.to_device(memory.value(), host.data(), host.size_bytes(), "uploading numbers");
    return {static_cast<const std::int32_t*>(memory.value()), &context_, host.size_bytes()};
}

Inputs::Borrowed<DeviceSegment> Inputs::segments(std::span<const AttentionSegment> host) {
    if (host.empty()) return {nullptr, nullptr};
    if (inside(host, staged_.segments)) {
        const auto* all = reinterpret_cast<const DeviceSegment*>(
            static_cast<const std::byte*>(device_->data()) + segments_at_);
        return {all + (host.data() - staged_.segments.data()), nullptr};
    }
    const std::size_t bytes = segment_bytes(host);
    auto memory = context_.allocate(bytes);
    if (!memory) {
        context_.fail(memory.error().kind, memory.error().message);
        return {nullptr, nullptr};
    }
    std::vector<std::byte> blob(bytes);
    write_segments(host, blob.data(), static_cast<const std::byte*>(memory.value()));
    context_.to_device(memory.value(), blob.data(), bytes, "uploading segments");
    return {static_cast<const DeviceSegment*>(memory.value()), &context_, bytes};
}

Inputs::Borrowed<float> Inputs::temperature(const HeadArgs::Canvas& canvas) {
    const std::span<const HeadArgs::Canvas> one(&canvas, 1);
    if (inside(one, staged_.canvases)) {
        const auto* all =
            reinterpret_cast<const float*>(static_cast<const std::byte*>(device_->data()) + temperatures_at_);
        return {all + (&canvas - staged_.canvases.data()), nullptr};
    }
    auto memory = context_.allocate(sizeof(float));
    if (!memory) {
        context_.fail(memory.error().kind, memory.error().message);
        return {nullptr, nullptr};
    }
    context_.to_device(memory.value(), &canvas.temperature, sizeof(float), "uploading a temperature");
    return {static_cast<const float*>(memory.value()), &context_, sizeof(float)};
}

}  // namespace dgemma::backend::cuda
