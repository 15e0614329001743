#include "server/common_fields.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "base/quote.h"

namespace dgemma::server {

using Type = Value::Type;

namespace {

// With the most probable token taken everywhere, no filter of less probable ones changes anything.
void read_filters(Fields& fields, bool greedy, GenerationRequest& out) {
    const auto top_p = fields.real("top_p", 0, 1);
    if (top_p && *top_p < 1 && !greedy) {
        fields.neutral("top_p", {"1"});
    }
    // 0 and -1 are how some clients say "all".
    if (fields.is_number("top_k", 0) || fields.is_number("top_k", -1)) return;
    const auto kept = fields.whole("top_k", 1, most_tokens);
    if (kept == 1)
        out.temperature = 0;
    else if (kept && !greedy)
        fields.neutral("top_k", {"0", "1"});
}

void read_diffusion(const Value& object, GenerationRequest& out, Complaint& complaint) {
    Fields fields(object, "diffusion.", complaint);
    DiffusionFields& to = out.diffusion;
    if (const auto steps = fields.whole("steps", 1, 10000)) to.steps = static_cast<int>(*steps);
    to.entropy_bound = fields.above_zero("entropy_bound", 1e6F);
    to.confidence_threshold = fields.above_zero("confidence_threshold", 1e6F);
    if (const auto length = fields.whole("canvas_length", 1, 65536))
        to.canvas_length = static_cast<int>(*length);
    if (const auto name = fields.text("sampler")) {
        to.sampler = diffusion::sampler_named(*name);
        if (!to.sampler) {
            complaint.refuse("diffusion.sampler",
                             "diffusion.sampler must be \"entropy-bound\" or \"confidence-threshold\".");
        }
    }
    to.exact = fields.toggle("exact");
    to.drafts = fields.toggle("drafts").value_or(false);
    fields.finish();
}

void read_template_switches(const Value& object, GenerationRequest& out, Complaint& complaint) {
    Fields fields(object, "chat_template_kwargs.", complaint);
    if (const auto on = fields.toggle("enable_thinking")) out.chat.enable_thinking = on;
    if (const auto on = fields.toggle("preserve_thinking")) out.chat.preserve_thinking = on;
    fields.finish();
}

}  // namespace

std::optional<ApiError> no_object(const Value& body) {
    if (body.is(Type::object)) return std::nullopt;
    return ApiError{.message =
                        fmt::format("The body must be a JSON object, not {}.", text::describe(body.type()))};
}

void read_common(Fields& fields, double most_temperature, GenerationRequest& out, Complaint& complaint) {
    if (const auto model = fields.text("model")) out.model = *model;
    out.stream = fields.toggle("stream").value_or(false);
    out.temperature = static_cast<float>(fields.real("temperature", 0, most_temperature).value_or(0));
    read_filters(fields, out.temperature == 0, out);
    fields.neutral("min_p", {"0"});
    out.seed = fields.whole("seed", 0, UINT64_MAX);
    if (const Value* given = fields.object("diffusion")) read_diffusion(*given, out, complaint);
    if (const auto on = fields.toggle("enable_thinking")) out.chat.enable_thinking = on;
    if (const Value* given = fields.object("chat_template_kwargs"))
        read_template_switches(*given, out, complaint);
}

void read_max_tokens(Fields& fields, std::initializer_list<std::string_view> names, GenerationRequest& out) {
    for (const std::string_view name : names) {
        const auto given = fields.whole(name, 1, most_tokens);
        if (!given || !out.max_tokens_field.empty()) continue;
        out.max_tokens = static_cast<int>(*given);
        out.max_tokens_field = name;
    }
}

void read_stops(Fields& fields, std::string_view name, GenerationRequest& out, Complaint& complaint) {
    const Value* given = fields.take(name);
    if (given == nullptr) return;
    const std::string path = fields.path_of(name);
    if (given->is(Type::string)) {
        if (!given->as_string().empty()) out.stops.push_back(given->as_string());
    } else if (!given->is(Type::array)) {
        complaint.refuse(path, fmt::format("{} must be a text or a list of texts, not {}.", path,
                                           text::describe(given->type())));
    } else if (given->as_array().size() > 64) {
        complaint.refuse(
            path, fmt::format("{} must hold at most 64 texts, not {}.", path, given->as_array().size()));
    } else {
        for (std::size_t i = 0; i < given->as_array().size(); ++i) {
            const Value& stop = given->as_array()[i];
            if (!stop.is(Type::string) || stop.as_string().empty()) {
                const std::string place = fmt::format("{}[{}]", path, i);
                return complaint.refuse(place, place + " must be a text that is not empty.");
            }
            out.stops.push_back(stop.as_string());
        }
    }
}

void read_effort(Fields& fields, std::string_view name, GenerationRequest& out, Complaint& complaint) {
    const auto effort = fields.text(name);
    if (!effort) return;
    constexpr std::array<std::string_view, 7> known = {"none", "minimal", "low", "medium",
                                                       "high", "xhigh",   "max"};
    if (std::find(known.begin(), known.end(), *effort) == known.end()) {
        return complaint.refuse(
            fields.path_of(name),
            fmt::format("{} must be none, minimal, low, medium, high, xhigh or max, not {}.",
                        fields.path_of(name), quote(*effort)));
    }
    if (!out.chat.enable_thinking) out.chat.enable_thinking = *effort != "none";
}

void read_neutral(Fields& fields) {
    fields.ignore({"user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
                   "cache_control"});
    fields.neutral("service_tier", {R"("auto")", R"("default")"});
    fields.neutral("n", {"1"});
    fields.neutral("presence_penalty", {"0"});
    fields.neutral("frequency_penalty", {"0"});
    fields.neutral("repetition_penalty", {"1"});
    fields.neutral("ignore_eos", {"false"});
    fields.never("logit_bias", "the logits of a canvas are not biased");
}

std::optional<ApiError> read_request(Api api, const Value& body, bool lenient, GenerationRequest& out,
                                     ResponseStore* store) {
    switch (api) {
        case Api::completions:
            return read_completion(body, lenient, out);
        case Api::responses:
            return read_responses(body, lenient, store, out);
        case Api::messages:
            return read_messages(body, lenient, false, out);
        case Api::chat:
        case Api::own:
            break;
    }
    return read_chat(body, lenient, out);
}

}  // namespace dgemma::server
