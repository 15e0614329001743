#include "files/shard_names.h"

#include <algorithm>
#include <charconv>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <simdjson.h>

#include "base/quote.h"
#include "files/locate.h"

namespace dgemma::files {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view extension = ".safetensors";

std::optional<int> digits(std::string_view text) {
    int value = 0;
    if (text.size() != 5) return std::nullopt;
    const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || rest != text.data() + text.size() || value < 1) return std::nullopt;
    return value;
}

bool holds(const std::vector<std::string>& files, std::string_view name) {
    return std::binary_search(files.begin(), files.end(), name);
}

// What lies in a directory without safetensors, by the form people publish it in.
Error no_weights(const fs::path& directory, const std::vector<std::string>& files) {
    const auto first_with = [&](std::string_view end) {
        return std::find_if(files.begin(), files.end(),
                            [&](const auto& name) { return name.ends_with(end); });
    };
    const std::string where = quote(directory.native());
    for (const auto& [end, format] : {std::pair<std::string_view, std::string_view>{".gguf", "GGUF"},
                                      {".dgq.json", "a .dgq pack"},
                                      {".bin", "PyTorch pickles"},
                                      {".pt", "PyTorch pickles"},
                                      {".pth", "PyTorch pickles"}}) {
        if (const auto found = first_with(end); found != files.end()) {
            return {
                ErrorKind::unsupported,
                fmt::format(
                    "The model in {} is stored as {} ({}), which dgemma cannot run; it runs safetensors in "
                    "bf16, f16 or f32.",
                    where, format, quote(*found))};
        }
    }
    if (const auto found = first_with(extension); found != files.end()) {
        return {
            ErrorKind::not_found,
            fmt::format(
                "The directory {} has neither model.safetensors nor a set model-0000N-of-0000M.safetensors, "
                "only {}; name that file itself if it is the model.",
                where, quote(*found))};
    }
    return {ErrorKind::not_found,
            fmt::format("The directory {} holds no model weights; download them with: {}", where,
                        download_command(directory, "", ""))};
}

}  // namespace

std::optional<ShardNumber> shard_number(std::string_view name) {
    constexpr std::string_view start = "model-", middle = "-of-";
    if (name.size() != start.size() + 5 + middle.size() + 5 + extension.size() ||
        name.substr(0, start.size()) != start || name.substr(start.size() + 5, middle.size()) != middle ||
        !name.ends_with(extension)) {
        return std::nullopt;
    }
    const auto number = digits(name.substr(start.size(), 5));
    const auto count = digits(name.substr(start.size() + 5 + middle.size(), 5));
    if (!number || !count || *number > *count) return std::nullopt;
    return ShardNumber{*number, *count};
}

std::string shard_name(int number, int count) {
    return fmt::format("model-{:05}-of-{:05}{}", number, count, extension);
}

bool is_plain_file_name(std::string_view name) {
    return !name.empty() && name != "." && name != ".." && name.size() <= 255 &&
           name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

Result<ShardIndex> parse_shard_index(std::string_view json, std::string_view where) {
    namespace dom = simdjson::dom;
    const auto broken = [&](const std::string& what) {
        return Error{
            ErrorKind::invalid,
            fmt::format(
                "The index {} is broken: {}; download it again, or delete it to use the model-*.safetensors "
                "files as they are.",
                quote(where), what)};
    };
    dom::parser parser;
    dom::element root;
    if (const auto error = parser.parse(json.data(), json.size(), true).get(root);
        error != simdjson::SUCCESS) {
        return broken(fmt::format("it is no JSON ({})", simdjson::error_message(error)));
    }
    dom::object object, map;
    if (root.get_object().get(object) != simdjson::SUCCESS) return broken("it is no JSON object");
    bool found = false;
    for (const dom::key_value_pair field : object) {
        if (field.key != "weight_map") continue;
        if (std::exchange(found, true)) return broken("it has \"weight_map\" twice");
        if (field.value.get_object().get(map) != simdjson::SUCCESS)
            return broken("its weight_map is no object");
    }
    if (!found) return broken("it has no weight_map");

    std::map<std::string, std::string, std::less<>> file_of;
    ShardIndex out;
    for (const dom::key_value_pair field : map) {
        std::string_view file;
        if (field.value.get_string().get(file) != simdjson::SUCCESS) {
            return broken(fmt::format("tensor {} has no file name", quote(field.key)));
        }
        if (!is_plain_file_name(file)) {
            return broken(fmt::format("tensor {} is in {}, which is no file of the same directory",
                                      quote(field.key), quote(file)));
        }
        if (!file.ends_with(extension)) {
            return broken(fmt::format("tensor {} is in {}, which is no .safetensors file", quote(field.key),
                                      quote(file)));
        }
        if (!file_of.emplace(std::string(field.key), std::string(file)).second) {
            return broken(fmt::format("it names tensor {} twice", quote(field.key)));
        }
        out.files.emplace_back(file);
    }
    if (file_of.empty()) return broken("its weight_map is empty");
    std::sort(out.files.begin(), out.files.end());
    out.files.erase(std::unique(out.files.begin(), out.files.end()), out.files.end());
    for (const auto& [tensor, file] : file_of) {
        const auto at = std::lower_bound(out.files.begin(), out.files.end(), file);
        out.file_of.emplace(tensor, static_cast<std::size_t>(at - out.files.begin()));
    }
    return out;
}

Result<std::vector<std::string>> list_files(const fs::path& directory) {
    std::vector<std::string> out;
    std::error_code error;
    for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
        out.push_back(it->path().filename().native());
    }
    if (error) {
        return Error{ErrorKind::io, fmt::format("The directory {} cannot be read: {}.",
                                                quote(directory.native()), error.message())};
    }
    std::sort(out.begin(), out.end());
    return out;
}

Result<std::vector<std::string>> weight_files(const fs::path& directory,
                                              const std::vector<std::string>& files) {
    if (holds(files, "model.safetensors")) return std::vector<std::string>{"model.safetensors"};

    std::map<int, int> present;  // shards in the set -> how many are there
    for (const std::string& name : files) {
        if (const auto shard = shard_number(name)) ++present[shard->count];
    }
    if (present.empty()) return no_weights(directory, files);
    std::vector<int> complete;
    for (const auto& [count, n] : present) {
        if (n == count) complete.push_back(count);
    }
    if (complete.size() != 1 && present.size() > 1) {
        return Error{ErrorKind::invalid,
                     fmt::format("The directory {} mixes shards of several sets (of {} and of {} files) and "
                                 "has no index that says "
                                 "which count; delete those that do not belong.",
                                 quote(directory.native()), present.begin()->first, present.rbegin()->first)};
    }
    const int count = complete.empty() ? present.begin()->first : complete.front();
    std::vector<std::string> out;
    out.reserve(static_cast<std::size_t>(count));
    for (int i = 1; i <= count; ++i) out.push_back(shard_name(i, count));
    return out;
}

}  // namespace dgemma::files
