#include "reply/stop_strings.h"

#include <algorithm>
#include <utility>

namespace dgemma::reply {

namespace {

// The length of the longest end of `text` that begins `stop` without being all of it.
std::size_t begun(std::string_view text, std::string_view stop) {
    for (std::size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length) {
        if (text.substr(text.size() - length) == stop.substr(0, length)) return length;
    }
    return 0;
}

}  // namespace

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
    std::erase(stops_, std::string());
}

std::string StopStrings::feed(std::string_view piece) {
    if (met_) return {};
    held_ += piece;
    std::size_t first_end = std::string::npos, first_start = 0, keep = 0;
    const std::string* first = nullptr;
    for (const std::string& stop : stops_) {
        const std::size_t start = held_.find(stop);
        keep = std::max(keep, begun(held_, stop));
        if (start == std::string::npos) continue;
        const std::size_t end = start + stop.size();
        if (end < first_end || (end == first_end && start < first_start)) {
            first_end = end;
            first_start = start;
            first = &stop;
        }
    }
    if (first != nullptr) {
        met_ = *first;
        return std::exchange(held_, {}).substr(0, first_start);
    }
    std::string out = held_.substr(0, held_.size() - keep);
    held_.erase(0, out.size());
    return out;
}

std::string StopStrings::finish() { return std::exchange(held_, {}); }

}  // namespace dgemma::reply
