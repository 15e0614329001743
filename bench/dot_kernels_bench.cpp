// Products of one tile of 32 weight rows with a stack of panels, for each instruction set that this machine
// runs: GMAC/s, and the fraction of what the same instruction reaches in registers.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "backend/cpu/instruction_sets.h"
#include "base/dtype.h"

namespace dgemma {
namespace {

using namespace backend::cpu;

enum class Kind { f32, bf16, affine8, affine4 };

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Multiply-adds per second, the best of several short tries.
double peak_of(double (*burn)(std::int64_t)) {
    double best = 0;
    for (int i = 0; i < 20; ++i) {
        const double start = now();
        const double done = burn(200'000);
        best = std::max(best, done / (now() - start));
    }
    return best;
}

// A panel of `rows` rows, as large as the kernel takes unless told otherwise, eight times over: the tile
// stays where the kernel left it, as it does in a product of a canvas.
void tile(benchmark::State& state, const InstructionSet& set, Kind kind, std::int64_t k, int few) {
    constexpr int panels = 8;
    const DotKernels* dots = set.dots;
    const int rows = few > 0              ? few
                     : kind == Kind::f32  ? set.plain->rows
                     : kind == Kind::bf16 ? dots->bf16_rows
                                          : dots->byte_rows;
    const int columns = kind == Kind::f32 ? set.plain->cols : 32;
    std::vector<float> x(static_cast<std::size_t>(rows * k)), f32(static_cast<std::size_t>(k * columns));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
    for (std::size_t i = 0; i < f32.size(); ++i) f32[i] = std::cos(static_cast<float>(i));
    std::vector<std::uint16_t> bf16(static_cast<std::size_t>(32 * k)), scales(static_cast<std::size_t>(k)),
        biases(static_cast<std::size_t>(k));
    for (std::size_t i = 0; i < bf16.size(); ++i) bf16[i] = f32_to_bf16(std::cos(static_cast<float>(i)));
    std::fill(scales.begin(), scales.end(), f32_to_bf16(0.01f));
    std::fill(biases.begin(), biases.end(), f32_to_bf16(-0.1f));
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(32 * k));
    for (std::size_t i = 0; i < codes.size(); ++i)
        codes[i] = static_cast<std::uint8_t>(i * 37 % (kind == Kind::affine4 ? 16 : 256));
    std::vector<std::uint32_t> words(static_cast<std::size_t>(rows * k));
    std::vector<float> row_scales(words.size()), sums(words.size()), c(static_cast<std::size_t>(rows * 32));
    auto* bytes = reinterpret_cast<std::int32_t*>(words.data());
    std::vector<const float*> each;
    for (int r = 0; r < rows; ++r) each.push_back(x.data() + r * k);
    if (kind == Kind::bf16) dots->round_rows(each.data(), k, rows, words.data());
    for (int r = 0; r < rows && kind != Kind::f32 && kind != Kind::bf16; ++r)
        dots->quantise_row(each[static_cast<std::size_t>(r)], k, rows, r, bytes, row_scales.data(),
                           sums.data());
    const BytePanel panel{bytes, row_scales.data(), sums.data()};
    double best = 1e30;
    for (auto _ : state) {
        const double start = now();
        for (int p = 0; p < panels; ++p) {
            switch (kind) {
                case Kind::f32:
                    set.plain->tile(k, x.data(), f32.data(), columns, c.data(), columns, false);
                    break;
                case Kind::bf16:
                    dots->bf16(rows, k / 2, words.data(), reinterpret_cast<const std::uint32_t*>(bf16.data()),
                               c.data(), 32, false);
                    break;
                case Kind::affine8:
                    dots->affine8(rows, k, panel, codes.data(), scales.data(), biases.data(), c.data(), 32);
                    break;
                case Kind::affine4:
                    dots->affine4(rows, k, panel, codes.data(), scales.data(), biases.data(), c.data(), 32);
                    break;
            }
            benchmark::DoNotOptimize(c.data());
        }
        best = std::min(best, now() - start);
    }
    const double work = static_cast<double>(panels * rows * k * columns);
    state.counters["GMAC/s"] = work / best * 1e-9;
    state.counters["of_peak"] = work / best /
                                peak_of(kind == Kind::f32    ? set.plain->burn
                                        : kind == Kind::bf16 ? dots->burn_bf16
                                                             : dots->burn_bytes);
}

int add_benchmarks() {
    constexpr const char* names[] = {"f32", "bf16", "affine8", "affine4"};
    for (const InstructionSet& set : instruction_sets()) {
        for (const Kind kind : {Kind::f32, Kind::bf16, Kind::affine8, Kind::affine4}) {
            const bool has = kind == Kind::f32 ||
                             (set.dots != nullptr && (kind != Kind::bf16 || set.dots->bf16 != nullptr));
            if (!has) continue;
            for (const std::int64_t k : {704, 2112, 2816}) {
                const std::string name =
                    std::string(set.name) + "/" + names[static_cast<int>(kind)] + "/k:" + std::to_string(k);
                benchmark::RegisterBenchmark(name.c_str(), tile, set, kind, k, 0)->MinTime(0.05);
                if (kind != Kind::f32 && k == 2816)
                    benchmark::RegisterBenchmark((name + "/one_row").c_str(), tile, set, kind, k, 1)
                        ->MinTime(0.05);
            }
        }
    }
    return 0;
}
[[maybe_unused]] const int added = add_benchmarks();

}  // namespace
}  // namespace dgemma
