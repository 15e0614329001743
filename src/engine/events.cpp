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
    }
    return "?";
}

}  // namespace dgemma::engine
