// The tokenizer on one core: loading the real tokenizer.json, and encoding and decoding ten megabytes of
// text. Times are processor times. Needs the real tokenizer (env DGEMMA_SHARED, else ../shared beside the
// source).
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <benchmark/benchmark.h>

#include <nlohmann/json.hpp>

#include "text/tokenizer.h"
#include "text/tokenizer_file.h"

namespace {

namespace fs = std::filesystem;
using dgemma::text::Specials;
using dgemma::text::Tokenizer;

constexpr std::size_t kBytes = 10'000'000;

fs::path packed_file() {
    const char* shared = std::getenv("DGEMMA_SHARED");
    return fs::path(shared != nullptr ? shared : DGEMMA_SOURCE_DIR "/../shared") /
           "tokenizer/tokenizer.json.gz";
}

// The real file unpacked to where benchmarks may write; empty if it is not here.
fs::path plain_file() {
    static const fs::path file = [] {
        auto text = dgemma::text::read_tokenizer_file(packed_file());
        if (!text) return fs::path();
        fs::path path = fs::temp_directory_path() / "dgemma-bench-tokenizer.json";
        std::ofstream(path, std::ios::binary) << *text;
        return path;
    }();
    return file;
}

const Tokenizer* real_tokenizer() {
    static const auto tokenizer = Tokenizer::load(packed_file());
    return tokenizer.ok() ? &*tokenizer : nullptr;
}

std::string repeated(const std::string& unit) {
    std::string text;
    while (text.size() < kBytes) text += unit;
    return text;
}

// The texts of the golden vectors one after the other, again and again.
std::string golden_text() {
    std::ifstream in(DGEMMA_SOURCE_DIR "/tests/data/goldens/tokenizer/encode.jsonl");
    std::string all;
    for (std::string line; std::getline(in, line);) {
        all += nlohmann::json::parse(line)["text"].get<std::string>();
    }
    return repeated(all);
}

std::string golden_text_without_line_feeds() {
    std::string text = golden_text();
    std::erase(text, '\n');
    return text;
}

// No place of these is safe to cut at.
std::string one_letter() { return std::string(kBytes, 'a'); }
std::string random_letters() {
    std::string text(kBytes, 'a');
    std::uint32_t state = 1;
    for (char& c : text) {
        state = state * 1664525u + 1013904223u;
        c = static_cast<char>('a' + (state >> 16) % 26);
    }
    return text;
}

void load(benchmark::State& state, const fs::path& file) {
    for (auto _ : state) {
        const auto tokenizer = Tokenizer::load(file);
        if (!tokenizer) return state.SkipWithError(tokenizer.error().message.c_str());
    }
}

void load_plain(benchmark::State& state) { load(state, plain_file()); }
void load_gzip(benchmark::State& state) { load(state, packed_file()); }

void encode(benchmark::State& state, std::string (*make)()) {
    const Tokenizer* tokenizer = real_tokenizer();
    if (tokenizer == nullptr) return state.SkipWithError("the real tokenizer.json.gz is not there");
    const std::string text = make();
    std::size_t ids = 0;
    for (auto _ : state) ids = tokenizer->encode(text, Specials::parse).size();
    state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * text.size()));
    state.counters["ids"] = static_cast<double>(ids);
}

void decode(benchmark::State& state, std::string (*make)()) {
    const Tokenizer* tokenizer = real_tokenizer();
    if (tokenizer == nullptr) return state.SkipWithError("the real tokenizer.json.gz is not there");
    const auto ids = tokenizer->encode(make(), Specials::parse);
    std::size_t bytes = 0;
    for (auto _ : state) bytes = tokenizer->decode(ids, false).size();
    state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * bytes));
}

BENCHMARK(load_plain)->Unit(benchmark::kMillisecond);
BENCHMARK(load_gzip)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode, goldens, golden_text)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode, goldens_without_line_feed, golden_text_without_line_feeds)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode, one_letter, one_letter)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(encode, random_letters, random_letters)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(decode, goldens, golden_text)->Unit(benchmark::kMillisecond);

}  // namespace
