// A model that the server answers with.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "server/model_port.h"
#include "server/rounds.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace dgemma::server {

struct ServedModel {
    std::string name;  // as clients ask for it
    text::Tokenizer tokenizer;
    text::TemplateRevision revision = text::TemplateRevision::canonical;
    std::unique_ptr<ModelPort> port;
    std::int64_t created = 0;  // seconds since 1970, for the list of models
    std::shared_ptr<Rounds> rounds = std::make_shared<Rounds>();
};

}  // namespace dgemma::server
