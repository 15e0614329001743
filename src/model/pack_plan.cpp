#include "model/pack_plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/quote.h"

namespace dgemma::model {

namespace {

constexpr std::array<std::string_view, 5> format_names{"bf16", "q8", "q4", "fp8", "nvfp4"};
constexpr std::array<std::string_view, 5> class_names{"experts", "attn", "dense", "sc", "vision"};

struct Locked {
    std::string_view name, reason;
};
constexpr std::array<Locked, 4> locked_classes{{
    {"embedding",
     "it is also the head and the matrix of soft embeddings, and 8 bits flatten the tails of what it "
     "predicts "
     "until a canvas no longer settles"},
    {"router", "a small error in it sends a token to other experts, and it is small"},
    {"norms", "they are vectors, and small"},
    {"scalars", "they are single numbers"},
}};

constexpr PackFormat bf16 = PackFormat::bf16, q8 = PackFormat::q8, q4 = PackFormat::q4, fp8 = PackFormat::fp8,
                     nvfp4 = PackFormat::nvfp4;
// Row by row the profiles of the same name as the formats; see pack_plan.h.
constexpr std::array<std::array<PackFormat, 5>, 5> profiles{{
    {bf16, bf16, bf16, bf16, bf16},
    {q8, q8, q8, q8, bf16},
    {q4, q8, q8, q8, bf16},
    {fp8, fp8, fp8, bf16, bf16},
    {nvfp4, fp8, fp8, bf16, bf16},
}};

// The class of a matrix as --set counts it; nothing for a locked one.
std::optional<std::size_t> class_index(TensorClass group) {
    switch (group) {
        case TensorClass::experts:
            return 0;
        case TensorClass::attention:
            return 1;
        case TensorClass::dense:
            return 2;
        case TensorClass::self_conditioning:
            return 3;
        case TensorClass::vision:
            return 4;
        case TensorClass::embedding:
        case TensorClass::router:
        case TensorClass::norms:
        case TensorClass::scalars:
            return std::nullopt;
    }
    return std::nullopt;
}

std::string_view group_name(TensorClass group) {
    const auto index = class_index(group);
    return index ? class_names[*index] : name_of(group);
}

bool is_position_table(std::string_view name) {
    return name.find("position_embedding_table") != std::string_view::npos;
}

struct Form {
    Encoding encoding;
    Layout layout;
};

Form form_of(PackFormat format) {
    switch (format) {
        case PackFormat::bf16:
            return {Encoding::plain, Layout::tiles};
        case PackFormat::q8:
            return {Encoding::affine8, Layout::tiles};
        case PackFormat::q4:
            return {Encoding::affine4, Layout::tiles};
        case PackFormat::fp8:
            return {Encoding::fp8_row, Layout::rows};
        case PackFormat::nvfp4:
            return {Encoding::nvfp4, Layout::rows};
    }
    return {Encoding::plain, Layout::rows};
}

void keep_bf16(files::PackItem& item, std::string reason) {
    item.kept = std::move(reason);
    // A tile holds pairs of columns.
    const bool even = item.form.shape.back() % 2 == 0;
    item.form = {item.form.shape, Encoding::plain, even ? Layout::tiles : Layout::rows, Dtype::bf16};
}

template <std::size_t N>
std::optional<std::size_t> index_of(const std::array<std::string_view, N>& names, std::string_view name) {
    const auto* found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) return std::nullopt;
    return static_cast<std::size_t>(found - names.begin());
}

Status apply_set(std::string_view text, PackFormats& formats) {
    const std::size_t equals = text.find('=');
    const std::string_view name = text.substr(0, equals);
    if (equals == std::string_view::npos) {
        return Error{ErrorKind::usage,
                     fmt::format("--set takes class=format, such as attn=bf16, and not {}.", quote(text))};
    }
    for (const Locked& locked : locked_classes) {
        if (name == locked.name) {
            return Error{
                ErrorKind::usage,
                fmt::format("--set cannot change {}, which stays as it is stored: {}.", name, locked.reason)};
        }
    }
    const auto index = index_of(class_names, name);
    if (!index) {
        return Error{ErrorKind::usage, fmt::format("--set knows no class {}; the classes are {}.",
                                                   quote(name), fmt::join(class_names, ", "))};
    }
    const auto format = index_of(format_names, text.substr(equals + 1));
    if (!format) {
        return Error{ErrorKind::usage,
                     fmt::format("{} cannot be written as {}; the formats are {}.", name,
                                 quote(text.substr(equals + 1)), fmt::join(format_names, ", "))};
    }
    formats.of[*index] = static_cast<PackFormat>(*format);
    formats.changed = true;
    return {};
}

// The experts' two matrices of a layer stand side by side in the list.
void agree_on_experts(std::vector<PlannedTensor>& plan) {
    for (std::size_t i = 0; i + 1 < plan.size(); ++i) {
        if (plan[i].group != TensorClass::experts || plan[i + 1].group != TensorClass::experts) continue;
        files::PackItem &first = plan[i].item, &second = plan[i + 1].item;
        if (first.kept.empty() == second.kept.empty()) continue;
        files::PackItem& other = first.kept.empty() ? first : second;
        keep_bf16(other, "the other matrix of its experts is");
        ++i;
    }
}

}  // namespace

std::string_view name_of(PackFormat format) { return format_names[static_cast<std::size_t>(format)]; }
std::span<const std::string_view> pack_format_names() { return format_names; }
std::span<const std::string_view> pack_class_names() { return class_names; }

Result<PackFormats> choose_formats(std::string_view profile, std::span<const std::string> sets) {
    const auto index = index_of(format_names, profile);
    if (!index) {
        return Error{ErrorKind::usage, fmt::format("There is no profile {}; the profiles are {}.",
                                                   quote(profile), fmt::join(format_names, ", "))};
    }
    PackFormats out{std::string(profile), profiles[*index], false};
    for (const std::string& set : sets) DGEMMA_CHECK(apply_set(set, out));
    return out;
}

std::map<std::string, std::string> format_words(const PackFormats& formats) {
    std::map<std::string, std::string> out;
    for (std::size_t i = 0; i < class_names.size(); ++i) out.emplace(class_names[i], name_of(formats.of[i]));
    for (const Locked& locked : locked_classes) out.emplace(locked.name, "as stored");
    return out;
}

PlannedTensor plan_tensor(const ExpectedTensor& expected, Dtype stored, const PackFormats& formats) {
    PlannedTensor out;
    out.group = expected.group;
    out.item.name = expected.name;
    out.item.group = group_name(expected.group);
    out.item.form = {expected.shape, Encoding::plain, Layout::rows, stored};
    const auto index = class_index(expected.group);
    if (!index || expected.shape.size() < 2 || is_position_table(expected.name)) return out;

    const PackFormat format = formats.of[*index];
    const Form form = form_of(format);
    const std::int64_t width = expected.shape.back(), group = group_of(form.encoding);
    if (format == PackFormat::bf16) {
        keep_bf16(out.item, "");
    } else if (width % group != 0) {
        keep_bf16(out.item, fmt::format("its width {} is no multiple of {}", width, group));
    } else {
        out.item.form = {expected.shape, form.encoding, form.layout, Dtype::bf16};
    }
    return out;
}

Result<std::vector<PlannedTensor>> plan_pack(const Config& config, const files::Checkpoint& checkpoint,
                                             const PackFormats& formats) {
    DGEMMA_CHECK(check_tensors(config, checkpoint));
    std::vector<PlannedTensor> plan;
    for (const ExpectedTensor& expected : expected_tensors(config)) {
        std::string_view name = expected.name;
        auto weight = checkpoint.weight(name);
        if (!weight && !expected.other_name.empty()) {
            name = expected.other_name;
            weight = checkpoint.weight(name);
        }
        if (!weight) continue;
        if (weight->encoding != Encoding::plain) {
            return Error{
                ErrorKind::unsupported,
                fmt::format("The model in {} is quantised already ({} is {}), and quantising twice "
                            "adds up the errors; give the model it was made of with -m.",
                            quote(checkpoint.path().native()), quote(name), name_of(weight->encoding))};
        }
        plan.push_back(plan_tensor(expected, weight->type, formats));
        plan.back().source = name;
    }
    agree_on_experts(plan);
    return plan;
}

std::vector<PlannedTensor> plan_synthetic_pack(const Config& config, const PackFormats& formats) {
    std::vector<PlannedTensor> plan;
    for (const ExpectedTensor& expected : expected_tensors(config)) {
        if (expected.group == TensorClass::vision) continue;
        plan.push_back(plan_tensor(expected, Dtype::bf16, formats));
        plan.back().source = expected.name;
    }
    agree_on_experts(plan);
    return plan;
}

}  // namespace dgemma::model
