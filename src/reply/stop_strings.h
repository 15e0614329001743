// Texts that end a reply, found in a stream of pieces.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dgemma::reply {

// Passes text through until one of the stops is complete. The stop that is complete first wins, the longest
// of those that end together; it and what follows it never come out. How the text is cut into pieces makes no
// difference to what comes out in all.
class StopStrings {
  public:
    explicit StopStrings(std::vector<std::string> stops);  // none of them empty

    // The text that can be shown now. What may still turn out to be the beginning of a stop is held back.
    std::string feed(std::string_view piece);

    // The end of the text: what was held back. Empty after a stop.
    std::string finish();

    [[nodiscard]] bool stopped() const { return met_.has_value(); }

    // The stop that was met.
    [[nodiscard]] const std::optional<std::string>& met() const { return met_; }

  private:
    std::vector<std::string> stops_;
    std::string held_;
    std::optional<std::string> met_;
};

}  // namespace dgemma::reply
