// Which files of a directory hold a checkpoint's weights: the names, before any is opened.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace dgemma::files {

// "model-00002-of-00011.safetensors" -> {2, 11}.
struct ShardNumber {
    int number = 0, count = 0;
};
std::optional<ShardNumber> shard_number(std::string_view file_name);

// "model-00002-of-00011.safetensors"
std::string shard_name(int number, int count);

// Whether a name stands for a file of its own directory: not empty, no "/", not "." or "..".
bool is_plain_file_name(std::string_view name);

// The weight_map of a model.safetensors.index.json.
struct ShardIndex {
    std::vector<std::string> files;                           // each once, sorted
    std::map<std::string, std::size_t, std::less<>> file_of;  // tensor -> position in `files`
};

// Errors: invalid (broken JSON, no weight_map, a tensor twice, a file name that leads out of the directory).
Result<ShardIndex> parse_shard_index(std::string_view json, std::string_view where);

// The names of all that lies in a directory, sorted: also of what is no file, since opening that says so.
Result<std::vector<std::string>> list_files(const std::filesystem::path& directory);

// The files to open in a directory without an index; the rule is at Checkpoint::open. `files` is what
// list_files said. A shard that the set lacks is in the list too: opening it says how to get it.
Result<std::vector<std::string>> weight_files(const std::filesystem::path& directory,
                                              const std::vector<std::string>& files);

}  // namespace dgemma::files
