// What goes into a pass of the model, and what becomes of it.
#include <algorithm>
#include <utility>

#include "engine/runner.h"
#include "engine/runner_task.h"

namespace dgemma::engine {

namespace {

double seconds_since(Runner::Clock::time_point start) {
    return std::chrono::duration<double>(Runner::Clock::now() - start).count();
}

// What concerns one request alone, its client above all, does not end the others.
template <class Step>
Status guarded(Step step) {
    try {
        return step();
    } catch (...) {
        return thrown_error();
    }
}

}  // namespace

void Runner::encode_pass(std::span<Task* const> tasks) {
    // Every prompt gets a piece of the pass, however long the others are; what is left over goes to whoever
    // comes first, and that is another one each time.
    const std::size_t n = tasks.size(), first = encode_turn_++ % n;
    std::int64_t rows = loaded_.prefill_chunk;
    const std::int64_t share = std::max<std::int64_t>(1, rows / static_cast<std::int64_t>(n));
    std::vector<std::int64_t> counts(n, 0);
    for (const bool again : {false, true}) {
        for (std::size_t i = 0; i < n; ++i) {
            const std::size_t k = (first + i) % n;
            const auto pending = static_cast<std::int64_t>(tasks[k]->session().pending().size());
            const std::int64_t more = std::min({rows, pending - counts[k], again ? rows : share});
            counts[k] += more;
            rows -= more;
        }
    }
    std::vector<Task*> in_pass;
    std::vector<model::Prompt> pieces;
    for (std::size_t k = 0; k < n; ++k) {
        if (counts[k] == 0) continue;
        in_pass.push_back(tasks[k]);
        pieces.push_back(tasks[k]->session().next_piece(counts[k]));
    }
    if (record_ != nullptr) {
        std::vector<std::int32_t> counted;  // request, tokens, request, tokens ...
        for (std::size_t i = 0; i < pieces.size(); ++i) {
            counted.push_back(static_cast<std::int32_t>(in_pass[i]->id));
            counted.push_back(static_cast<std::int32_t>(pieces[i].ids.size()));
        }
        JsonLine line;
        line.add("t", ticks_).add("event", "encode").add("pieces", counted);
        note(line);
    }
    const auto begin = Clock::now();
    ++stats_.encode_passes;
    std::vector<Status> done(pieces.size());
    done[0] = guarded([&] { return loaded_.model->encode(pieces); });
    // A pass that failed has changed nothing and does not say whose fault it was.
    if (pieces.size() > 1) {
        const bool together = done[0].ok();
        for (std::size_t i = 0; i < pieces.size(); ++i) {
            if (together) continue;
            ++stats_.encode_passes;
            done[i] = guarded([&] { return loaded_.model->encode(std::span(&pieces[i], 1)); });
        }
    }
    const double ms = 1000 * seconds_since(begin);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        if (!done[i]) {
            fail(*in_pass[i], done[i].error());
            continue;
        }
        stats_.encoded_tokens += pieces[i].ids.size();
        const Status told = guarded([&] {
            in_pass[i]->reply->encoded(ms);
            return Status();
        });
        if (!told) fail(*in_pass[i], told.error());
    }
}

void Runner::denoise_pass(std::span<Task* const> tasks) {
    std::vector<Task*> ready;
    std::vector<model::Canvas> canvases;
    ready.reserve(tasks.size());
    canvases.reserve(tasks.size());
    for (Task* task : tasks) {
        const Status begun = guarded([&]() -> Status {
            DGEMMA_TRY(const model::Canvas canvas, task->reply->canvas());
            ready.push_back(task);
            canvases.push_back(canvas);
            return {};
        });
        if (!begun) fail(*task, begun.error());
    }
    // The cutoff of soft embeddings is the backend's, so each value of it is a pass.
    for (std::size_t begin = 0; begin < ready.size();) {
        const float cutoff = ready[begin]->reply->soft_cutoff();
        std::size_t end = begin;
        for (std::size_t i = begin; i < ready.size(); ++i) {
            if (ready[i]->reply->soft_cutoff() != cutoff) continue;
            // Moved up next to its like, the others keep their order.
            std::rotate(ready.begin() + static_cast<std::ptrdiff_t>(end),
                        ready.begin() + static_cast<std::ptrdiff_t>(i),
                        ready.begin() + static_cast<std::ptrdiff_t>(i) + 1);
            std::rotate(canvases.begin() + static_cast<std::ptrdiff_t>(end),
                        canvases.begin() + static_cast<std::ptrdiff_t>(i),
                        canvases.begin() + static_cast<std::ptrdiff_t>(i) + 1);
            ++end;
        }
        const std::span<model::Canvas> together = std::span(canvases).subspan(begin, end - begin);
        if (record_ != nullptr) {
            std::vector<std::int32_t> ids;
            for (std::size_t i = begin; i < end; ++i) ids.push_back(static_cast<std::int32_t>(ready[i]->id));
            JsonLine line;
            line.add("t", ticks_).add("event", "denoise").add("ids", ids);
            note(line);
        }
        const auto started = Clock::now();
        loaded_.model->backend().set_soft_cutoff(cutoff);
        ++stats_.denoise_passes;
        std::vector<Status> done(together.size());
        done[0] = loaded_.model->denoise(together);
        if (together.size() > 1) {
            // Too much together may still be little enough one by one.
            const bool worked = done[0].ok();
            for (std::size_t i = 0; i < together.size() && !worked; ++i) {
                ++stats_.denoise_passes;
                done[i] = loaded_.model->denoise(together.subspan(i, 1));
            }
        }
        stats_.step_seconds.add(seconds_since(started));
        for (std::size_t i = 0; i < together.size(); ++i) {
            Task& task = *ready[begin + i];
            ++stats_.denoise_steps;
            Status status = std::move(done[i]);
            if (status) status = guarded([&] { return task.reply->denoised(together[i]); });
            if (!status) fail(task, status.error());
        }
        begin = end;
    }
}

}  // namespace dgemma::engine
