#include "cli/read_input.h"

#include <array>
#include <cerrno>
#include <fstream>
#include <system_error>

#include <fmt/format.h>

#include "base/quote.h"

namespace dgemma::cli {

namespace {

constexpr std::size_t longest = std::size_t{256} << 20;  // a device may never end

Result<std::string> read_all(std::istream& in, const std::string& what) {
    std::string out;
    std::array<char, 65536> piece;
    errno = 0;
    while (in.read(piece.data(), piece.size()) || in.gcount() > 0) {
        out.append(piece.data(), static_cast<std::size_t>(in.gcount()));
        if (out.size() > longest) {
            return Error{ErrorKind::invalid,
                         fmt::format("{} is longer than {} MiB; give less at a time.", what, longest >> 20)};
        }
    }
    // Opening a directory succeeds; only reading from it says that it is one.
    if (in.bad()) return unreadable(what, errno);
    if (out.starts_with("\xEF\xBB\xBF")) out.erase(0, 3);
    return out;
}

}  // namespace

std::string system_reason(int code) {
    return code == 0 ? std::string() : ": " + std::generic_category().message(code);
}

Error unreadable(const std::string& what, int code) {
    return {ErrorKind::io, fmt::format("{} cannot be read{}.", what, system_reason(code))};
}

std::string Inputs::name_of(const std::string& path) { return path == "-" ? "stdin" : quote(path); }

Result<std::istream*> Inputs::stdin_stream(std::string_view reader) {
    if (!stdin_reader_.empty()) {
        return Error{ErrorKind::usage,
                     fmt::format("Stdin is asked for twice, for {} and for {}, and can be read once; put one "
                                 "of them into a file.",
                                 stdin_reader_, reader)};
    }
    stdin_reader_ = reader;
    return &console_.in;
}

Result<std::string> Inputs::read_stdin(std::string_view reader) {
    DGEMMA_TRY(std::istream * in, stdin_stream(reader));
    return read_all(*in, "stdin");
}

Result<std::string> Inputs::read(const std::string& path, std::string_view flag) {
    if (path == "-") return read_stdin(flag);
    errno = 0;
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        const int code = errno;
        return Error{
            code == ENOENT || code == ENOTDIR ? ErrorKind::not_found : ErrorKind::io,
            fmt::format("The file {} of {} cannot be opened{}.", quote(path), flag, system_reason(code))};
    }
    return read_all(file, fmt::format("The file {}", quote(path)));
}

}  // namespace dgemma::cli
