// Weights and activations in E4M3 as Hopper's kernels take them.
#pragma once

#include <cstdint>

namespace dgemma::backend::cuda {

// A weight in E4M3 as it lies on the device for kernels that multiply it as such: [groups, outs, ins], and
// the scales of its rows [groups, outs].
struct E4m3Matrix {
    const std::uint8_t* codes = nullptr;
    const float* scales = nullptr;
    std::int64_t groups = 1, outs = 0, ins = 0;
};
// Activations in E4M3 (base/e4m3_rows.h): codes [rows, cols] and the scales of the rows, or of every 128
// columns of them; and where they go, null codes: nowhere.
struct E4m3Rows {
    const std::uint8_t* codes = nullptr;
    const float* scales = nullptr;
};
struct E4m3Target {
    std::uint8_t* codes = nullptr;
    float* scales = nullptr;
};
// How many scales a row of a hidden layer has in memory: one for 128 columns, filled up to whole 16 bytes.
constexpr std::int64_t hidden_scales(std::int64_t width) { return ((width + 127) / 128 + 3) / 4 * 4; }

// A dense MLP: of packed weights this is PackedDense of kernels.h. hidden: room for [rows, width] codes and
// [rows, hidden_scales(width)] scales.
struct E4m3Dense {
    E4m3Rows x;
    std::int64_t rows = 0;  // 0: there is none
    E4m3Matrix gate, up, down;
    E4m3Target hidden;
    void* y = nullptr;
};

}  // namespace dgemma::backend::cuda
