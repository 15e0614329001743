#include "text/tokenizer_file.h"

#include <algorithm>
#include <limits>
#include <new>
#include <span>

#include <fmt/core.h>
#include <simdjson.h>
#include <zlib.h>

#include "base/quote.h"
#include "files/mapping.h"

namespace dgemma::text {

namespace {

Error broken_gzip(const std::filesystem::path& file, std::string_view what) {
    return {ErrorKind::invalid, fmt::format("The file {} is no complete gzip file ({}); download it again.",
                                            quote(file.native()), what)};
}

Error too_large(const std::filesystem::path& file, std::size_t limit) {
    return {ErrorKind::invalid,
            fmt::format("The file {} holds more than the {} bytes that a tokenizer may have.",
                        quote(file.native()), limit)};
}

struct Inflater {
    z_stream stream{};
    bool ready = false;

    // 16 + 15: the gzip format with the largest window.
    Inflater() : ready(inflateInit2(&stream, 16 + 15) == Z_OK) {}
    ~Inflater() {
        if (ready) inflateEnd(&stream);
    }
    Inflater(const Inflater&) = delete;
    Inflater& operator=(const Inflater&) = delete;
};

Result<std::string> gunzip(const std::filesystem::path& file, std::span<const std::byte> packed,
                           std::size_t limit) {
    Inflater inflater;
    if (!inflater.ready) return Error{ErrorKind::io, "zlib cannot be started: not enough memory."};
    z_stream& stream = inflater.stream;
    constexpr std::size_t kStep = std::size_t{1} << 30;  // zlib counts in 32 bits
    std::string text;
    std::size_t written = 0;
    for (;;) {
        if (stream.avail_in == 0) {
            const std::size_t step = std::min(packed.size(), kStep);
            // zlib's interface is not const, but it only reads.
            stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed.data()));
            stream.avail_in = static_cast<uInt>(step);
            packed = packed.subspan(step);
        }
        if (written == text.size()) {
            if (written > limit) return too_large(file, limit);
            // One byte above the limit tells a text that ends at it from one that goes on.
            text.resize(std::min(std::max(written * 2, std::size_t{1} << 20), limit + 1));
        }
        const std::size_t room = std::min(text.size() - written, kStep);
        stream.next_out = reinterpret_cast<Bytef*>(text.data() + written);
        stream.avail_out = static_cast<uInt>(room);
        const int code = inflate(&stream, Z_NO_FLUSH);
        written += room - stream.avail_out;
        if (code == Z_STREAM_END) break;
        if (code == Z_BUF_ERROR ||
            (code == Z_OK && stream.avail_in == 0 && stream.avail_out != 0 && packed.empty())) {
            return broken_gzip(file, "it ends too early");
        }
        if (code != Z_OK) return broken_gzip(file, stream.msg != nullptr ? stream.msg : "damaged data");
    }
    if (written > limit) return too_large(file, limit);
    text.resize(written);
    text.reserve(written + simdjson::SIMDJSON_PADDING);
    return text;
}

}  // namespace

Result<std::string> read_tokenizer_file(const std::filesystem::path& file, std::size_t limit) {
    try {
        DGEMMA_TRY(const auto mapping, files::Mapping::open(file));
        const auto bytes = mapping.bytes();
        if (bytes.size() >= 2 && bytes[0] == std::byte{0x1F} && bytes[1] == std::byte{0x8B}) {
            return gunzip(file, bytes, limit);
        }
        if (bytes.size() > limit) return too_large(file, limit);
        std::string text;
        text.reserve(bytes.size() + simdjson::SIMDJSON_PADDING);
        text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        return text;
    } catch (const std::bad_alloc&) {
        return Error{ErrorKind::io, fmt::format("The file {} does not fit into memory; free some memory.",
                                                quote(file.native()))};
    }
}

}  // namespace dgemma::text
