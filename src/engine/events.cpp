#include "engine/events.h"

namespace dgemma::engine {

std::string_view name_of(FinishReason reason) {
    switch (reason) {
        case FinishReason::stop:
            return "stop";
        case FinishReason::length:
            return "length";
        case FinishReason::stop_string:
            return "stop_string";
        case FinishReason::cancelled:
            return "cancelled";
        case FinishReason::deadline:
            return "deadline";
    }
    return "?";
}

std::string_view name_of(Reuse reuse) {
    switch (reuse) {
        case Reuse::none:
            return "none";
        case Reuse::prefix:
            return "prefix";
        case Reuse::rewound:
            return "rewound";
        case Reuse::forked:
            return "forked";
        case Reuse::raw_log:
            return "raw_log";
    }
    return "?";
}

}  // namespace dgemma::engine
