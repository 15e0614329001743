#include "files/checkpoint.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <simdjson.h>

#include "base/quote.h"
#include "files/locate.h"
#include "files/shard_names.h"

namespace dgemma::files {

namespace fs = std::filesystem;
namespace dom = simdjson::dom;

namespace {

constexpr std::string_view index_name = "model.safetensors.index.json";

// What config.json says that matters before it is understood: the repository it came from, and the
// quantisation.
struct ConfigHints {
    std::string repo;          // _name_or_path, where it is "org/name"
    std::string quantization;  // in words; empty where there is none
};

// A quantisation in words: quant_method and the format or algorithm beside it.
std::string quantization_words(dom::object config, bool mlx_key) {
    std::string_view method, detail;
    if (config["quant_method"].get(method) != simdjson::SUCCESS) {
        std::int64_t bits = 0;
        std::string_view mode;
        if (mlx_key || config["bits"].get(bits) == simdjson::SUCCESS ||
            config["group_size"].error() == simdjson::SUCCESS) {
            if (config["mode"].get(mode) != simdjson::SUCCESS) mode = "affine";
            if (config["bits"].get(bits) != simdjson::SUCCESS) return fmt::format("MLX {}", quote(mode));
            return fmt::format("MLX {}, {} bits", quote(mode), bits);
        }
        return "an unnamed quantisation";
    }
    for (const char* key : {"format", "quant_algo"}) {
        if (config[key].get(detail) == simdjson::SUCCESS)
            return fmt::format("{} {}", quote(method), quote(detail));
    }
    return quote(method);
}

ConfigHints config_hints(const fs::path& directory) {
    ConfigHints out;
    const auto text = files::read_text(directory / "config.json");
    dom::parser parser;
    dom::element root;
    if (!text || parser.parse(*text).get(root) != simdjson::SUCCESS) return out;
    std::string_view name;
    if (root["_name_or_path"].get(name) == simdjson::SUCCESS && is_repo_name(name)) out.repo = name;
    dom::element scope = root, inner;
    for (const bool nested : {false, true}) {
        if (nested && (root["text_config"].get(inner) != simdjson::SUCCESS)) break;
        if (nested) scope = inner;
        for (const char* key : {"quantization_config", "quantization"}) {
            dom::object config;
            if (!out.quantization.empty() || scope[key].get(config) != simdjson::SUCCESS) continue;
            if (config.size() != 0)
                out.quantization = quantization_words(config, std::strcmp(key, "quantization") == 0);
        }
    }
    return out;
}

Error missing_shard(const fs::path& directory, const std::string& file) {
    return {ErrorKind::not_found,
            fmt::format("The weights file {} is not in {}; download it with: {}", quote(file),
                        quote(directory.native()),
                        download_command(directory, file, config_hints(directory).repo))};
}

bool is_gguf(const fs::path& path) {
    if (path.native().ends_with(".gguf")) return true;
    const auto mapping = Mapping::open(path);
    return mapping && mapping->bytes().size() >= 4 && std::memcmp(mapping->bytes().data(), "GGUF", 4) == 0;
}

// Which files to open, and what the index says of them, if there is one.
struct Plan {
    fs::path directory;
    std::vector<std::string> files;
    std::vector<std::string> present;
    std::optional<ShardIndex> index;
};

Result<Plan> plan_directory(const fs::path& directory) {
    Plan plan;
    plan.directory = directory;
    DGEMMA_TRY(plan.present, list_files(directory));
    const auto has = [&](const std::string& name) {
        return std::binary_search(plan.present.begin(), plan.present.end(), name);
    };
    if (has(std::string(index_name))) {
        const fs::path path = directory / index_name;
        DGEMMA_TRY(const std::string text, files::read_text(path));
        DGEMMA_TRY(ShardIndex index, parse_shard_index(text, path.native()));
        const bool any = std::any_of(index.files.begin(), index.files.end(), has);
        // An index none of whose files is left was written before they were merged into one.
        if (any || !has("model.safetensors")) {
            plan.files = index.files;
            plan.index = std::move(index);
        }
    }
    if (!plan.index) {
        DGEMMA_TRY(plan.files, weight_files(directory, plan.present));
    }
    for (const std::string& file : plan.files) {
        if (!has(file)) return missing_shard(directory, file);
    }
    return plan;
}

Result<Plan> plan_file(const fs::path& path) {
    if (is_gguf(path)) {
        return Error{
            ErrorKind::unsupported,
            fmt::format(
                "The file {} is a GGUF, which dgemma cannot run; it runs safetensors in bf16, f16 or f32.",
                quote(path.native()))};
    }
    const std::string name = path.filename().native();
    const fs::path directory = path.has_parent_path() ? path.parent_path() : fs::path(".");
    if (name == index_name) return plan_directory(directory);
    if (!name.ends_with(".safetensors")) {
        return Error{
            ErrorKind::invalid,
            fmt::format("The file {} is no model; give a .safetensors file or the directory that holds it.",
                        quote(path.native()))};
    }
    if (const auto shard = shard_number(name); shard && shard->count > 1) return plan_directory(directory);
    Plan plan;
    plan.directory = directory;
    plan.files = {name};
    DGEMMA_TRY(plan.present, list_files(directory));
    return plan;
}

Error stale_index(const fs::path& directory, std::string_view tensor, std::string_view file) {
    return {ErrorKind::invalid,
            fmt::format(
                "The index {} does not belong to the files beside it: it says that tensor {} is in {}, and "
                "it is not; "
                "download the index again, or delete it to use the model-*.safetensors files as they are.",
                quote((directory / index_name).native()), quote(tensor), quote(file))};
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const fs::path& path) {
    std::error_code error;
    const auto status = fs::status(path, error);
    if (status.type() == fs::file_type::not_found) {
        return Error{ErrorKind::not_found,
                     fmt::format("There is no model at {}; check the path.", quote(path.native()))};
    }
    if (error) {
        return Error{ErrorKind::io, fmt::format("The model {} cannot be looked at: {}.", quote(path.native()),
                                                error.message())};
    }
    const bool manifest = !fs::is_directory(status) && path.filename() == kPackManifestName;
    if (manifest || (fs::is_directory(status) && files::is_pack(path))) {
        const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
        return open_pack(manifest ? parent : path);
    }
    DGEMMA_TRY(const Plan plan, fs::is_directory(status) ? plan_directory(path) : plan_file(path));

    Checkpoint out;
    out.directory_ = plan.directory;
    std::map<std::string_view, std::size_t>
        file_of;  // the keys are views of tensors_, whose nodes stay in place
    for (std::size_t i = 0; i < plan.files.size(); ++i) {
        const fs::path file = plan.directory / plan.files[i];
        Result<Safetensors> opened = Safetensors::open(file);
        // A link into a cache whose other end is gone.
        if (!opened && opened.error().kind == ErrorKind::not_found)
            return missing_shard(plan.directory, plan.files[i]);
        if (!opened) return std::move(opened).error();
        Safetensors shard = std::move(opened).value();
        for (const auto& [name, tensor] : shard.tensors()) {
            const auto [at, added] = out.tensors_.emplace(name, tensor);
            if (!added) {
                return Error{ErrorKind::invalid,
                             fmt::format("Tensor {} is in both {} and {}; remove the file that does not "
                                         "belong to the model in {}.",
                                         quote(name), quote(plan.files[file_of[name]]), quote(plan.files[i]),
                                         quote(plan.directory.native()))};
            }
            file_of.emplace(at->first, i);
        }
        out.files_.push_back(file);
        out.shards_.push_back(std::move(shard));
    }
    if (plan.index) {
        for (const auto& [name, file] : plan.index->file_of) {
            const auto found = file_of.find(name);
            if (found == file_of.end() || found->second != file) {
                return stale_index(plan.directory, name, plan.files[file]);
            }
        }
    }
    for (const std::string& name : plan.present) {
        if (name.ends_with(".safetensors") &&
            std::find(plan.files.begin(), plan.files.end(), name) == plan.files.end()) {
            out.ignored_.push_back(name);
        }
    }
    return out;
}

Result<Checkpoint> Checkpoint::open_pack(const fs::path& directory) {
    Checkpoint out;
    out.directory_ = directory;
    DGEMMA_TRY(out.pack_, Pack::open(directory));
    out.files_.push_back(out.pack_->blob_path());
    for (const PackTensor& tensor : out.pack_->manifest().tensors) {
        const WeightView view = out.pack_->view_of(tensor);
        if (view.encoding == Encoding::plain && view.layout == Layout::rows)
            out.tensors_.emplace(tensor.name, Tensor{view.codes, view.type, view.shape});
    }
    DGEMMA_TRY(const auto present, list_files(directory));
    for (const std::string& name : present) {
        if (name.ends_with(".safetensors")) out.ignored_.push_back(name);
    }
    return out;
}

std::optional<WeightView> Checkpoint::weight(std::string_view name) const {
    if (pack_) return pack_->weight(name);
    const Tensor* tensor = find(name);
    if (tensor == nullptr) return std::nullopt;
    return WeightView::of(*tensor);
}

const Tensor* Checkpoint::find(std::string_view name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
}

std::vector<std::string> Checkpoint::names() const {
    std::vector<std::string> out;
    if (pack_) {
        for (const PackTensor& tensor : pack_->manifest().tensors) out.push_back(tensor.name);
        std::sort(out.begin(), out.end());
        return out;
    }
    out.reserve(tensors_.size());
    for (const auto& [name, tensor] : tensors_) out.push_back(name);
    return out;
}

bool Checkpoint::has_file(std::string_view name) const {
    return is_plain_file_name(name) && is_there(directory_ / name);
}

Result<std::string> Checkpoint::read_text(std::string_view name) const {
    if (has_file(name)) {
        Result<std::string> text = files::read_text(directory_ / name);
        if (text || text.error().kind != ErrorKind::not_found) return text;
    }
    const bool link = has_file(name);
    return Error{ErrorKind::not_found,
                 fmt::format("The model in {} has {} {}; download it with: {}", quote(directory_.native()),
                             link ? "a link to nothing in place of" : "no", quote(name),
                             download_command(directory_, name, config_hints(directory_).repo))};
}

Status check_plain_storage(const Checkpoint& checkpoint) {
    if (checkpoint.is_pack()) return {};  // whatever its config.json says of the model it was made of
    std::string format = config_hints(checkpoint.path()).quantization;
    if (format.empty()) {
        // Each suffix is made by one format only (contract/checkpoints.md 2, 4, 4.1).
        struct Mark {
            std::string_view suffix, format;
        };
        constexpr std::array<Mark, 8> marks{{{".weight_scale_2", "ModelOpt NVFP4"},
                                             {".weight_packed", "compressed-tensors"},
                                             {".weight_scale_inv", "block-scaled FP8"},
                                             {".weight_scale", "compressed-tensors"},
                                             {".absmax", "bitsandbytes"},
                                             {".qweight", "GPTQ or AWQ"},
                                             {".scales", "an MLX quantisation"},
                                             {".weight_shape", "compressed-tensors"}}};
        for (const auto& [name, tensor] : checkpoint.tensors()) {
            for (const Mark& mark : marks) {
                if (format.empty() && name.ends_with(mark.suffix)) {
                    format = fmt::format("{} (tensor {})", mark.format, quote(name));
                }
            }
        }
    }
    if (format.empty()) return {};
    return Error{ErrorKind::unsupported, fmt::format("The model in {} is quantised as {}, which dgemma "
                                                     "cannot run; it runs plain safetensors in bf16, f16 "
                                                     "or f32.",
                                                     quote(checkpoint.path().native()), format)};
}

}  // namespace dgemma::files
