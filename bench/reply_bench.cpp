// Whole short replies of the demo model: prefill, two passes, text ids. One iteration is one reply.
#include <benchmark/benchmark.h>

#include "engine/generator.h"
#include "files/checkpoint.h"

namespace {

using namespace dgemma;

void reply(benchmark::State& state, backend::Precision precision) {
    const auto checkpoint = files::Checkpoint::open(DGEMMA_SOURCE_DIR "/models/demo").value();
    auto generator = engine::Generator::load(
                         checkpoint, {.precision = precision, .threads = static_cast<int>(state.range(0))})
                         .value();
    engine::Request request;
    // <bos><|turn>user\nWhat is the capital of France?<turn|>\n<|turn>model\n
    request.prompt = {2, 105, 602, 495, 819, 391, 264, 1079, 307, 1083, 521, 106, 495, 105, 601, 495};
    request.diffusion = generator->default_options();
    request.diffusion.max_steps = 2;
    engine::Sink silent;
    int steps = 0;
    for (auto _ : state) {
        const auto end = generator->generate(request, silent).value();
        steps += end.stats.steps;
    }
    state.counters["passes"] = benchmark::Counter(steps, benchmark::Counter::kAvgIterations);
}

BENCHMARK_CAPTURE(reply, f32, backend::Precision::f32)
    ->Arg(1)
    ->Arg(2)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(reply, bf16, backend::Precision::bf16)
    ->Arg(2)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(reply, mixed, backend::Precision::mixed)
    ->Arg(1)
    ->Arg(2)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
