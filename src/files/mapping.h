// A file's bytes in memory without reading them: the owner of a read-only mapping.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "base/result.h"

namespace dgemma::files {

// Movable owner of a mapping. Views of its bytes stay valid while it lives, also after it was moved from here
// to there. A file that another process cuts short while it is mapped ends this process (SIGBUS), as with any
// mapping.
class Mapping {
  public:
    // Maps a whole regular file of at least one byte. Errors: not_found; io (no permission, a directory, a
    // device, an empty file, out of address space).
    static Result<Mapping> open(const std::filesystem::path& path);

    Mapping() = default;
    Mapping(Mapping&& other) noexcept;
    Mapping& operator=(Mapping&& other) noexcept;
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    ~Mapping();

    [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }

  private:
    const std::byte* data_ = nullptr;
    std::size_t size_ = 0;
};

// Mapped bytes that will not be read again soon: their pages no longer count as memory of this process. A
// later read finds them in the file again. For bytes of a Mapping only.
void release_pages(std::span<const std::byte> bytes);

// Whether a directory has an entry of this name: also a link to nothing, or what is no file. What is there
// and cannot be read is broken, not absent.
bool is_there(const std::filesystem::path& path);

// The whole of a small file (config.json, a template) as text, whatever its encoding. Errors: as
// Mapping::open, and invalid when it is longer than `max_bytes`.
Result<std::string> read_text(const std::filesystem::path& path,
                              std::uint64_t max_bytes = std::uint64_t{64} << 20);

}  // namespace dgemma::files
