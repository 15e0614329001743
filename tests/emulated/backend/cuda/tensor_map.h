// A tensor map of the emulated machine: a matrix of 16-bit numbers and the height of its boxes.
#pragma once

#include <cstdint>

struct CUtensorMap {
    const std::uint8_t* data = nullptr;
    std::int64_t rows = 0, cols = 0;
    int box_rows = 0;
};
