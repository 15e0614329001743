#include "files/safetensors_writer.h"

#include <cstdint>
#include <fstream>
#include <system_error>

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/quote.h"

namespace dgemma::files {

namespace fs = std::filesystem;

Status write_safetensors(const fs::path& path, const std::map<std::string, F32Tensor>& tensors) {
    nlohmann::ordered_json header = nlohmann::ordered_json::object();
    std::uint64_t offset = 0;
    for (const auto& [name, tensor] : tensors) {
        if (static_cast<std::size_t>(elements_of(tensor.shape)) != tensor.values.size()) {
            return Error{ErrorKind::invalid,
                         fmt::format("{} has {} numbers, and a shape for {}.", quote(name),
                                     tensor.values.size(), elements_of(tensor.shape))};
        }
        const std::uint64_t end = offset + tensor.values.size_bytes();
        header[name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
        offset = end;
    }
    std::string text = header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
    text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the numbers begin aligned

    const fs::path partial = path.string() + ".partial";
    std::ofstream out(partial, std::ios::binary);
    const std::uint64_t length = text.size();
    for (int byte = 0; byte < 8; ++byte) out.put(static_cast<char>(length >> 8 * byte & 0xFF));
    out.write(text.data(), static_cast<std::streamsize>(text.size()));
    for (const auto& [name, tensor] : tensors) {
        out.write(reinterpret_cast<const char*>(tensor.values.data()),
                  static_cast<std::streamsize>(tensor.values.size_bytes()));
    }
    out.close();
    std::error_code problem;
    if (out) fs::rename(partial, path, problem);
    if (!out || problem) {
        std::error_code ignored;
        fs::remove(partial, ignored);
        return Error{ErrorKind::io,
                     fmt::format("{} cannot be written; check the path and the room on the disk.",
                                 quote(path.string()))};
    }
    return {};
}

}  // namespace dgemma::files
