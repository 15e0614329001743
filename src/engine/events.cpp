#include "engine/events.h"

namespace dgemma::engine {

std::string_view name_of(ErrorKind kind) {
    switch (kind) {
        case ErrorKind::usage:
            return "usage";
        case ErrorKind::not_found:
            return "not_found";
        case ErrorKind::invalid:
            return "invalid";
        case ErrorKind::unsupported:
            return "unsupported";
        case ErrorKind::context_length:
            return "context_length";
        case ErrorKind::cancelled:
            return "cancelled";
        case ErrorKind::non_finite:
            return "non_finite";
        case ErrorKind::io:
            return "io";
        case ErrorKind::memory:
            return "memory";
        case ErrorKind::overloaded:
            return "overloaded";
    }
    return "?";
}

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
