// A matrix or bank in E4M3, of given numbers, for tests.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/small_floats.h"
#include "base/weight_view.h"

namespace dgemma::testing {

struct E4m3Weight {
    // Every row has the scale `scale`; numbers become the nearest codes of it.
    E4m3Weight(Shape shape, const std::vector<float>& values, float scale)
        : codes(values.size()), scales(values.size() / static_cast<std::size_t>(shape.back()), scale) {
        for (std::size_t i = 0; i < values.size(); ++i) codes[i] = f32_to_e4m3(values[i] / scale);
        view.shape = std::move(shape);
        view.encoding = Encoding::fp8_row;
        view.codes = reinterpret_cast<const std::byte*>(codes.data());
        view.scales = reinterpret_cast<const std::byte*>(scales.data());
    }
    E4m3Weight(const E4m3Weight&) = delete;
    E4m3Weight& operator=(const E4m3Weight&) = delete;

    [[nodiscard]] float value(std::int64_t row, std::int64_t column) const {
        return e4m3_to_f32(codes[static_cast<std::size_t>(row * view.shape.back() + column)]) *
               scales[static_cast<std::size_t>(row)];
    }
    std::vector<std::uint8_t> codes;
    std::vector<float> scales;
    WeightView view;
};

}  // namespace dgemma::testing
