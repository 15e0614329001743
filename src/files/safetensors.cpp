#include "files/safetensors.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <simdjson.h>

#include "base/quote.h"

namespace dgemma::files {

namespace {

namespace dom = simdjson::dom;

constexpr std::uint64_t length_bytes = 8;
constexpr std::uint64_t longest_header = 100'000'000;  // the format's own bound
constexpr std::size_t most_dimensions = 8;

struct NamedDtype {
    std::string_view name;
    Dtype type;
};
constexpr std::array<NamedDtype, 13> dtypes{{{"F32", Dtype::f32},
                                             {"F16", Dtype::f16},
                                             {"BF16", Dtype::bf16},
                                             {"F8_E4M3", Dtype::f8_e4m3},
                                             {"I64", Dtype::i64},
                                             {"I32", Dtype::i32},
                                             {"I16", Dtype::i16},
                                             {"I8", Dtype::i8},
                                             {"U64", Dtype::u64},
                                             {"U32", Dtype::u32},
                                             {"U16", Dtype::u16},
                                             {"U8", Dtype::u8},
                                             {"BOOL", Dtype::boolean}}};

std::optional<Dtype> dtype_named(std::string_view name) {
    const auto* found =
        std::find_if(dtypes.begin(), dtypes.end(), [&](const auto& d) { return d.name == name; });
    if (found == dtypes.end()) return std::nullopt;
    return found->type;
}

// One entry of the header before its bytes are looked at. Offsets count from the end of the header.
struct Entry {
    Dtype type = Dtype::f32;
    Shape shape;
    std::uint64_t begin = 0, end = 0;
};

struct HeaderReader {
    std::string_view where;

    [[nodiscard]] Error broken(const std::string& what) const {
        return {ErrorKind::invalid,
                fmt::format("The safetensors file {} is broken: {}; download it again.", quote(where), what)};
    }

    [[nodiscard]] Error broken_tensor(std::string_view name, const std::string& what) const {
        return broken(fmt::format("tensor {} {}", quote(name), what));
    }

    [[nodiscard]] Result<Dtype> dtype(std::string_view name, dom::element value) const {
        std::string_view text;
        if (value.get_string().get(text) != simdjson::SUCCESS)
            return broken_tensor(name, "has a dtype that is no string");
        if (const auto type = dtype_named(text)) return *type;
        return Error{
            ErrorKind::unsupported,
            fmt::format(
                "Tensor {} in {} has the element type {}, which dgemma cannot read; it reads F32, F16, "
                "BF16, F8_E4M3, BOOL and the integers.",
                quote(name), quote(where), quote(text))};
    }

    [[nodiscard]] Result<Shape> shape(std::string_view name, dom::element value) const {
        dom::array array;
        if (value.get_array().get(array) != simdjson::SUCCESS)
            return broken_tensor(name, "has a shape that is no list");
        Shape out;
        for (const dom::element item : array) {
            std::uint64_t size = 0;
            if (item.get_uint64().get(size) != simdjson::SUCCESS ||
                size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
                return broken_tensor(name, "has a size in its shape that is no whole number from 0 up");
            }
            if (out.size() == most_dimensions) {
                return broken_tensor(name, fmt::format("has more than {} dimensions", most_dimensions));
            }
            out.push_back(static_cast<std::int64_t>(size));
        }
        return out;
    }

    [[nodiscard]] Status offsets(std::string_view name, dom::element value, Entry& entry) const {
        dom::array array;
        std::array<std::uint64_t, 2> ends{};
        std::size_t count = 0;
        const auto bad = [&] {
            return broken_tensor(name, "has data_offsets that are no pair of whole numbers from 0 up");
        };
        if (value.get_array().get(array) != simdjson::SUCCESS) return bad();
        for (const dom::element item : array) {
            if (count == ends.size() || item.get_uint64().get(ends[count]) != simdjson::SUCCESS) return bad();
            ++count;
        }
        if (count != ends.size()) return bad();
        entry.begin = ends[0];
        entry.end = ends[1];
        return {};
    }

    // Bytes that a shape needs, or nothing where that number (or the product of the sizes that are not 0,
    // which elements_of() walks through) does not fit 63 bits.
    static std::optional<std::uint64_t> bytes_of(const Entry& entry) {
        std::int64_t product = static_cast<std::int64_t>(size_of(entry.type));
        bool empty = false;
        for (const std::int64_t size : entry.shape) {
            if (size == 0) {
                empty = true;
            } else if (__builtin_mul_overflow(product, size, &product)) {
                return std::nullopt;
            }
        }
        return empty ? 0 : static_cast<std::uint64_t>(product);
    }

    [[nodiscard]] Result<Entry> entry(std::string_view name, dom::element value,
                                      std::uint64_t data_bytes) const {
        dom::object object;
        if (value.get_object().get(object) != simdjson::SUCCESS)
            return broken_tensor(name, "is described by no object");
        Entry out;
        bool has_type = false, has_shape = false, has_offsets = false;
        for (const dom::key_value_pair field : object) {
            bool* seen = field.key == "dtype"          ? &has_type
                         : field.key == "shape"        ? &has_shape
                         : field.key == "data_offsets" ? &has_offsets
                                                       : nullptr;
            if (seen == nullptr) continue;
            if (std::exchange(*seen, true))
                return broken_tensor(name, fmt::format("has {} twice", quote(field.key)));
            if (seen == &has_type) {
                DGEMMA_TRY(out.type, dtype(name, field.value));
            } else if (seen == &has_shape) {
                DGEMMA_TRY(out.shape, shape(name, field.value));
            } else {
                DGEMMA_CHECK(offsets(name, field.value, out));
            }
        }
        if (!has_type) return broken_tensor(name, "has no dtype");
        if (!has_shape) return broken_tensor(name, "has no shape");
        if (!has_offsets) return broken_tensor(name, "has no data_offsets");
        if (out.begin > out.end) {
            return broken_tensor(name, fmt::format("has reversed data_offsets [{}, {}]", out.begin, out.end));
        }
        if (out.end > data_bytes) {
            return broken_tensor(
                name,
                fmt::format("ends at byte {} of the data, of which the file holds {} (it was cut short)",
                            out.end, data_bytes));
        }
        const auto bytes = bytes_of(out);
        if (!bytes)
            return broken_tensor(name, fmt::format("has the impossible shape {}", to_string(out.shape)));
        if (*bytes != out.end - out.begin) {
            return broken_tensor(
                name, fmt::format("has {} bytes of data where {} of shape {} needs {}", out.end - out.begin,
                                  name_of(out.type), to_string(out.shape), *bytes));
        }
        return out;
    }

    // The data must be covered from its first byte to its last, each byte once: anything else means that
    // header and data are not of the same file.
    [[nodiscard]] Status covered(const std::map<std::string, Entry, std::less<>>& entries,
                                 std::uint64_t data_bytes) const {
        std::vector<std::pair<std::string_view, const Entry*>> order;
        order.reserve(entries.size());
        for (const auto& [name, entry] : entries) order.emplace_back(name, &entry);
        std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
            return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
        });
        std::uint64_t end = 0;
        std::string_view before;
        for (const auto& [name, entry] : order) {
            if (entry->begin < end) {
                return broken_tensor(name, fmt::format("shares bytes with tensor {}", quote(before)));
            }
            if (entry->begin > end) {
                return broken(fmt::format("{} bytes before tensor {} belong to no tensor", entry->begin - end,
                                          quote(name)));
            }
            end = entry->end;
            before = name;
        }
        if (end != data_bytes) {
            return broken(fmt::format("{} bytes at its end belong to no tensor", data_bytes - end));
        }
        return {};
    }
};

}  // namespace

Result<Safetensors> Safetensors::parse(std::span<const std::byte> file, std::string_view where) {
    const HeaderReader reader{where};
    if (file.size() < length_bytes) {
        return reader.broken(fmt::format("it has {} bytes, fewer than the {} of its header's length",
                                         file.size(), length_bytes));
    }
    std::uint64_t header_bytes = 0;
    for (std::size_t i = length_bytes; i-- > 0;)
        header_bytes = header_bytes << 8 | std::to_integer<std::uint64_t>(file[i]);
    if (header_bytes > longest_header) {
        return reader.broken(
            fmt::format("it says that its header has {} bytes, more than the {} the format allows",
                        header_bytes, longest_header));
    }
    if (header_bytes > file.size() - length_bytes) {
        return reader.broken(
            fmt::format("it says that its header has {} bytes, more than the file's {} (it was cut short)",
                        header_bytes, file.size()));
    }
    const auto header = file.subspan(length_bytes, static_cast<std::size_t>(header_bytes));
    const auto data = file.subspan(length_bytes + static_cast<std::size_t>(header_bytes));

    dom::parser parser;
    dom::element root;
    dom::object object;
    const auto* text = reinterpret_cast<const char*>(header.data());
    if (const auto error = parser.parse(text, header.size(), true).get(root); error != simdjson::SUCCESS) {
        return reader.broken(fmt::format("its header is no JSON ({})", simdjson::error_message(error)));
    }
    if (root.get_object().get(object) != simdjson::SUCCESS)
        return reader.broken("its header is no JSON object");

    Safetensors out;
    std::map<std::string, Entry, std::less<>> entries;
    bool has_metadata = false;
    for (const dom::key_value_pair field : object) {
        if (field.key == "__metadata__") {
            dom::object metadata;
            if (std::exchange(has_metadata, true)) return reader.broken("it has \"__metadata__\" twice");
            if (field.value.get_object().get(metadata) != simdjson::SUCCESS) {
                return reader.broken("its \"__metadata__\" is no JSON object");
            }
            for (const dom::key_value_pair item : metadata) {
                std::string_view value;
                if (item.value.get_string().get(value) != simdjson::SUCCESS) {
                    return reader.broken(fmt::format("its metadata {} is no string", quote(item.key)));
                }
                out.metadata_.insert_or_assign(std::string(item.key), std::string(value));
            }
            continue;
        }
        DGEMMA_TRY(Entry entry, reader.entry(field.key, field.value, data.size()));
        if (!entries.emplace(std::string(field.key), std::move(entry)).second) {
            return reader.broken_tensor(field.key, "is described twice");
        }
    }
    DGEMMA_CHECK(reader.covered(entries, data.size()));
    for (auto& [name, entry] : entries) {
        out.tensors_.emplace(name, Tensor{data.data() + entry.begin, entry.type, std::move(entry.shape)});
    }
    return out;
}

Result<Safetensors> Safetensors::open(const std::filesystem::path& path) {
    DGEMMA_TRY(Mapping mapping, Mapping::open(path));
    DGEMMA_TRY(Safetensors out, parse(mapping.bytes(), path.native()));
    out.mapping_ = std::move(mapping);
    return out;
}

const Tensor* Safetensors::find(std::string_view name) const {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace dgemma::files
