// Finds added tokens (control tokens such as `<|turn>`) in text: contract/tokenizer.md 1.2, step 1.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dgemma::text {

class AddedTokens {
  public:
    AddedTokens() = default;
    // Tokens must not be empty.
    explicit AddedTokens(std::vector<std::pair<std::string, std::int32_t>> tokens);

    struct Match {
        std::size_t begin = 0, length = 0;
        std::int32_t id = 0;
    };

    // The leftmost match that begins at or after `from`; of several that begin there the longest.
    [[nodiscard]] std::optional<Match> find(std::string_view text, std::size_t from) const;

  private:
    [[nodiscard]] std::optional<Match> match_at(std::string_view text, std::size_t begin) const;

    std::vector<std::pair<std::string, std::int32_t>> tokens_;  // sorted by string
    std::array<bool, 256> begins_{};                            // some token begins with this byte
};

}  // namespace dgemma::text
