#include "text/chat_template.h"

#include <array>
#include <cstddef>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "base/sha256.h"
#include "text/python_text.h"
#include "text/segment_writer.h"
#include "text/template_value.h"
#include "text/tool_syntax.h"

namespace dgemma::text {

namespace {

using Type = Value::Type;

constexpr std::array<std::pair<std::string_view, TemplateRevision>, 3> known_templates = {{
    {"9aeb7eac68ad87bba7567e9d4597ff203e5609f1b427d9e823437d0142cc61bf", TemplateRevision::canonical},
    {"2f1b4d75d067bae3fe44e676721c7f077d243bc007156cb9c2f8b5836613d082", TemplateRevision::legacy_2f1b4d75},
    {"36e3a42e5cf14cd0020e72d92e1fdd9970f59b82170e421f0cbe1bb42bead3f0", TemplateRevision::legacy_36e3a42e},
}};

constexpr std::string_view open_thought = "<|channel>thought\n";

Error invalid(std::string message) { return Error{ErrorKind::invalid, std::move(message)}; }

// What the model sees of its own past text: channels of any name vanish, an unclosed one takes the rest with
// it, and a stray close just disappears (contract 2.4).
std::string strip_thinking(std::string_view text) {
    constexpr std::string_view open = "<|channel>", close = "<channel|>";
    std::string kept;
    while (true) {
        const std::size_t end = text.find(close);
        const std::string_view piece = text.substr(0, end);
        kept += piece.substr(0, piece.find(open));
        if (end == std::string_view::npos) break;
        text.remove_prefix(end + close.size());
    }
    return std::string(python_strip(kept));
}

class Renderer {
  public:
    Renderer(TemplateRevision revision, const ChatInput& input)
        : input_(input),
          legacy_(revision != TemplateRevision::canonical),
          pins_empty_thought_(revision == TemplateRevision::legacy_36e3a42e),
          thinking_(input.enable_thinking.value_or(false)),
          tools_syntax_(out_, legacy_ ? "None" : "null") {}

    Result<std::vector<Segment>> render() {
        DGEMMA_CHECK(check_messages());
        out_.markup("<bos>");
        DGEMMA_CHECK(system_turn());
        for (std::size_t i = first_; i < messages_.size(); ++i)
            if (is_string(role(i), "user")) last_user_ = i;
        find_next_roles();
        for (std::size_t i = first_; i < messages_.size(); ++i)
            if (!is_string(role(i), "tool")) DGEMMA_CHECK(message(i));
        generation_prompt();
        return std::move(out_).segments();
    }

  private:
    // What the last message that is no tool result wrote last; decides the end of the prompt.
    enum class Written { nothing, calls, responses, media };

    [[nodiscard]] TemplateValue role(std::size_t i) const { return item_of(messages_[i], "role"); }
    [[nodiscard]] static std::string name(std::size_t i) { return fmt::format("messages[{}]", i); }

    Status check_messages() {
        const Value& all = input_.messages;
        const bool empty_collection = is_sequence(&all) && !is_true(&all);
        if (!all.is(Type::array) && (legacy_ || !empty_collection))
            return invalid(
                fmt::format("`messages` is {}: it must be a list of messages", describe(all.type())));
        if (legacy_ && !is_true(&all))
            return invalid("`messages` is empty: this revision of the template needs at least one message");
        if (!all.is(Type::array)) return {};
        for (const Value& message : all.as_array()) messages_.push_back(&message);
        return {};
    }

    Status system_turn() {
        const bool has_system =
            !messages_.empty() && (is_string(role(0), "system") || is_string(role(0), "developer"));
        const bool has_tools = is_true(&input_.tools);
        if (!thinking_ && !has_tools && !has_system) return {};
        out_.markup("<|turn>system\n");
        if (thinking_) out_.markup("<|think|>\n");
        if (has_system) {
            first_ = 1;
            const TemplateValue content = item_of(messages_[0], "content");
            if (is_type(content, Type::string)) {
                out_.data(python_strip(content->as_string()));
            } else if (is_sequence(content)) {
                const Items parts = *Items::of(content);
                for (std::size_t i = 0; i < parts.size(); ++i) {
                    out_.data(python_strip(text_of(item_of(parts[i], "text"))));
                    out_.markup(" ");
                }
            }
        }
        if (has_tools) {
            const std::optional<Items> tools = Items::of(&input_.tools);
            if (!tools)
                return invalid(
                    fmt::format("`tools` is {}: it must be a list", describe(input_.tools.type())));
            for (std::size_t i = 0; i < tools->size(); ++i)
                DGEMMA_CHECK(tools_syntax_.declaration((*tools)[i], fmt::format("tools[{}]", i)));
        }
        out_.markup("<turn|>\n");
        return {};
    }

    // next_[i]: the message after i that is no tool result; size() if there is none.
    void find_next_roles() {
        next_.assign(messages_.size(), messages_.size());
        for (std::size_t i = messages_.size(); i-- > 1;)
            next_[i - 1] = is_string(role(i), "tool") ? next_[i] : i;
    }

    // Whether the message goes on with the model turn that is open already.
    [[nodiscard]] bool continues_turn(std::size_t i) const {
        if (i == first_) return false;
        std::size_t before = i - 1;
        if (legacy_) {
            while (before > first_ && is_string(role(before), "tool")) --before;
        }
        return is_string(role(before), "assistant");
    }

    Status message(std::size_t i) {
        const Value& message = *messages_[i];
        if (!message.is(Type::object) || !is_type(role(i), Type::string))
            return invalid(fmt::format("{} has no role: give it a string `role`", name(i)));
        const bool from_model = is_string(role(i), "assistant") || is_string(role(i), "model");
        written_ = Written::nothing;
        if (!from_model || !continues_turn(i)) {
            out_.markup("<|turn>");
            if (is_string(role(i), "assistant"))
                out_.markup("model");
            else
                out_.data(role(i)->as_string());
            out_.markup("\n");
        }
        DGEMMA_CHECK(thought(i));

        const TemplateValue calls = message.find("tool_calls");
        if (is_true(calls)) {
            DGEMMA_CHECK(tool_calls(*calls, i));
            written_ = Written::calls;
        }
        bool has_responses = false;
        if (const TemplateValue responses = message.find("tool_responses"); is_true(responses)) {
            DGEMMA_CHECK(own_responses(responses, i));
            has_responses = true;
        } else if (is_true(calls)) {
            for (std::size_t k = i + 1; k < messages_.size() && is_string(role(k), "tool"); ++k) {
                DGEMMA_CHECK(tool_message(k));
                has_responses = true;
            }
        }
        if (has_responses) written_ = Written::responses;

        SegmentWriter content;
        DGEMMA_CHECK(message_content(content, i, from_model));
        out_.append(content.segments());
        close(i, from_model, is_true(calls), has_responses, !python_strip(join(content.segments())).empty());
        return {};
    }

    Status thought(std::size_t i) {
        const Value& message = *messages_[i];
        TemplateValue text = message.find("reasoning");
        if (!is_true(text)) text = message.find("reasoning_content");
        if (!is_true(text)) return {};
        const bool is_current = !last_user_ || i > *last_user_;
        const bool has_calls = is_true(message.find("tool_calls"));
        const bool shown = legacy_ ? is_current && has_calls
                                   : is_current || (input_.preserve_thinking.value_or(false) && has_calls);
        if (!shown) return {};
        if (!text->is(Type::string))
            return invalid(fmt::format("{} has a thought that is {}: it must be a string", name(i),
                                       describe(text->type())));
        out_.markup(open_thought);
        out_.data(text->as_string());
        out_.markup("\n<channel|>");
        return {};
    }

    Status tool_calls(const Value& calls, std::size_t i) {
        call_names_.clear();
        other_calls_.clear();
        const std::optional<Items> items = Items::of(&calls);
        if (!items) return invalid(fmt::format("{} has `tool_calls` that are no list", name(i)));
        for (std::size_t k = 0; k < items->size(); ++k) {
            const TemplateValue call = (*items)[k];
            const TemplateValue function = item_of(call, "function");
            const TemplateValue called = item_of(function, "name");
            if (!is_type(called, Type::string)) {
                return invalid(fmt::format(
                    "{}.tool_calls[{}] has no function name: give it a `function` with a string `name`",
                    name(i), k));
            }
            out_.markup("<|tool_call>call:");
            out_.data(called->as_string());
            out_.markup("{");
            const TemplateValue arguments = item_of(function, "arguments");
            if (is_type(arguments, Type::object)) {
                tools_syntax_.members(*arguments);
            } else if (legacy_) {
                if (is_type(arguments, Type::string)) out_.data(arguments->as_string());
            } else if (!is_type(arguments, Type::null)) {
                return invalid(
                    fmt::format("{}.tool_calls[{}] has arguments that are {}: they must be an object",
                                name(i), k, arguments ? describe(arguments->type()) : "missing"));
            }
            out_.markup("}<tool_call|>");

            // The last call with an id gives its name to the result that carries the id. Ids are strings; the
            // template compares whatever it finds, and a missing one equals null.
            const TemplateValue id = get_or_null(*call, "id");
            if (id->is(Type::string))
                call_names_[id->as_string()] = called->as_string();
            else
                other_calls_.emplace_back(id, called->as_string());
        }
        return {};
    }

    // Results that the assistant message carries itself.
    Status own_responses(TemplateValue responses, std::size_t i) {
        const std::optional<Items> items = Items::of(responses);
        if (!items) return invalid(fmt::format("{} has `tool_responses` that are no list", name(i)));
        for (std::size_t k = 0; k < items->size(); ++k) {
            const TemplateValue given = item_of((*items)[k], "name");
            const TemplateValue response = item_of((*items)[k], "response");
            if (legacy_ ? !given : !is_true(given)) {
                tools_syntax_.response("unknown", response);
            } else if (is_type(given, Type::string)) {
                tools_syntax_.response(given->as_string(), response);
            } else {
                return invalid(fmt::format("{}.tool_responses[{}] has a name that is no string", name(i), k));
            }
        }
        return {};
    }

    // The function that the result in message k answers.
    Result<std::string> answered_function(std::size_t k) const {
        const Value& result = *messages_[k];
        const TemplateValue id = get_or_null(result, "tool_call_id");
        if (id->is(Type::string)) {
            const auto found = call_names_.find(id->as_string());
            if (found != call_names_.end()) return found->second;
        } else {
            for (auto call = other_calls_.rbegin(); call != other_calls_.rend(); ++call)
                if (python_equal(call->first, id)) return call->second;
        }
        const TemplateValue given = get_or_null(result, "name");
        if (is_type(given, Type::string) && (legacy_ || is_true(given))) return given->as_string();
        if (!legacy_ && !is_true(given)) return std::string("unknown");
        return invalid(
            fmt::format("{} answers no tool call: give it the `tool_call_id` of a call in the message before "
                        "it, or a string `name`",
                        name(k)));
    }

    Status tool_message(std::size_t k) {
        DGEMMA_TRY(const std::string function, answered_function(k));
        const TemplateValue body = get_or_null(*messages_[k], "content");
        if (body->is(Type::string) || !is_sequence(body)) {
            tools_syntax_.response(function, body);
            return {};
        }
        const Items parts = *Items::of(body);
        std::string text;
        for (std::size_t p = 0; p < parts.size(); ++p) {
            if (!is_type(parts[p], Type::object)) {
                return invalid(fmt::format(
                    "{} has content that is neither text nor a list of parts: write objects as JSON text",
                    name(k)));
            }
            if (!is_string(parts[p]->find("type"), "text")) continue;
            const TemplateValue part_text = parts[p]->find("text");
            if (!is_type(part_text, Type::string))
                return invalid(
                    fmt::format("{}.content[{}] has no `text`: a text part needs a string", name(k), p));
            text += part_text->as_string();
        }
        const Value whole = Value::string(std::move(text));
        tools_syntax_.response(function, &whole);
        for (std::size_t p = 0; p < parts.size(); ++p) out_.markup(placeholder(parts[p]->find("type")));
        return {};
    }

    // What stands for a media part; empty for other parts.
    [[nodiscard]] std::string_view placeholder(TemplateValue part_type) const {
        if (is_string(part_type, "image") || (!legacy_ && is_string(part_type, "image_url")))
            return "<|image|>";
        if (is_string(part_type, "audio") || (!legacy_ && is_string(part_type, "input_audio")))
            return "<|audio|>";
        if (is_string(part_type, "video")) return "<|video|>";
        return {};
    }

    Status message_content(SegmentWriter& content, std::size_t i, bool from_model) {
        const TemplateValue given = messages_[i]->find("content");
        if (is_type(given, Type::string)) {
            if (from_model)
                content.data(strip_thinking(given->as_string()));
            else
                content.data(python_strip(given->as_string()));
            return {};
        }
        if (!is_sequence(given)) return {};
        const Items parts = *Items::of(given);
        for (std::size_t p = 0; p < parts.size(); ++p) {
            if (!legacy_ && !is_type(parts[p], Type::object))
                return invalid(fmt::format("{}.content[{}] is no object: a part needs a `type`", name(i), p));
            const TemplateValue type = item_of(parts[p], "type");
            if (is_string(type, "text")) {
                const TemplateValue text = item_of(parts[p], "text");
                if (!from_model)
                    content.data(python_strip(text_of(text)));
                else if (is_type(text, Type::string))
                    content.data(strip_thinking(text->as_string()));
                else
                    return invalid(
                        fmt::format("{}.content[{}] has no `text`: a text part needs a string", name(i), p));
            } else if (const std::string_view media = placeholder(type); !media.empty()) {
                content.markup(media);
                if (legacy_) written_ = Written::media;
            }
        }
        return {};
    }

    void close(std::size_t i, bool from_model, bool has_calls, bool has_responses, bool has_content) {
        const bool is_last = next_[i] == messages_.size();
        if (written_ == Written::calls && !has_responses) {
            out_.markup("<|tool_response>");
        } else if (!legacy_ && from_model && !is_last && is_string(role(next_[i]), "assistant") &&
                   (!has_calls || has_responses)) {
            // The next message goes on with this turn.
        } else if (!has_responses || has_content || (!legacy_ && !is_last)) {
            out_.markup("<turn|>\n");
        }
    }

    void generation_prompt() {
        if (!input_.add_generation_prompt) return;
        if (written_ != Written::responses && written_ != Written::calls) {
            out_.markup("<|turn>model\n");
            if (pins_empty_thought_ && !thinking_) out_.markup("<|channel>thought\n<channel|>");
        } else if (written_ == Written::responses && thinking_ && !legacy_) {
            out_.markup(open_thought);
        }
    }

    const ChatInput& input_;
    bool legacy_;
    bool pins_empty_thought_;
    bool thinking_;
    SegmentWriter out_;
    ToolSyntax tools_syntax_;

    std::vector<TemplateValue> messages_;
    std::size_t first_ = 0;                 // 1 when the first message is the system turn
    std::optional<std::size_t> last_user_;  // nothing: every message counts as current
    std::vector<std::size_t> next_;
    Written written_ = Written::nothing;

    // Of the message whose results are being written: names by string id, and calls with other ids.
    std::unordered_map<std::string, std::string> call_names_;
    std::vector<std::pair<TemplateValue, std::string>> other_calls_;
};

}  // namespace

std::string_view name_of(TemplateRevision revision) {
    switch (revision) {
        case TemplateRevision::canonical:
            return "canonical";
        case TemplateRevision::legacy_2f1b4d75:
            return "2f1b4d75";
        case TemplateRevision::legacy_36e3a42e:
            return "36e3a42e";
    }
    return "?";
}

Result<TemplateRevision> identify_template(std::string_view file_bytes) {
    const std::string hash = sha256_hex(file_bytes);
    for (const auto& [known, revision] : known_templates)
        if (hash == known) return revision;
    return Error{ErrorKind::unsupported,
                 fmt::format("the chat template with SHA-256 {} is none of the known revisions: pass "
                             "--template-fallback canonical to use the current one in its place",
                             hash)};
}

Result<std::vector<Segment>> render_chat(TemplateRevision revision, const ChatInput& input) {
    return Renderer(revision, input).render();
}

std::string join(std::span<const Segment> segments) {
    std::string out;
    for (const Segment& segment : segments) out += segment.text;
    return out;
}

bool ends_in_thought(std::span<const Segment> prompt) {
    return !prompt.empty() && !prompt.back().data && prompt.back().text.ends_with(open_thought);
}

}  // namespace dgemma::text
