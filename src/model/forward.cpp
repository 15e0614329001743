#include "model/forward.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cmath>

#include <fmt/core.h>

namespace dgemma::model {

using backend::Mat;

// Where the rows of a call come from and what each of them sees.
struct Model::Rows {
    std::int64_t count = 0;
    bool store = false;  // encoder: keys and values go to the cache, and attention reads them there

    // One row: its token, its position, and its keys [begin, end) in full and in sliding layers.
    void add(std::int32_t id, std::int64_t position, std::int64_t full_begin, std::int64_t window_begin,
             std::int64_t key_end) {
        columns_[0].push_back(id);
        columns_[1].push_back(static_cast<std::int32_t>(position));
        columns_[2].push_back(static_cast<std::int32_t>(full_begin));
        columns_[3].push_back(static_cast<std::int32_t>(window_begin));
        columns_[4].push_back(static_cast<std::int32_t>(key_end));
        ++count;
    }
    // The next rows belong to `cache`. canvas_position as in AttentionSegment.
    void begin_segment(const KvCache* cache, std::int64_t rows, std::int64_t canvas_position) {
        segments_.push_back(
            {.first_row = count, .rows = rows, .cache = {}, .canvas_position = canvas_position});
        caches_.push_back(cache);
    }
    // After the last row: lays everything out as PassInputs wants it.
    void seal(std::size_t layers) {
        for (const auto& column : columns_) numbers_.insert(numbers_.end(), column.begin(), column.end());
        for (std::size_t l = 0; l < layers; ++l) {
            for (std::size_t i = 0; i < caches_.size(); ++i) {
                of_layers_.push_back(segments_[i]);
                of_layers_.back().cache = caches_[i]->layer(l);
            }
        }
    }
    [[nodiscard]] std::span<const std::int32_t> numbers() const { return numbers_; }
    [[nodiscard]] std::span<const backend::AttentionSegment> all_segments() const { return of_layers_; }
    [[nodiscard]] std::span<const backend::AttentionSegment> segments(std::size_t layer) const {
        return std::span(of_layers_).subspan(layer * caches_.size(), caches_.size());
    }
    [[nodiscard]] std::span<const std::int32_t> ids() const { return column(0); }
    [[nodiscard]] std::span<const std::int32_t> positions() const { return column(1); }
    [[nodiscard]] std::span<const std::int32_t> full_begin() const { return column(2); }
    [[nodiscard]] std::span<const std::int32_t> window_begin() const { return column(3); }
    [[nodiscard]] std::span<const std::int32_t> key_end() const { return column(4); }

  private:
    [[nodiscard]] std::span<const std::int32_t> column(std::size_t i) const {
        const auto n = static_cast<std::size_t>(count);
        return std::span(numbers_).subspan(i * n, n);
    }
    std::vector<std::int32_t> columns_[5], numbers_;
    std::vector<const KvCache*> caches_;                           // [segments]
    std::vector<backend::AttentionSegment> segments_, of_layers_;  // [segments], [layers * segments]
};

Model::Model(const Config& config, Weights weights, backend::Backend& backend)
    : config_(config),
      weights_(std::move(weights)),
      backend_(backend),
      router_input_scale_(static_cast<float>(std::pow(static_cast<double>(config.text.hidden_size), -0.5))) {}

Status Model::encode(KvCache& cache, std::span<const std::int32_t> ids, Probe* probe) {
    for (std::size_t done = 0; done < ids.size();) {
        const std::size_t count = std::min(ids.size() - done, static_cast<std::size_t>(cache.chunk()));
        const Prompt piece{&cache, ids.subspan(done, count)};
        DGEMMA_CHECK(encode(std::span(&piece, 1), probe));
        done += count;
    }
    return {};
}

Status Model::encode(std::span<const Prompt> prompts, Probe* probe) {
    Rows rows;
    rows.store = true;
    for (const Prompt& p : prompts) {
        const std::int64_t start = p.cache->length();
        const auto count = static_cast<std::int64_t>(p.ids.size());
        assert(count <= p.cache->chunk());
        DGEMMA_CHECK(p.cache->reserve(start + count));
        rows.begin_segment(p.cache, count, -1);
        for (std::int64_t i = 0; i < count; ++i) {
            const std::int64_t position = start + i;
            const std::int32_t id = p.ids[static_cast<std::size_t>(i)];
            // An image id is embedded as the pad, always, also without an image (5.1).
            rows.add(id == config_.image_id ? config_.pad_id : id, position, 0,
                     std::max<std::int64_t>(0, position - config_.text.sliding_window + 1), position + 1);
        }
    }
    if (rows.count == 0) return {};
    rows.seal(weights_.layers.size());
    DGEMMA_CHECK(prepare_workspace(rows.count));
    DGEMMA_CHECK(backend_.begin_pass(
        {.rows = rows.count, .numbers = rows.numbers(), .segments = rows.all_segments(), .canvases = {}}));

    // Inference never needs the encoder's final norm.
    const backend::Weight* last_norm = probe != nullptr ? weights_.final_norm.get() : nullptr;
    run(rows, probe, {}, [&] {
        backend_.embed(rows.ids(), *weights_.embedding, weights_.embedding_scale, x_);
        show(probe, Probe::Stage::input, -1, x_);
        backend_.rms_norm(x_, weights_.layers[0].input_norm.get(), config_.text.rms_eps, normed_);
        for (std::size_t l = 0; l < weights_.layers.size(); ++l)
            layer(l, rows, weights_.layers[l].encoder_scalar, last_norm, probe);
        if (probe != nullptr) show(probe, Probe::Stage::hidden, -1, normed_);
    });

    // A broken key or value breaks its own row's output in the same layer, so the rows tell about the cache
    // too.
    DGEMMA_TRY(const std::span<const std::int32_t> marks, backend_.end_pass());
    for (std::size_t r = 0; r < marks.size(); ++r) {
        if (marks[r] >= 0) {
            return Error{
                ErrorKind::non_finite,
                fmt::format("the prompt pass produced a NaN or an infinity in layer {} at position {}: the "
                            "checkpoint's weights are damaged or overflow",
                            marks[r], rows.positions()[r])};
        }
    }
    for (const Prompt& p : prompts)
        p.cache->commit(p.cache->length() + static_cast<std::int64_t>(p.ids.size()));
    return {};
}

Status Model::denoise(std::span<Canvas> canvases, Probe* probe) {
    Rows rows;
    std::vector<backend::HeadArgs::Canvas> heads;
    bool self_conditioned = false;
    for (const Canvas& c : canvases) {
        const std::int64_t start = c.cache->length();
        const auto count = static_cast<std::int64_t>(c.ids.size());
        heads.push_back(
            {.first_row = rows.count, .rows = count, .temperature = c.temperature, .logits = c.logits});
        rows.begin_segment(c.cache, count, start);
        // The same window - 1 cached keys for every row of the canvas: anchored at the block (6.3).
        const std::int64_t window = std::max<std::int64_t>(0, start - config_.text.sliding_window + 1);
        for (std::int64_t i = 0; i < count; ++i)
            rows.add(c.ids[static_cast<std::size_t>(i)], start + i, 0, window, start + count);
        self_conditioned |= c.self_condition;
    }
    if (rows.count == 0) return {};
    rows.seal(weights_.layers.size());
    DGEMMA_CHECK(prepare_workspace(rows.count));
    DGEMMA_CHECK(backend_.begin_pass(
        {.rows = rows.count, .numbers = rows.numbers(), .segments = rows.all_segments(), .canvases = heads}));
    const float eps = config_.text.rms_eps;
    std::vector<std::uint64_t> key;
    for (const Canvas& c : canvases) {
        key.push_back(c.self_condition ? 1 : 0);
    }
    run(rows, probe, key, [&] {
        // Self-conditioned input (6.1). Without a previous pass s is zero, the branch gives exactly zero and
        // is skipped; the norm that follows is not.
        backend_.begin_stage(backend::Stage::self_conditioning);
        backend_.embed(rows.ids(), *weights_.embedding, weights_.embedding_scale, x_);
        if (self_conditioned) {
            // Neighbours of a kind together: a backend may then read the embedding once for all of them.
            for (std::size_t i = 0; i < canvases.size();) {
                const bool conditioned = canvases[i].self_condition;
                const std::int64_t first = rows.segments(0)[i].first_row;
                std::int64_t count = 0;
                std::vector<backend::Logits*> previous;
                for (; i < canvases.size() && canvases[i].self_condition == conditioned; ++i) {
                    count += rows.segments(0)[i].rows;
                    previous.push_back(canvases[i].logits);
                }
                const Mat soft = backend_.rows_of(branch_, first, count);
                if (conditioned) {
                    backend_.soft_embed(previous, *weights_.embedding, weights_.embedding_scale, soft);
                } else {
                    backend_.fill_zero(soft);
                }
            }
            backend_.rms_norm(branch_, weights_.sc_pre_norm.get(), eps, normed_);
            backend_.gated_mlp(normed_, *weights_.sc_gate, *weights_.sc_up, *weights_.sc_down, branch_);
            backend_.add_then_norm(x_, branch_, eps, x_);
        } else {
            backend_.add_then_norm(x_, {}, eps, x_);
        }
        show(probe, Probe::Stage::input, -1, x_);

        backend_.rms_norm(x_, weights_.layers[0].input_norm.get(), eps, normed_);
        for (std::size_t l = 0; l < weights_.layers.size(); ++l)
            layer(l, rows, weights_.layers[l].decoder_scalar, weights_.final_norm.get(), probe);

        backend_.begin_stage(backend::Stage::head);
        show(probe, Probe::Stage::hidden, -1, normed_);
        backend_.head({.x = normed_,
                       .table = weights_.embedding.get(),
                       .softcap = config_.text.final_softcap,
                       .canvases = heads});
    });

    DGEMMA_TRY(const std::span<const std::int32_t> marks, backend_.end_pass());
    for (std::size_t i = 0; i < canvases.size(); ++i) {
        canvases[i].broken_layer.reset();
        const backend::AttentionSegment& s = rows.segments(0)[i];
        for (std::int64_t r = s.first_row; r < s.first_row + s.rows; ++r) {
            const std::int32_t mark = marks[static_cast<std::size_t>(r)];
            if (mark >= 0) canvases[i].broken_layer = std::min(mark, canvases[i].broken_layer.value_or(mark));
        }
    }
    return {};
}

// A pass that nobody looks into may be recorded and repeated by the backend; its data stands in begin_pass.
void Model::run(const Rows& rows, const Probe* probe, std::vector<std::uint64_t> key,
                const std::function<void()>& operations) {
    if (probe != nullptr) {
        operations();
        return;
    }
    key.push_back(rows.store ? 1 : 0);
    key.push_back(workspace_);
    for (const backend::AttentionSegment& s : rows.segments(0))
        key.push_back(static_cast<std::uint64_t>(s.rows));
    backend_.run_pass(key, operations);
}

// Section 4, from x_ and its norm in normed_ to x_ and the norm that follows: the next layer's or
// `last_norm`.
void Model::layer(std::size_t l, const Rows& rows, const WeightPtr& scalar, const backend::Weight* last_norm,
                  Probe* probe) {
    const LayerConfig& kind = config_.text.layers[l];
    const LayerWeights& w = weights_.layers[l];
    const float eps = config_.text.rms_eps;
    const auto number = static_cast<int>(l);
    const std::int64_t n = rows.count;
    const Mat q{q_.data, n, static_cast<std::int64_t>(config_.text.heads) * kind.head_dim};
    const Mat k{k_.data, n, static_cast<std::int64_t>(kind.kv_heads) * kind.head_dim};
    const Mat v{v_.data, n, k.cols};
    const Mat attended{heads_.data, n, q.cols};

    backend_.begin_stage(backend::Stage::attention);
    const std::span<const backend::AttentionSegment> segments = rows.segments(l);
    const auto attend = [&](std::span<const backend::AttentionSegment> some) {
        const std::int64_t first = some.front().first_row,
                           count = some.back().first_row + some.back().rows - first;
        const auto part = [&](const Mat& m) { return backend_.rows_of(m, first, count); };
        backend_.attention_inputs({.x = part(normed_),
                                   .q_proj = w.q_proj.get(),
                                   .k_proj = w.k_proj.get(),
                                   .v_proj = w.v_proj.get(),
                                   .q_norm = w.q_norm.get(),
                                   .k_norm = w.k_norm.get(),
                                   .frequencies = w.frequencies.get(),
                                   .positions = rows.positions().subspan(static_cast<std::size_t>(first),
                                                                         static_cast<std::size_t>(count)),
                                   .head_dim = kind.head_dim,
                                   .eps = eps,
                                   .q = part(q),
                                   .k = part(k),
                                   .v = part(v)});
        if (rows.store) backend_.store_kv(k, v, segments, rows.positions(), kind.kv_heads);
        backend_.attention(
            {.q = q,
             .k = k,
             .v = v,
             .segments = some,
             .key_begin = kind.kind == LayerKind::sliding ? rows.window_begin() : rows.full_begin(),
             .key_end = rows.key_end(),
             .heads = config_.text.heads,
             .kv_heads = kind.kv_heads,
             .head_dim = kind.head_dim,
             .out = attended});
        backend_.project(part(attended), *w.o_proj, part(branch_));
    };
    // A row's attention depends on its own segment alone, so that many segments may take turns.
    const auto turns =
        static_cast<std::size_t>(rows.store ? 1 : std::max<std::int64_t>(1, n / backend_.attention_rows()));
    for (std::size_t turn = 0, first = 0; turn < turns; ++turn) {
        const std::size_t end = segments.size() * (turn + 1) / turns;
        if (end > first) attend(segments.subspan(first, end - first));
        first = end;
    }
    show(probe, Probe::Stage::attention, number, branch_);
    const backend::RouterWeights router{w.router_scale.get(), w.router_proj.get(), w.per_expert_scale.get(),
                                        router_input_scale_, eps};
    backend_.after_attention({.branch = branch_,
                              .norm = w.post_attention_norm.get(),
                              .dense_norm = w.dense_pre_norm.get(),
                              .experts_norm = w.experts_pre_norm.get(),
                              .eps = eps,
                              .h = x_,  // x_ is h from here on
                              .dense = normed_,
                              .experts = experts_in_,
                              .router = &router});

    const backend::Routing routing{expert_ids_, expert_weights_, probe != nullptr ? probabilities_ : Mat{}};
    backend_.branches({.dense_in = normed_,
                       .gate = w.gate_proj.get(),
                       .up = w.up_proj.get(),
                       .down = w.down_proj.get(),
                       .dense = branch_,
                       .h = x_,
                       .router = router,
                       .routing = routing,
                       .experts_in = experts_in_,
                       .gate_up = w.gate_up.get(),
                       .expert_down = w.expert_down.get(),
                       .experts = sparse_});
    show(probe, Probe::Stage::dense, number, branch_);
    show(probe, Probe::Stage::router, number, routing.probabilities);
    show(probe, Probe::Stage::experts, number, sparse_);

    const bool last = l + 1 == weights_.layers.size();
    backend_.finish_layer({.residual = x_,
                           .dense = branch_,
                           .sparse = sparse_,
                           .dense_norm = w.dense_post_norm.get(),
                           .sparse_norm = w.experts_post_norm.get(),
                           .norm = w.post_norm.get(),
                           .scalar = scalar.get(),
                           .eps = eps,
                           .out = x_},
                          number, last ? last_norm : weights_.layers[l + 1].input_norm.get(), normed_);
    show(probe, Probe::Stage::layer, number, x_);
}

void Model::show(Probe* probe, Probe::Stage stage, int layer, const Mat& values) {
    if (probe == nullptr) return;
    std::vector<float> copy(static_cast<std::size_t>(values.rows * values.cols));
    if (stage == Probe::Stage::router) {  // f32 whatever the activations are
        backend_.read_memory(values.data, std::as_writable_bytes(std::span(copy)));
    } else {
        backend_.download(values, copy);
    }
    probe->see(stage, layer, copy);
}

Status Model::prepare_workspace(std::int64_t rows) {
    const TextConfig& t = config_.text;
    std::int64_t q = 0, kv = 0;
    for (const LayerConfig& layer : t.layers) {
        q = std::max<std::int64_t>(q, static_cast<std::int64_t>(t.heads) * layer.head_dim);
        kv = std::max<std::int64_t>(kv, static_cast<std::int64_t>(layer.kv_heads) * layer.head_dim);
    }
    // Routing is int32 and f32 whatever the activations are.
    const std::size_t element = backend_.activation_bytes();
    struct Slot {
        Mat* mat;
        std::int64_t cols;
        std::size_t bytes;
    };
    const Slot slots[] = {{&x_, t.hidden_size, element},
                          {&normed_, t.hidden_size, element},
                          {&experts_in_, t.hidden_size, element},
                          {&q_, q, element},
                          {&k_, kv, element},
                          {&v_, kv, element},
                          {&heads_, q, element},
                          {&branch_, t.hidden_size, element},
                          {&sparse_, t.hidden_size, element},
                          {&expert_ids_, t.top_k, 4},
                          {&expert_weights_, t.top_k, 4},
                          {&probabilities_, t.experts, 4}};
    if (rows > capacity_) {
        memory_.clear();
        capacity_ = 0;
        for (const Slot& s : slots) {
            DGEMMA_TRY(auto memory, backend_.allocate(static_cast<std::size_t>(rows * s.cols) * s.bytes));
            s.mat->data = memory->data();
            memory_.push_back(std::move(memory));
        }
        capacity_ = rows;
        static std::atomic<std::uint64_t> workspaces{0};
        workspace_ = ++workspaces;
    }
    for (const Slot& s : slots) {
        s.mat->rows = rows;
        s.mat->cols = s.cols;
    }
    return {};
}

}  // namespace dgemma::model
