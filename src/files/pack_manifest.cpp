#include "files/pack_manifest.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <simdjson.h>

#include <nlohmann/json.hpp>

#include "base/quote.h"
#include "base/sha256.h"
#include "files/shard_names.h"

namespace dgemma::files {

namespace {

namespace dom = simdjson::dom;
using nlohmann::json;

constexpr std::string_view format_name = "dgemma-pack";
constexpr std::size_t most_dimensions = 8;
constexpr std::array encodings{Encoding::plain, Encoding::affine8, Encoding::affine4, Encoding::fp8_row,
                               Encoding::nvfp4};
constexpr std::array layouts{Layout::rows, Layout::tiles};
constexpr std::array types{Dtype::f32, Dtype::f16, Dtype::bf16};

// --- writing

json part_json(const PackPart& part) {
    return {{"offset", part.offset}, {"bytes", part.bytes}, {"sha256", part.sha256}};
}

json tensor_json(const PackTensor& tensor) {
    json out = {{"name", tensor.name},
                {"class", tensor.group},
                {"encoding", name_of(tensor.encoding)},
                {"layout", name_of(tensor.layout)},
                {"shape", tensor.shape}};
    if (tensor.encoding == Encoding::plain) out["dtype"] = name_of(tensor.type);
    if (!tensor.kept.empty()) out["kept"] = tensor.kept;
    for (const NamedPart& named : kPackParts) {
        const PackPart& part = tensor.*named.part;
        if (part.bytes != 0) out[std::string(named.name)] = part_json(part);
    }
    return out;
}

std::string dump(const json& value) {
    // Names may hold any bytes: a directory need not be UTF-8.
    return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string text_with_checksum(const PackManifest& manifest, std::string_view checksum) {
    std::string out = "{\n";
    const auto line = [&](std::string_view key, const json& value) {
        out += fmt::format("\"{}\":{},\n", key, dump(value));
    };
    json files = json::object();
    for (const auto& [name, file] : manifest.files)
        files[name] = {{"bytes", file.bytes}, {"sha256", file.sha256}};
    line("blob", {{"bytes", manifest.blob_bytes}, {"file", kPackBlobName}});
    line("checksum", checksum);
    line("creator", manifest.creator);
    line("files", files);
    line("format", format_name);
    line("formats", manifest.formats);
    line("profile", manifest.profile);
    line("source", manifest.source);
    out += "\"tensors\":[\n";
    for (std::size_t i = 0; i < manifest.tensors.size(); ++i)
        out += dump(tensor_json(manifest.tensors[i])) + (i + 1 < manifest.tensors.size() ? ",\n" : "\n");
    out += fmt::format("],\n\"version\":{}\n}}\n", kPackVersion);
    return out;
}

// --- reading

bool is_sha256(std::string_view text) {
    return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

struct ManifestReader {
    std::string_view where;

    [[nodiscard]] Error broken(const std::string& what) const {
        return {ErrorKind::invalid,
                fmt::format("The pack manifest {} is damaged: {}; copy the pack again or make it anew with "
                            "dgemma quantize.",
                            quote(where), what)};
    }

    [[nodiscard]] Result<dom::element> member(dom::object object, std::string_view key,
                                              const std::string& of) const {
        dom::element value;
        if (object[key].get(value) != simdjson::SUCCESS)
            return broken(fmt::format("{} has no \"{}\"", of, key));
        return value;
    }

    [[nodiscard]] Result<std::string> text(dom::object object, std::string_view key,
                                           const std::string& of) const {
        DGEMMA_TRY(const dom::element value, member(object, key, of));
        std::string_view out;
        if (value.get_string().get(out) != simdjson::SUCCESS)
            return broken(fmt::format("{} has a \"{}\" that is no text", of, key));
        return std::string(out);
    }

    [[nodiscard]] Result<std::uint64_t> number(dom::object object, std::string_view key,
                                               const std::string& of) const {
        DGEMMA_TRY(const dom::element value, member(object, key, of));
        std::uint64_t out = 0;
        if (value.get_uint64().get(out) != simdjson::SUCCESS)
            return broken(fmt::format("{} has a \"{}\" that is no whole number from 0 up", of, key));
        return out;
    }

    [[nodiscard]] Result<std::string> sha256(dom::object object, const std::string& of) const {
        DGEMMA_TRY(std::string out, text(object, "sha256", of));
        if (!is_sha256(out)) return broken(fmt::format("{} has a \"sha256\" that is none", of));
        return out;
    }

    // One of the values whose name the text is.
    template <class T>
    [[nodiscard]] Result<T> choice(dom::object object, std::string_view key, const std::string& of,
                                   const auto& values) const {
        DGEMMA_TRY(const std::string name, text(object, key, of));
        for (const T value : values) {
            if (name_of(value) == name) return value;
        }
        return broken(fmt::format("{} has the unknown {} {}", of, key, quote(name)));
    }

    [[nodiscard]] Result<Shape> shape(dom::object object, const std::string& of) const {
        DGEMMA_TRY(const dom::element value, member(object, "shape", of));
        dom::array array;
        if (value.get_array().get(array) != simdjson::SUCCESS)
            return broken(fmt::format("{} has a shape that is no list", of));
        Shape out;
        for (const dom::element item : array) {
            std::int64_t size = 0;
            if (item.get_int64().get(size) != simdjson::SUCCESS || size <= 0 ||
                out.size() == most_dimensions) {
                return broken(
                    fmt::format("{} has a shape that is no list of up to {} sizes", of, most_dimensions));
            }
            out.push_back(size);
        }
        return out;
    }

    [[nodiscard]] Status part(dom::object tensor, const NamedPart& named, std::uint64_t expected,
                              std::uint64_t blob_bytes, const std::string& of, PackPart& to) const {
        dom::element value;
        const bool present = tensor[named.name].get(value) == simdjson::SUCCESS;
        if (!present && expected == 0) return {};
        const std::string name = fmt::format("the {} of {}", named.name, of);
        dom::object object;
        if (!present || value.get_object().get(object) != simdjson::SUCCESS)
            return broken(fmt::format("{} are missing", name));
        DGEMMA_TRY(to.offset, number(object, "offset", name));
        DGEMMA_TRY(to.bytes, number(object, "bytes", name));
        DGEMMA_TRY(to.sha256, sha256(object, name));
        if (to.bytes != expected) {
            return broken(
                fmt::format("{} have {} bytes where shape and encoding need {}", name, to.bytes, expected));
        }
        if (to.offset % kPackAlignment != 0)
            return broken(fmt::format("{} begin at byte {}, which is no multiple of {}", name, to.offset,
                                      kPackAlignment));
        if (to.offset > blob_bytes || to.bytes > blob_bytes - to.offset) {
            return broken(fmt::format("{} end beyond the {} bytes of the blob", name, blob_bytes));
        }
        return {};
    }

    [[nodiscard]] Result<PackTensor> tensor(dom::element value, std::uint64_t blob_bytes) const {
        dom::object object;
        if (value.get_object().get(object) != simdjson::SUCCESS)
            return broken("a tensor is described by no object");
        PackTensor out;
        DGEMMA_TRY(out.name, text(object, "name", "a tensor"));
        const std::string of = "tensor " + quote(out.name);
        DGEMMA_TRY(out.group, text(object, "class", of));
        DGEMMA_TRY(out.encoding, choice<Encoding>(object, "encoding", of, encodings));
        DGEMMA_TRY(out.layout, choice<Layout>(object, "layout", of, layouts));
        if (out.encoding == Encoding::plain) {
            DGEMMA_TRY(out.type, choice<Dtype>(object, "dtype", of, types));
        }
        DGEMMA_TRY(out.shape, shape(object, of));
        if (object["kept"].error() == simdjson::SUCCESS) {
            DGEMMA_TRY(out.kept, text(object, "kept", of));
        }
        const auto grid = weight_grid(out.shape, out.encoding, out.layout, out.type);
        if (!grid) {
            return broken(fmt::format("{} of shape {} cannot be {} in {}", of, to_string(out.shape),
                                      name_of(out.encoding), name_of(out.layout)));
        }
        const WeightBytes bytes = grid->total();
        for (const NamedPart& named : kPackParts)
            DGEMMA_CHECK(part(object, named, bytes.*named.bytes, blob_bytes, of, out.*named.part));
        return out;
    }

    [[nodiscard]] Status no_overlaps(const std::vector<PackTensor>& tensors) const {
        std::vector<std::pair<const PackPart*, const PackTensor*>> order;
        for (const PackTensor& t : tensors) {
            for (const NamedPart& named : kPackParts) {
                if ((t.*named.part).bytes != 0) order.emplace_back(&(t.*named.part), &t);
            }
        }
        std::sort(order.begin(), order.end(),
                  [](const auto& a, const auto& b) { return a.first->offset < b.first->offset; });
        for (std::size_t i = 1; i < order.size(); ++i) {
            const auto& [before, owner] = order[i - 1];
            if (before->offset + before->bytes > order[i].first->offset) {
                return broken(fmt::format("tensors {} and {} share bytes", quote(owner->name),
                                          quote(order[i].second->name)));
            }
        }
        return {};
    }

    [[nodiscard]] Status files(dom::object root, PackManifest& out) const {
        DGEMMA_TRY(const dom::element value, member(root, "files", "it"));
        dom::object object;
        if (value.get_object().get(object) != simdjson::SUCCESS) return broken("its \"files\" are no object");
        for (const dom::key_value_pair field : object) {
            const std::string name(field.key);
            const std::string of = "file " + quote(name);
            dom::object file;
            if (!is_plain_file_name(name) || field.value.get_object().get(file) != simdjson::SUCCESS)
                return broken(fmt::format("{} is no file beside it", of));
            PackFile to;
            DGEMMA_TRY(to.bytes, number(file, "bytes", of));
            DGEMMA_TRY(to.sha256, sha256(file, of));
            if (!out.files.emplace(name, std::move(to)).second)
                return broken(fmt::format("{} is listed twice", of));
        }
        return {};
    }

    [[nodiscard]] Status formats(dom::object root, PackManifest& out) const {
        DGEMMA_TRY(const dom::element value, member(root, "formats", "it"));
        dom::object object;
        if (value.get_object().get(object) != simdjson::SUCCESS)
            return broken("its \"formats\" are no object");
        for (const dom::key_value_pair field : object) {
            std::string_view format;
            if (field.value.get_string().get(format) != simdjson::SUCCESS)
                return broken(fmt::format("the format of {} is no text", quote(field.key)));
            out.formats.insert_or_assign(std::string(field.key), std::string(format));
        }
        return {};
    }

    // A newer version may have other keys: it is looked at before everything else.
    [[nodiscard]] Status version(dom::object root) const {
        DGEMMA_TRY(const std::string format, text(root, "format", "it"));
        if (format != format_name) return broken(fmt::format("its format is {}", quote(format)));
        DGEMMA_TRY(const std::uint64_t version, number(root, "version", "it"));
        if (version > static_cast<std::uint64_t>(kPackVersion)) {
            return Error{ErrorKind::unsupported,
                         fmt::format("The pack {} has version {} of the format and this dgemma reads up to "
                                     "{}; use a newer dgemma, or make the pack anew with this one.",
                                     quote(where), version, kPackVersion)};
        }
        if (version < 1) return broken(fmt::format("its version is {}, and the first one is 1", version));
        return {};
    }

    [[nodiscard]] Result<PackManifest> manifest(dom::object root) const {
        DGEMMA_CHECK(version(root));
        PackManifest out;
        DGEMMA_TRY(const dom::element blob_value, member(root, "blob", "it"));
        dom::object blob;
        if (blob_value.get_object().get(blob) != simdjson::SUCCESS)
            return broken("its \"blob\" is no object");
        DGEMMA_TRY(const std::string file, text(blob, "file", "its blob"));
        if (file != kPackBlobName) return broken(fmt::format("its blob is named {}", quote(file)));
        DGEMMA_TRY(out.blob_bytes, number(blob, "bytes", "its blob"));
        DGEMMA_TRY(out.creator, text(root, "creator", "it"));
        DGEMMA_TRY(out.source, text(root, "source", "it"));
        DGEMMA_TRY(out.profile, text(root, "profile", "it"));
        DGEMMA_CHECK(files(root, out));
        DGEMMA_CHECK(formats(root, out));

        DGEMMA_TRY(const dom::element list, member(root, "tensors", "it"));
        dom::array tensors;
        if (list.get_array().get(tensors) != simdjson::SUCCESS) return broken("its \"tensors\" are no list");
        std::set<std::string> names;
        for (const dom::element item : tensors) {
            DGEMMA_TRY(PackTensor one, tensor(item, out.blob_bytes));
            if (!names.insert(one.name).second)
                return broken(fmt::format("tensor {} is there twice", quote(one.name)));
            out.tensors.push_back(std::move(one));
        }
        if (out.tensors.empty()) return broken("it holds no tensors");
        DGEMMA_CHECK(no_overlaps(out.tensors));

        DGEMMA_TRY(const std::string checksum, text(root, "checksum", "it"));
        if (checksum != sha256_hex(text_with_checksum(out, "")))
            return broken("its checksum does not fit what it says");
        return out;
    }
};

}  // namespace

std::string write_manifest(const PackManifest& manifest) {
    return text_with_checksum(manifest, sha256_hex(text_with_checksum(manifest, "")));
}

Result<PackManifest> parse_manifest(std::string_view text, std::string_view where) {
    const ManifestReader reader{where};
    dom::parser parser;
    dom::element root;
    dom::object object;
    if (const auto error = parser.parse(text.data(), text.size(), true).get(root);
        error != simdjson::SUCCESS) {
        return reader.broken(fmt::format("it is no JSON ({})", simdjson::error_message(error)));
    }
    if (root.get_object().get(object) != simdjson::SUCCESS) return reader.broken("it is no JSON object");
    return reader.manifest(object);
}

}  // namespace dgemma::files
