#include "support/shared.h"

#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <utility>

namespace dgemma::testing {

namespace fs = std::filesystem;

namespace {

files::Safetensors open_tensors(const fs::path& path) {
    auto file = files::Safetensors::open(path);
    if (!file) throw std::runtime_error(file.error().message);
    return std::move(file).value();
}

nlohmann::json open_json(const fs::path& path) {
    std::ifstream in(path);
    if (!in) throw std::runtime_error("no file " + path.string());
    return nlohmann::json::parse(in);
}

}  // namespace

std::optional<fs::path> shared_dir() {
    const char* named = std::getenv("DGEMMA_SHARED");
    const fs::path dir =
        named != nullptr && *named != '\0' ? fs::path(named) : fs::path(DGEMMA_SOURCE_DIR) / "../shared";
    std::error_code error;
    if (!fs::is_directory(dir, error)) return std::nullopt;
    return dir;
}

fs::path source_dir() { return DGEMMA_SOURCE_DIR; }
fs::path data_dir() { return fs::path(DGEMMA_SOURCE_DIR) / "tests/data"; }
fs::path demo_dir() { return fs::path(DGEMMA_SOURCE_DIR) / "models/demo"; }

std::optional<fs::path> golden_dir(std::string_view name) {
    std::error_code error;
    const fs::path own = data_dir() / "goldens/hf" / name;
    if (fs::is_directory(own, error)) return own;
    if (const auto shared = shared_dir()) {
        const fs::path theirs = *shared / "goldens/hf" / name;
        if (fs::is_directory(theirs, error)) return theirs;
    }
    return std::nullopt;
}

Golden::Golden(const fs::path& dir)
    : file_(open_tensors(dir / "tensors.safetensors")), info_(open_json(dir / "case.json")) {}

Golden::Golden(const fs::path& dir, const std::string& stem)
    : file_(open_tensors(dir / (stem + ".safetensors"))), info_(open_json(dir / (stem + ".json"))) {}

const Tensor& Golden::tensor(std::string_view name) const {
    const Tensor* found = file_.find(name);
    if (found == nullptr) throw std::runtime_error("no golden tensor " + std::string(name));
    return *found;
}

std::vector<float> Golden::f32(std::string_view name) const {
    const Tensor& t = tensor(name);
    if (t.type != Dtype::f32 && t.type != Dtype::f16 && t.type != Dtype::bf16) {
        throw std::runtime_error("golden tensor " + std::string(name) + " is no floating one");
    }
    return to_f32(t);
}

std::vector<std::int32_t> Golden::i32(std::string_view name) const {
    const Tensor& t = tensor(name);
    if (t.type != Dtype::i32 && t.type != Dtype::u8 && t.type != Dtype::boolean && t.type != Dtype::i64) {
        throw std::runtime_error("golden tensor " + std::string(name) + " is no integer one");
    }
    return to_i32(t);
}

}  // namespace dgemma::testing
