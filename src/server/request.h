// The one form that the requests of every API are brought into.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "diffusion/options.h"
#include "server/api_error.h"
#include "server/json.h"
#include "server/response_store.h"
#include "text/chat_template.h"

namespace dgemma::server {

struct ToolChoice {
    enum class Kind : std::uint8_t { automatic, none, required, named };
    Kind kind = Kind::automatic;
    std::string name;  // of named
};

// `diffusion: {...}`, ours in every API. What is absent is the server's default.
struct DiffusionFields {
    std::optional<int> steps;
    std::optional<float> entropy_bound;
    std::optional<float> confidence_threshold;
    std::optional<diffusion::Sampler> sampler;
    std::optional<int> canvas_length;
    std::optional<bool> exact;
    bool drafts = false;
};

struct GenerationRequest {
    Api api = Api::chat;
    std::string model;
    text::ChatInput chat;  // of every API but completions
    // What each message of `chat` is called in the request; empty: messages[0], messages[1], ...
    std::vector<std::string> places;
    std::string text;               // of completions, or
    std::vector<std::int32_t> ids;  // the same as ids
    bool stream = false;
    bool include_usage = false;         // of streams of chat and completions
    int max_tokens = 0;                 // 0: the engine's default
    std::string_view max_tokens_field;  // where they were given; empty: nowhere
    std::optional<std::uint64_t> seed;
    float temperature = 0;
    std::vector<std::string> stops;
    ToolChoice tool_choice;
    bool parallel_tool_calls = true;
    // Of responses: a reasoning item holds its text as a summary, and as something to send back.
    bool reasoning_summary = false;
    bool reasoning_to_send_back = false;
    DiffusionFields diffusion;
    Value echo = object();      // of responses: fields that come back in the reply as they were sent
    bool store = false;         // of responses: the reply can be referred to later
    Value::Array conversation;  // then the items up to it
};

// A request's body, as JSON that has been read. lenient: fields that cannot be honoured are passed over
// instead of refused. -> what is wrong with it, if anything.
std::optional<ApiError> read_chat(const Value& body, bool lenient, GenerationRequest& out);
std::optional<ApiError> read_completion(const Value& body, bool lenient, GenerationRequest& out);
// store: what earlier responses left; may be null.
std::optional<ApiError> read_responses(const Value& body, bool lenient, ResponseStore* store,
                                       GenerationRequest& out);
// count_only: for count_tokens, which has no max_tokens.
std::optional<ApiError> read_messages(const Value& body, bool lenient, bool count_only,
                                      GenerationRequest& out);

std::optional<ApiError> read_request(Api api, const Value& body, bool lenient, GenerationRequest& out,
                                     ResponseStore* store = nullptr);

}  // namespace dgemma::server
