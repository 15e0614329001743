#include "server/rounds.h"

#include "base/sha256.h"

namespace dgemma::server {

using Type = Value::Type;

namespace {

constexpr std::size_t most_rounds = 4096;

void add_call(std::string& out, std::string_view name, const Value& arguments) {
    out += text::json_quoted(name);
    out += text::to_json(arguments);
}

}  // namespace

std::string round_key(const Value& messages, const Value& tools, bool thinking,
                      const std::vector<text::ToolCall>& calls) {
    std::string told = thinking ? "thinking" : "";
    told += text::to_json(tools);
    for (const Value& message : messages.as_array()) {
        told += '\n';
        told += text_at(message, "role");
        const Value* made = message.find("tool_calls");
        if (is(made, Type::array) && !made->as_array().empty()) {
            for (const Value& call : made->as_array()) {
                const Value& function = *call.find("function");
                const Value* arguments = function.find("arguments");
                add_call(told, text_at(function, "name"), arguments != nullptr ? *arguments : Value());
            }
        } else if (const Value* content = message.find("content")) {
            told += text::to_json(*content);
        }
    }
    told += "\ncalls";
    for (const text::ToolCall& call : calls) add_call(told, call.name, call.arguments);
    return sha256_hex(told);
}

std::optional<LastRound> last_round(const Value& messages) {
    const Value::Array& list = messages.as_array();
    std::size_t at = list.size();
    while (at > 0 && text_at(list[at - 1], "role") == "tool") --at;
    if (at == list.size() || at == 0 || text_at(list[at - 1], "role") != "assistant") return std::nullopt;
    const Value* made = list[at - 1].find("tool_calls");
    if (!is(made, Type::array)) return std::nullopt;
    LastRound out;
    out.calls_at = at - 1;
    for (const Value& call : made->as_array()) {
        const Value* function = call.find("function");
        if (!is(function, Type::object)) return std::nullopt;
        const Value* arguments = function->find("arguments");
        out.calls.push_back(
            {std::string(text_at(*function, "name")), arguments != nullptr ? *arguments : Value()});
    }
    return out;
}

void Rounds::remember(std::string key, engine::RequestId id) {
    const std::lock_guard lock(mutex_);
    const auto [place, fresh] = rounds_.insert_or_assign(key, id);
    if (fresh) order_.push_back(std::move(key));
    if (order_.size() <= most_rounds) return;
    rounds_.erase(order_.front());
    order_.pop_front();
}

engine::RequestId Rounds::find(const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto found = rounds_.find(key);
    return found == rounds_.end() ? 0 : found->second;
}

}  // namespace dgemma::server
