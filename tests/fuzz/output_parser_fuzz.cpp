// Any bytes as model output: no crash, the same result however they are cut, and text that is whole UTF-8.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "text/output_parser.h"
#include "text/utf8.h"

namespace {

using namespace dgemma::text;

std::string all_of(const std::vector<ParserEvent>& events) {
    ParsedReply reply;
    for (const ParserEvent& event : events) {
        if (reply.stop || !is_valid_utf8(event.text)) std::abort();
        reply.add(event);
    }
    std::string out = reply.reasoning.value_or("") + '\0' + reply.content.value_or("") + '\0';
    for (const ToolCall& call : reply.tool_calls) {
        const std::string arguments = to_json(call.arguments);
        const auto read_back = parse_json(arguments, "arguments");
        if (!read_back || to_json(*read_back) != arguments) std::abort();
        out += call.name + '\0' + arguments + '\0';
    }
    if (reply.stop) out += text_of(*reply.stop);
    return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0) return 0;
    const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
    ParserOptions options;
    options.start = data[0] & 1 ? ParserOptions::Start::thought : ParserOptions::Start::content;
    options.tool_aware_stop = (data[0] & 2) != 0;
    const std::size_t step = 1 + (data[0] >> 2) % 24;

    std::vector<ParserEvent> whole, pieces;
    TextOutputParser at_once(options), piecewise(options);
    at_once.push(bytes, whole);
    at_once.finish(whole);
    for (std::size_t pos = 0; pos < bytes.size(); pos += step)
        piecewise.push(bytes.substr(pos, step), pieces);
    piecewise.finish(pieces);
    if (all_of(whole) != all_of(pieces)) std::abort();
    return 0;
}
