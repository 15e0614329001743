#include "server/reply_writer.h"

#include "server/writers.h"

namespace dgemma::server {

std::string_view name_of(Finish finish) {
    switch (finish) {
        case Finish::stop:
            return "stop";
        case Finish::length:
            return "length";
        case Finish::tool_calls:
            return "tool_calls";
        case Finish::stop_string:
            return "stop_string";
        case Finish::deadline:
            return "deadline";
    }
    return "stop";
}

void add_raw_log(Value& object, const Usage& usage) {
    if (usage.raw_log_tokens > 0) object.set("raw_log_tokens", whole(usage.raw_log_tokens));
}

std::unique_ptr<ReplyWriter> make_writer(const GenerationRequest& request, const ReplyHead& head) {
    switch (request.api) {
        case Api::completions:
            return make_completion_writer(request, head);
        case Api::responses:
            return make_responses_writer(request, head);
        case Api::messages:
            return make_messages_writer(request, head);
        case Api::chat:
        case Api::own:
            break;
    }
    return make_chat_writer(request, head);
}

void put_event(std::string& out, std::string_view name, const Value& data) {
    if (!name.empty()) {
        out += "event: ";
        out += name;
        out += '\n';
    }
    // JSON on one line: to_json escapes every line feed.
    out += "data: ";
    out += text::to_json(data);
    out += "\n\n";
}

std::vector<std::string_view> small_pieces(std::string_view text) {
    constexpr std::size_t longest = 24;  // bytes, more only to complete a character
    std::vector<std::string_view> out;
    while (!text.empty()) {
        std::size_t cut = 0;
        // A word with the space before it, as tokens have it.
        for (std::size_t i = 1; i < text.size() && i <= longest; ++i) {
            const bool starts_word =
                (text[i] == ' ' || text[i] == '\n') && text[i - 1] != ' ' && text[i - 1] != '\n';
            if (starts_word) {
                cut = i;
                break;
            }
        }
        if (cut == 0) cut = std::min(text.size(), longest);
        while (cut < text.size() && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) ++cut;
        out.push_back(text.substr(0, cut));
        text.remove_prefix(cut);
    }
    return out;
}

}  // namespace dgemma::server
