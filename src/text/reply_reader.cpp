#include "text/reply_reader.h"

namespace dgemma::text {

MarkerIds marker_ids(const Tokenizer& tokenizer) {
    return MarkerIds::from([&](std::string_view token) { return tokenizer.id_of(token); });
}

void ReplyReader::push(std::span<const std::int32_t> ids, std::vector<ParserEvent>& events) {
    for (const std::int32_t id : ids) {
        if (stopped()) return;
        parser_.push(id, parser_.is_control(id) ? detokenizer_.flush() : detokenizer_.push(id), events);
    }
}

void ReplyReader::finish(std::vector<ParserEvent>& events) { parser_.finish(detokenizer_.flush(), events); }

ParsedReply read_reply(const Tokenizer& tokenizer, std::span<const std::int32_t> ids,
                       std::optional<std::int32_t> stop_id, ParserOptions options) {
    ReplyReader reader(tokenizer, options);
    std::vector<ParserEvent> events;
    reader.push(ids, events);
    if (stop_id) reader.push(std::span(&*stop_id, 1), events);
    reader.finish(events);
    ParsedReply reply;
    for (const ParserEvent& event : events) reply.add(event);
    return reply;
}

}  // namespace dgemma::text
