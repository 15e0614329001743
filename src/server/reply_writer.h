// One reply in the shape of an API: whole, or as server-sent events.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "server/api_error.h"
#include "server/json.h"
#include "server/request.h"

namespace dgemma::server {

struct ReplyHead {
    std::string id;            // without the API's prefix
    std::int64_t created = 0;  // seconds since 1970
    std::string model;
};

struct Usage {
    int prompt_tokens = 0;
    int cached_tokens = 0;   // of the prompt
    int raw_log_tokens = 0;  // of the prompt: a tool turn's raw token log, in place of its rendered messages
    int completion_tokens = 0;
    int reasoning_tokens = 0;  // of the completion
};

// Why a reply ended, in the words of diffusion.reason; a deadline is a length to clients.
enum class Finish : std::uint8_t { stop, length, tool_calls, stop_string, deadline };
std::string_view name_of(Finish finish);

struct Call {
    std::string id;  // without the API's prefix
    std::string name;
    std::string arguments;  // JSON text of an object
};

struct ReplyEnd {
    Finish finish = Finish::stop;
    std::string stop_string;  // the one that ended it
    Usage usage;
    Value diffusion = object();  // how it came about: seed, steps, blocks, ...
};

// Calls come in this order: start, then any of the others, then end or fail. What is to be sent gathers until
// take(). Of a reply that is not streamed it is the body, complete after end or fail.
class ReplyWriter {
  public:
    virtual ~ReplyWriter() = default;

    virtual void start(const Usage& so_far) = 0;
    virtual void reasoning(std::string_view text) = 0;
    virtual void content(std::string_view text) = 0;
    virtual void call(const Call& call) = 0;
    // What the canvas would read if it were committed now; the next one replaces it. Only streams show it.
    virtual void draft(const Value& draft) = 0;
    virtual void end(const ReplyEnd& end) = 0;
    // The reply cannot be completed. In a stream, an event; else not to be called.
    virtual void fail(const ApiError& error) = 0;
    // Something that every client passes over, so that a slow stream shows signs of life.
    virtual void ping() = 0;

    // Of responses that are to be kept: the reply's id, and when it has ended its items and all of it as
    // JSON.
    [[nodiscard]] virtual std::string id_for_store() const { return {}; }
    [[nodiscard]] virtual Value::Array items() const { return {}; }
    [[nodiscard]] virtual std::string reply() const { return {}; }

    [[nodiscard]] std::string take() { return std::exchange(out_, {}); }

  protected:
    std::string out_;
};

std::unique_ptr<ReplyWriter> make_writer(const GenerationRequest& request, const ReplyHead& head);

// The event stream's end for its API, which follows an error or an end: "data: [DONE]" of some.
// An event of a stream. name: empty for none.
void put_event(std::string& out, std::string_view name, const Value& data);

// Cuts committed text into the small pieces that a reader of a stream expects, at the ends of words; each is
// whole UTF-8, none empty, together they are the text.
std::vector<std::string_view> small_pieces(std::string_view text);

}  // namespace dgemma::server
