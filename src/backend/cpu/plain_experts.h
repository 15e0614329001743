// The rows of a call sorted by the expert they go to.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"

namespace dgemma::backend::cpu {

// Every (row, choice) pair has a place; the places of one expert are consecutive and in order of the rows.
struct ExpertRows {
    struct Group {
        std::int64_t expert = 0;
        std::int64_t first = 0, count = 0;  // places
    };
    std::vector<Group> groups;           // of the experts that have rows, ascending
    std::vector<std::int64_t> pair_at;   // [n * k]: r * k + i of the choice i of row r at a place
    std::vector<std::int64_t> place_of;  // [n * k]: the place of choice i of row r, at r * k + i

    ExpertRows(const Routing& routing, std::int64_t experts);
};

}  // namespace dgemma::backend::cpu
