// The tokenizer vectors of tests/data, and the tokenizer they are for.
#pragma once

#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "support/shared.h"
#include "text/tokenizer.h"

namespace dgemma::testing {

// The lines of tests/data/goldens/tokenizer/<name>.
inline std::vector<nlohmann::json> golden_lines(const std::string& name) {
    std::ifstream in(data_dir() / "goldens/tokenizer" / name);
    std::vector<nlohmann::json> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
}

// The real tokenizer file, if it is here: it is not part of the project.
inline std::optional<std::filesystem::path> real_tokenizer_file() {
    const auto shared = shared_dir();
    if (!shared || !std::filesystem::exists(*shared / "tokenizer/tokenizer.json.gz")) return std::nullopt;
    return *shared / "tokenizer/tokenizer.json.gz";
}

// The real tokenizer, read once for all tests; null if it is not here.
inline const text::Tokenizer* real_tokenizer() {
    static const std::optional<text::Tokenizer> tokenizer = []() -> std::optional<text::Tokenizer> {
        const auto file = real_tokenizer_file();
        if (!file) return std::nullopt;
        auto loaded = text::Tokenizer::load(*file);
        EXPECT_TRUE(loaded.ok()) << loaded.error().message;
        if (!loaded) return std::nullopt;
        return std::move(loaded).value();
    }();
    return tokenizer ? &*tokenizer : nullptr;
}

// The tokenizer of the demo checkpoint: 2,048 tokens of the same scheme.
inline const text::Tokenizer& demo_tokenizer() {
    static const text::Tokenizer tokenizer = text::load_tokenizer_for(demo_dir()).value();
    return tokenizer;
}

}  // namespace dgemma::testing
