#include "base/weight_view.h"

namespace dgemma {

std::string_view name_of(Encoding encoding) {
    switch (encoding) {
        case Encoding::plain:
            return "plain";
        case Encoding::affine8:
            return "affine8";
        case Encoding::affine4:
            return "affine4";
        case Encoding::fp8_row:
            return "fp8_row";
        case Encoding::nvfp4:
            return "nvfp4";
    }
    return "?";
}

}  // namespace dgemma
