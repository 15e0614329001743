// Whether a tokenizer.json asks for what we implement. Private to the tokenizer.
#pragma once

#include <optional>
#include <string_view>

#include <simdjson.h>

#include "base/result.h"

namespace dgemma::text {

// The member `key`, or nothing if it is absent or null.
std::optional<simdjson::dom::element> member(simdjson::dom::object from, std::string_view key);

// The errors for a file that is well formed but wants another scheme, and for one that contradicts itself.
Error unsupported_tokenizer(std::string_view name, std::string_view what);
Error broken_tokenizer(std::string_view name, std::string_view what);

// Refuses, by name, a normalizer, pre-tokenizer, decoder or model option other than those of
// contract/tokenizer.md 1. The post-processor, truncation and padding are not looked at: they act only where
// special tokens are added or batches are made, and the chat template and the engine do that here.
Status check_scheme(simdjson::dom::object root, simdjson::dom::object model, std::string_view name);

}  // namespace dgemma::text
