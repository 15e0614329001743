// Any bytes as JSON, and any JSON as a conversation: no crash, JSON that reads back the same, and client text
// that never becomes the template's.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "text/chat_template.h"
#include "text/messages.h"
#include "text/utf8.h"

using namespace dgemma::text;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view bytes(reinterpret_cast<const char*>(data), size);
    const auto value = parse_json(bytes, "input");
    if (!value) return 0;
    const auto read_back = parse_json(to_json(*value), "its JSON");
    if (!read_back || !(*read_back == *value)) std::abort();

    ChatInput input;
    const Value* messages = value->find("messages");
    input.messages = messages ? *messages : *value;
    if (const Value* tools = value->find("tools")) input.tools = *tools;
    input.enable_thinking = value->find("enable_thinking") != nullptr;
    input.preserve_thinking = value->find("preserve_thinking") != nullptr;
    for (const TemplateRevision revision : {TemplateRevision::canonical, TemplateRevision::legacy_2f1b4d75,
                                            TemplateRevision::legacy_36e3a42e}) {
        const auto prompt = render_chat(revision, input);
        if (!prompt) continue;
        if (!is_valid_utf8(join(*prompt))) std::abort();
        for (std::size_t i = 1; i < prompt->size(); ++i)
            if ((*prompt)[i].data == (*prompt)[i - 1].data) std::abort();
    }
    // What the request check accepts, the current template renders, but for schemas of odd types.
    (void)chat_input(input.messages, input.tools);
    return 0;
}
