// Thoughts in a form that clients send back without looking into it.
#pragma once

#include <string>
#include <string_view>

namespace dgemma::server {

// The text as base64 behind a mark of ours.
std::string sealed_thought(std::string_view text);

// The text of such a seal; empty for what is none.
std::string thought_of(std::string_view sealed);

}  // namespace dgemma::server
