#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "backend/cuda/cuda.h"
#include "backend/cuda/cuda_backend.h"

namespace dgemma::backend {

namespace cuda {

// --- memory

Result<std::unique_ptr<Storage>> CudaBackend::allocate(std::size_t bytes) {
    DGEMMA_TRY(auto storage, DeviceStorage::make(*context_, bytes));
    return std::unique_ptr<Storage>(std::move(storage));
}

Result<std::unique_ptr<Weight>> CudaBackend::prepare(const Tensor& host) {
    DGEMMA_TRY(auto weight, DeviceWeight::upload(*context_, host));
    return std::unique_ptr<Weight>(std::move(weight));
}

Result<std::unique_ptr<Weight>> CudaBackend::prepare_encoded(const WeightView& host) {
    if (host.encoding == Encoding::plain && host.layout == Layout::rows)
        return prepare(Tensor{host.codes, host.type, host.shape});
    const bool half = element_ == Element::bf16 || host.encoding == Encoding::plain;
    DGEMMA_TRY(auto weight, DeviceWeight::unpack(*context_, host, half ? Element::bf16 : Element::f32));
    return std::unique_ptr<Weight>(std::move(weight));
}

Result<std::unique_ptr<Weight>> CudaBackend::prepare_projection(const WeightView& host) {
    if (!e4m3_activations_ || host.shape.size() != 2 || !DeviceWeight::keeps_e4m3(host.shape, host.encoding))
        return prepare_encoded(host);
    DGEMMA_TRY(auto weight, DeviceWeight::keep_e4m3(*context_, host));
    return std::unique_ptr<Weight>(std::move(weight));
}

Result<std::unique_ptr<Weight>> CudaBackend::prepare_branch(const WeightView& host) {
    if (e4m3_activations_ && DeviceWeight::keeps_e4m3(host.shape, host.encoding)) {
        DGEMMA_TRY(auto kept, DeviceWeight::keep_e4m3(*context_, host));
        return std::unique_ptr<Weight>(std::move(kept));
    }
    if (!packs() || !DeviceWeight::packable(host.shape, host.encoding)) return prepare_encoded(host);
    DGEMMA_TRY(auto weight, DeviceWeight::pack(*context_, host));
    return std::unique_ptr<Weight>(std::move(weight));
}

Result<std::unique_ptr<Logits>> CudaBackend::make_logits(std::int64_t rows, std::int64_t vocab) {
    DGEMMA_TRY(auto logits, DeviceLogits::make(*context_, element_, rows, vocab));
    return std::unique_ptr<Logits>(std::move(logits));
}

void CudaBackend::set_logits(Logits& logits, std::span<const float> zt) {
    context_->enter();
    settle();
    auto& own = static_cast<DeviceLogits&>(logits);
    upload(zt, {own.scores(), own.rows(), own.vocab()});
    own.take_statistics(0, nullptr);
}

void CudaBackend::download(const Mat& from, std::span<float> to) {
    context_->enter();
    settle();
    if (element_ == Element::f32) {
        context_->to_host(to.data(), from.data, to.size_bytes(), "reading results");
        return;
    }
    std::vector<std::uint16_t> half(to.size());
    context_->to_host(half.data(), from.data, half.size() * 2, "reading results");
    std::transform(half.begin(), half.end(), to.begin(), bf16_to_f32);
}

void CudaBackend::upload(std::span<const float> from, const Mat& to) {
    context_->enter();
    settle();
    forget_quantised();
    ordered_ids_ = routed_h_ = nullptr;
    if (element_ == Element::f32) {
        context_->to_device(to.data, from.data(), from.size_bytes(), "uploading values");
    } else {
        std::vector<std::uint16_t> half(from.size());
        std::transform(from.begin(), from.end(), half.begin(), f32_to_bf16);
        context_->to_device(to.data, half.data(), half.size() * 2, "uploading values");
    }
    context_->synchronize("uploading values");
}

void CudaBackend::read_memory(const void* from, std::span<std::byte> to) {
    context_->enter();
    settle();
    context_->to_host(to.data(), from, to.size(), "reading memory");
}

void CudaBackend::fill_zero(const Mat& to) {
    settle();
    forget_quantised();
    context_->nothing_early();
    const auto bytes = static_cast<std::size_t>(to.rows * to.cols) * activation_bytes();
    context_->check(cudaMemsetAsync(to.data, 0, bytes, context_->stream()), "filling with zeros");
}

void CudaBackend::copy(const Mat& from, const Mat& to) {
    settle();
    forget_quantised();
    context_->nothing_early();
    const auto bytes = static_cast<std::size_t>(from.rows * from.cols) * activation_bytes();
    context_->check(cudaMemcpyAsync(to.data, from.data, bytes, cudaMemcpyDeviceToDevice, context_->stream()),
                    "copying values");
}

Status CudaBackend::begin_pass(const PassInputs& inputs) {
    context_->enter();
    context_->end_loading();
    DGEMMA_CHECK(context_->take_failure());
    forget_unsettled();
    forget_quantised();
    DGEMMA_CHECK(inputs_.stage(inputs));
    const auto rows = static_cast<std::size_t>(inputs.rows);
    if (marks_ == nullptr || marks_->bytes() < rows * sizeof(std::int32_t)) {
        marks_.reset();
        DGEMMA_TRY(marks_, DeviceStorage::make(*context_, 2 * rows * sizeof(std::int32_t)));
        DGEMMA_CHECK(host_marks_.reserve(2 * rows * sizeof(std::int32_t)));
        context_->memory_moved();
    }
    rows_ = inputs.rows;
    fill(*context_, marks(), rows_, -1);
    return context_->take_failure();
}

Result<std::span<const std::int32_t>> CudaBackend::end_pass() {
    context_->enter();
    settle();
    clock_.end_pass();
    const auto bytes = static_cast<std::size_t>(rows_) * sizeof(std::int32_t);
    context_->to_host(host_marks_.data(), marks_ == nullptr ? nullptr : marks(), bytes, "a pass");
    inputs_.forget();
    DGEMMA_CHECK(context_->take_failure());
    return std::span<const std::int32_t>(reinterpret_cast<const std::int32_t*>(host_marks_.data()),
                                         static_cast<std::size_t>(rows_));
}

void CudaBackend::run_pass(std::span<const std::uint64_t> key, const std::function<void()>& operations) {
    if (context_->failed() || context_->profiling() || clock_.on()) return operations();
    std::vector<std::uint64_t> full_key(key.begin(), key.end());
    for (const HeadArgs::Canvas& canvas : inputs_.canvases())
        full_key.push_back(static_cast<const DeviceLogits&>(*canvas.logits).number());
    recordings_.run(full_key, [&] {
        operations();
        settle();
    });
}

PassFacts CudaBackend::take_facts() {
    context_->enter();
    PassFacts out;
    if (facts_ == nullptr) return out;
    std::int32_t seen[2] = {};
    context_->to_host(seen, facts_->data(), sizeof seen, "reading facts");
    clear_facts();
    if (seen[1] > 0) out.fewest_experts = seen[0], out.most_expert_rows = seen[1];
    return out;
}

std::int32_t* CudaBackend::facts() {
    if (facts_ == nullptr) {
        auto memory = DeviceStorage::make(*context_, (masks_at + most_mask_words) * sizeof(std::int32_t));
        if (!memory) {
            context_->fail(memory.error().kind, memory.error().message);
            return nullptr;
        }
        facts_ = std::move(memory).value();
        clear_facts();
        fill(*context_, static_cast<std::int32_t*>(facts_->data()) + tickets_at,
             masks_at - tickets_at + most_mask_words, 0);
    }
    return static_cast<std::int32_t*>(facts_->data());
}

void CudaBackend::clear_facts() {
    auto* at = static_cast<std::int32_t*>(facts_->data());
    fill(*context_, at, 1, std::numeric_limits<std::int32_t>::max());
    fill(*context_, at + 1, 1, 0);
}
}  // namespace cuda

Result<std::unique_ptr<Backend>> make_cuda_backend(Precision precision, const CudaOptions& options) {
    DGEMMA_TRY(auto context, cuda::Context::open(options));
    const cuda::Element element = precision == Precision::f32 ? cuda::Element::f32 : cuda::Element::bf16;
    return std::unique_ptr<Backend>(
        std::make_unique<cuda::CudaBackend>(std::move(context), element, options.e4m3_activations));
}

}  // namespace dgemma::backend
