// Where tests find their data, and the golden tensors as vectors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "files/safetensors.h"

namespace dgemma::testing {

// The folder of reference data that is not part of the project: env DGEMMA_SHARED, else ../shared beside the
// source.
std::optional<std::filesystem::path> shared_dir();

std::filesystem::path source_dir();  // the checkout
std::filesystem::path data_dir();    // tests/data
std::filesystem::path demo_dir();    // models/demo

// goldens/hf/<name>: the copy in tests/data first, then the shared folder's. "calm-f32", "text-f32",
// "demo-traces" (f32 only) are always there.
std::optional<std::filesystem::path> golden_dir(std::string_view name);

// Skips the running test with a sentence unless `found` holds something.
#define DGEMMA_SKIP_WITHOUT(found, what) \
    if (!(found))                        \
    GTEST_SKIP() << "skipped: " << (what) << " is not there (set DGEMMA_SHARED to the shared reference data)"

// One golden case: named tensors and the JSON beside them. Its functions throw std::runtime_error with a
// sentence when something is not there, which fails the test that asked.
class Golden {
  public:
    // <dir>/tensors.safetensors and <dir>/case.json
    explicit Golden(const std::filesystem::path& dir);
    // <dir>/<stem>.safetensors and <dir>/<stem>.json, as the demo traces have them
    Golden(const std::filesystem::path& dir, const std::string& stem);

    [[nodiscard]] const nlohmann::json& info() const { return info_; }
    [[nodiscard]] bool has(std::string_view name) const { return file_.find(name) != nullptr; }
    [[nodiscard]] const Tensor& tensor(std::string_view name) const;
    [[nodiscard]] Shape shape(std::string_view name) const { return tensor(name).shape; }
    [[nodiscard]] std::vector<float> f32(std::string_view name) const;         // F32, F16, BF16 tensors
    [[nodiscard]] std::vector<std::int32_t> i32(std::string_view name) const;  // I32, U8, BOOL tensors
    [[nodiscard]] const files::TensorMap& tensors() const { return file_.tensors(); }

  private:
    files::Safetensors file_;
    nlohmann::json info_;
};

}  // namespace dgemma::testing
