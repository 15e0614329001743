// How far a stored weight is from what it was made of, and how far its format allows it to be.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/thread_pool.h"
#include "base/weight_view.h"
#include "files/pack.h"
#include "files/quantizers.h"

namespace dgemma::files {

struct WeightError {
    double squares = 0;         // of the errors, added up
    double source_squares = 0;  // of the numbers themselves
    std::int64_t elements = 0;
    // The largest share of what its format allows (WeightEncoder) that the error of an element took, or that
    // of a group where the rule is about groups (affine4, nvfp4). Above 1 the weight is not of this source.
    double worst = 0;

    void add(const WeightError& other);
    [[nodiscard]] double relative() const;  // root of the mean square error over that of the numbers
};

// source: rows of the same shape. Counts the elements as bf16 in `run`, and releases what it has read.
// Errors: cancelled.
Result<WeightError> compare_weight(const StoredRows& stored, const RowSource& source, ThreadPool& pool,
                                   const LongRun& run);

}  // namespace dgemma::files
