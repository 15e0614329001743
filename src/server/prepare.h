// From a request's body to what the engine is asked.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "reply/prompt.h"
#include "server/request.h"
#include "server/served_model.h"

namespace dgemma::server {

using ServedModels = std::vector<std::shared_ptr<ServedModel>>;

struct Prepared {
    std::shared_ptr<ServedModel> model;
    GenerationRequest request;
    reply::Prompt prompt;
    engine::Continuation continuation;  // of a tool turn whose round is known
};

// Parses, renders and tokenizes. count_only: the prompt is all that is asked for. Usable from any thread.
std::variant<Prepared, ApiError> prepare(Api api, std::string_view body, bool lenient, bool count_only,
                                         const ServedModels& models, ResponseStore* store);

// The model of that name; the first one for an empty name. -> nullptr where there is none.
std::shared_ptr<ServedModel> model_named(const ServedModels& models, std::string_view name);
ApiError no_such_model(const ServedModels& models, std::string_view name);

// /tokenize: {"text"}, or {"messages"} and maybe "tools", as the model reads them -> {"tokens", "count"}.
// /detokenize: {"tokens"} -> {"text"}. Either with "model". -> JSON.
std::variant<std::string, ApiError> tokenize_json(std::string_view body, const ServedModels& models);
std::variant<std::string, ApiError> detokenize_json(std::string_view body, const ServedModels& models);

}  // namespace dgemma::server
