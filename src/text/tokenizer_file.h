// The bytes of a tokenizer.json on disk.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "base/result.h"

namespace dgemma::text {

// The largest tokenizer.json that is read, unpacked. The real one has 32 MB.
inline constexpr std::size_t kLargestTokenizerFile = std::size_t{512} << 20;

// The text of `file`, gunzipped if its content is gzip. Never holds more than `limit` bytes, however far a
// gzip file would expand. The string has spare capacity for the JSON parser. Errors: those of
// files::Mapping::open; invalid (a broken gzip, too large).
Result<std::string> read_tokenizer_file(const std::filesystem::path& file,
                                        std::size_t limit = kLargestTokenizerFile);

}  // namespace dgemma::text
