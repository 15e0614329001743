// A piece of a rendered prompt: what the template wrote, or what came from a client.
#pragma once

#include <string>

namespace dgemma::text {

// Control tokens are read only from what the template wrote. The text of data segments is ordinary text
// whatever it looks like (safe mode, contract/tokenizer.md 4).
struct Segment {
    std::string text;
    bool data = false;

    friend bool operator==(const Segment&, const Segment&) = default;
};

}  // namespace dgemma::text
