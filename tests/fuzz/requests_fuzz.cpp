// Requests as clients send them: HTTP, then JSON of every API.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/http_parser.h"
#include "server/request.h"
#include "text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace dgemma;
    using namespace dgemma::server;
    const std::string_view bytes(reinterpret_cast<const char*>(data), size);
    if (bytes.empty()) return 0;
    const std::string_view rest = bytes.substr(1);
    if (bytes[0] == 'H') {
        // The same however it is cut.
        HttpParser whole({.head = 4096, .headers = 32, .body = 4096}), pieces = whole;
        const std::size_t taken = whole.feed(rest);
        std::size_t at = 0;
        while (at < rest.size() && !pieces.complete() && !pieces.error())
            at += pieces.feed(rest.substr(at, 3));
        if (whole.complete() != pieces.complete() || whole.error().has_value() != pieces.error().has_value())
            std::abort();
        if (whole.complete() && (taken > rest.size() || whole.request().body != pieces.request().body))
            std::abort();
        return 0;
    }
    const Result<Value> json = text::parse_json(rest, "the body");
    if (!json) return 0;
    for (const Api api : {Api::chat, Api::completions, Api::responses, Api::messages}) {
        GenerationRequest request;
        const auto error = read_request(api, json.value(), (bytes[0] & 1) != 0, request);
        if (error && (error->message.empty() || error->status != 400)) std::abort();
        if (error || api == Api::completions) continue;
        static_cast<void>(text::render_chat(text::TemplateRevision::canonical, request.chat));
    }
    return 0;
}
