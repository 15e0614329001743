// Any bytes as a safetensors file: parse() must refuse them with a sentence, or give tensors that lie inside
// them.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "files/safetensors.h"

namespace {

void require(bool held) {
    if (!held) std::abort();
}

void try_file(std::span<const std::byte> bytes) {
    const auto file = dgemma::files::Safetensors::parse(bytes, "fuzz");
    if (!file) {
        require(!file.error().message.empty());
        return;
    }
    for (const auto& [name, tensor] : file->tensors()) {
        const auto begin = static_cast<std::size_t>(tensor.data - bytes.data());
        require(begin <= bytes.size() && tensor.bytes() <= bytes.size() - begin);
        if (tensor.bytes() != 0) require(static_cast<int>(tensor.data[tensor.bytes() - 1]) >= 0);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto bytes = std::as_bytes(std::span(data, size));
    try_file(bytes);
    // The same with a length that fits, so that the search is for headers and not for eight bytes: everything
    // up to the first line feed is the header.
    std::size_t header = 0;
    while (header < size && data[header] != '\n') ++header;
    std::vector<std::byte> framed(8);
    for (std::size_t i = 0; i < 8; ++i)
        framed[i] = static_cast<std::byte>(static_cast<std::uint64_t>(header) >> (8 * i) & 0xFF);
    framed.insert(framed.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(header));
    if (header < size)
        framed.insert(framed.end(), bytes.begin() + static_cast<std::ptrdiff_t>(header) + 1, bytes.end());
    try_file(framed);
    return 0;
}
