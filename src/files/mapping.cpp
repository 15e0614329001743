#include "files/mapping.h"

#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/quote.h"

namespace dgemma::files {

namespace {

struct Descriptor {
    int fd = -1;
    ~Descriptor() {
        if (fd >= 0) ::close(fd);
    }
};

Error cannot_open(const std::filesystem::path& path, int code) {
    const std::string name = quote(path.native());
    if (code == ENOENT && is_there(path)) {
        return {
            ErrorKind::not_found,
            fmt::format("{} is a link to a file that is not there; download the file again, or remove the "
                        "link.",
                        name)};
    }
    if (code == ENOENT || code == ENOTDIR) {
        return {ErrorKind::not_found, fmt::format("The file {} is not there; check the path.", name)};
    }
    if (code == EACCES || code == EPERM) {
        return {ErrorKind::io,
                fmt::format("There is no permission to read {}; make it readable (chmod +r).", name)};
    }
    return {ErrorKind::io,
            fmt::format("The file {} cannot be opened: {}.", name, std::generic_category().message(code))};
}

}  // namespace

Result<Mapping> Mapping::open(const std::filesystem::path& path) {
    // Without O_NONBLOCK, opening a named pipe waits for a writer.
    const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (file.fd < 0) return cannot_open(path, errno);
    struct stat info {};
    if (::fstat(file.fd, &info) != 0) return cannot_open(path, errno);
    const std::string name = quote(path.native());
    if (S_ISDIR(info.st_mode)) {
        return Error{ErrorKind::io, fmt::format("{} is a directory where a file is needed.", name)};
    }
    if (!S_ISREG(info.st_mode)) {
        return Error{ErrorKind::io, fmt::format("{} is not a regular file, so it cannot be mapped.", name)};
    }
    if (info.st_size <= 0) {
        return Error{ErrorKind::io, fmt::format("The file {} is empty; download it again.", name)};
    }
    Mapping mapping;
    const auto size = static_cast<std::size_t>(info.st_size);
    void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
    if (data == MAP_FAILED) {
        const std::string reason = std::generic_category().message(errno);
        return Error{ErrorKind::io,
                     fmt::format("The file {} ({} bytes) cannot be mapped: {}.", name, size, reason)};
    }
    mapping.data_ = static_cast<const std::byte*>(data);
    mapping.size_ = size;
    return mapping;
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

Mapping::~Mapping() {
    // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): munmap takes void*, the pages are read-only.
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void release_pages(std::span<const std::byte> bytes) {
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto begin = (reinterpret_cast<std::uintptr_t>(bytes.data()) + page - 1) / page * page;
    const auto end = (reinterpret_cast<std::uintptr_t>(bytes.data()) + bytes.size()) / page * page;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): pages are found by their addresses.
    if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

bool is_there(const std::filesystem::path& path) {
    std::error_code error;
    return std::filesystem::symlink_status(path, error).type() != std::filesystem::file_type::not_found;
}

Result<std::string> read_text(const std::filesystem::path& path, std::uint64_t max_bytes) {
    DGEMMA_TRY(const Mapping mapping, Mapping::open(path));
    const auto bytes = mapping.bytes();
    if (bytes.size() > max_bytes) {
        return Error{ErrorKind::invalid,
                     fmt::format("The file {} has {} bytes, more than the {} such a file may have.",
                                 quote(path.native()), bytes.size(), max_bytes)};
    }
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace dgemma::files
