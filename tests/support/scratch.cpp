#include "support/scratch.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <system_error>

#include <unistd.h>

#include <nlohmann/json.hpp>

namespace dgemma::testing {

namespace fs = std::filesystem;

ScratchDir::ScratchDir() {
    std::string pattern = (fs::temp_directory_path() / "dgemma-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no scratch directory " + pattern);
    path_ = pattern;
}

ScratchDir::~ScratchDir() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
}

fs::path ScratchDir::write(const fs::path& name, std::string_view bytes) const {
    const fs::path path = path_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream out(path, std::ios::binary);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!out) throw std::runtime_error("cannot write " + path.string());
    return path;
}

void ScratchDir::copy_from(const fs::path& directory) const {
    for (const auto& entry : fs::directory_iterator(directory)) {
        std::ifstream in(entry.path(), std::ios::binary);
        write(entry.path().filename(), std::string(std::istreambuf_iterator<char>(in), {}));
    }
}

std::string safetensors_bytes(std::string_view header, std::string_view data) {
    std::string out;
    for (std::size_t i = 0; i < 8; ++i) {
        out += static_cast<char>(static_cast<std::uint64_t>(header.size()) >> (8 * i) & 0xFF);
    }
    return out.append(header).append(data);
}

std::string safetensors_of(const std::map<std::string, TensorSpec>& tensors) {
    nlohmann::json header = nlohmann::json::object();
    std::size_t at = 0;
    for (const auto& [name, spec] : tensors) {
        const std::size_t width = spec.dtype == "F32" || spec.dtype == "I32" || spec.dtype == "U32" ? 4
                                  : spec.dtype == "BF16" || spec.dtype == "F16"                     ? 2
                                                                                                    : 1;
        const std::size_t end = at + width * static_cast<std::size_t>(elements_of(spec.shape));
        header[name] = {{"dtype", spec.dtype}, {"shape", spec.shape}, {"data_offsets", {at, end}}};
        at = end;
    }
    return safetensors_bytes(header.dump(), std::string(at, '\0'));
}

}  // namespace dgemma::testing
