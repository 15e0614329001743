#include "backend/backend.h"

#include <fmt/core.h>

namespace dgemma::backend {

std::string_view name_of(Arithmetic kind) {
    switch (kind) {
        case Arithmetic::f32:
            return "f32";
        case Arithmetic::bf16:
            return "bf16";
        case Arithmetic::bytes:
            return "bytes";
    }
    return "?";
}

std::string_view name_of(Stage stage) {
    switch (stage) {
        case Stage::self_conditioning:
            return "self_conditioning";
        case Stage::attention:
            return "attention";
        case Stage::dense:
            return "dense";
        case Stage::experts:
            return "experts";
        case Stage::head:
            return "head";
    }
    return "?";
}

Result<std::unique_ptr<Weight>> Backend::prepare_encoded(const WeightView& host) {
    if (host.encoding == Encoding::plain && host.layout == Layout::rows)
        return prepare(Tensor{host.codes, host.type, host.shape});
    return Error{ErrorKind::unsupported, fmt::format("weights stored as {} cannot be computed with on {}",
                                                     name_of(host.encoding), name())};
}

}  // namespace dgemma::backend
