// "Did you mean ...?"
#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace dgemma::cli {

// How many single-byte insertions, deletions, substitutions and swaps of neighbours turn `a` into `b`.
std::size_t edit_distance(std::string_view a, std::string_view b);

// The candidate nearest to `word`, the first one on ties; nothing where none is close enough to be what was
// meant (a third of the longer word's letters, at least one).
std::optional<std::string_view> nearest(std::string_view word, std::span<const std::string_view> candidates);

}  // namespace dgemma::cli
