// Puts a rendered prompt together from what the template says and what the client says.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/segment.h"

namespace dgemma::text {

class SegmentWriter {
  public:
    // The template's own words: control tokens in them are live.
    void markup(std::string_view text) { append(text, false); }

    // Anything that came from outside: names, roles, keys, numbers, content.
    void data(std::string_view text) { append(text, true); }

    void append(const std::vector<Segment>& segments) {
        for (const Segment& segment : segments) append(segment.text, segment.data);
    }

    [[nodiscard]] const std::vector<Segment>& segments() const& { return segments_; }
    [[nodiscard]] std::vector<Segment>&& segments() && { return std::move(segments_); }

  private:
    void append(std::string_view text, bool data) {
        if (text.empty()) return;
        if (segments_.empty() || segments_.back().data != data) segments_.push_back({{}, data});
        segments_.back().text += text;
    }

    std::vector<Segment> segments_;  // neighbours differ in kind, none is empty
};

}  // namespace dgemma::text
