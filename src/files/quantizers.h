// Weights from f32 rows into the encodings and layouts of base/weight_view.h, and back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/tensor.h"
#include "base/thread_pool.h"
#include "base/weight_bytes.h"
#include "base/weight_view.h"
#include "files/quantize_kernels.h"

namespace dgemma::files {

// How a weight is to be written. What can be: plain in `rows` as f32, bf16 or f16 (f16 only from a source
// that is f16), plain bf16 in `tiles`, affine8 and affine4 in `tiles`, fp8_row and nvfp4 in `rows`.
struct WeightForm {
    Shape shape;
    Encoding encoding = Encoding::plain;
    Layout layout = Layout::rows;
    Dtype type = Dtype::bf16;  // of plain elements
};
bool can_encode(const WeightForm& form);

// The rows of a weight [..., out, in] one by one; those of matrix m begin at m * out.
class RowSource {
  public:
    virtual ~RowSource() = default;
    // Writes a row as f32 to out [in]. Several threads call it at once.
    virtual void read(std::int64_t row, float* out) const = 0;
    // Rows [first, last) will not be read again.
    virtual void release(std::int64_t first, std::int64_t last) const;
};

// The rows of a stored weight, in any encoding. The bytes behind the view outlive it.
class StoredRows : public RowSource {
  public:
    // mapped: the bytes are of a Mapping, whose pages release() gives back.
    explicit StoredRows(WeightView weight, bool mapped = false);
    void read(std::int64_t row, float* out) const override;
    void release(std::int64_t first, std::int64_t last) const override;
    [[nodiscard]] const WeightView& view() const { return weight_; }

  private:
    WeightView weight_;
    WeightGrid grid_;
    bool mapped_;
};

// Values of magnitude above this are refused as damage, like NaN and infinity: scales could overflow.
inline constexpr float kLargestWeight = 0x1p126f;

// Encodes a weight piece by piece.
//
//   affine8   the bias is the bf16 number below the group's least value, the scale the one above what reaches
//             its greatest: no value is off by more than half a scale
//   affine4   ends pulled in, least squares (quantize_kernels.inl): the squares of a group's errors add up to
//             no more than by the rule of affine8
//   fp8_row   scale = the row's largest magnitude / 448, at least 2^-126; nearest code
//   nvfp4     global = the matrix's largest magnitude / (448 * 6), at least 2^-100; of eight scales per group
//             the one with the least square error; nearest code
// All rounding is to the nearest, ties to even. The bytes do not depend on the machine or on the threads.
class WeightEncoder {
  public:
    // `name` is for messages. can_encode(form) holds; `rows` outlives the encoder.
    WeightEncoder(std::string name, WeightForm form, const RowSource& rows,
                  const QuantizeKernels& kernels = choose_quantize_kernels());

    [[nodiscard]] const WeightGrid& grid() const { return grid_; }
    [[nodiscard]] std::int64_t tiles() const { return grid_.tiles * grid_.matrices; }
    // Where tile `tile` (of all) begins in each part; tiles() gives the ends.
    [[nodiscard]] WeightBytes offset(std::int64_t tile) const;
    [[nodiscard]] std::int64_t first_row(std::int64_t tile) const;  // of all rows

    // Writes the bytes of tiles [first, last) of each part; a pointer says where those of `first` go. Errors:
    // invalid, naming the tensor and the place of a NaN, an infinity or an enormous number.
    struct Parts {
        std::byte* codes = nullptr;
        std::byte* scales = nullptr;
        std::byte* biases = nullptr;
    };
    Status encode(std::int64_t first, std::int64_t last, const Parts& to, ThreadPool& pool);

    // One f32 per matrix, of nvfp4: complete when every tile has been encoded.
    [[nodiscard]] const std::vector<float>& globals() const { return globals_; }

  private:
    struct Scratch;
    void encode_tile(std::int64_t tile, const Parts& to, Scratch& scratch) const;
    Status find_globals(std::int64_t first, std::int64_t last, ThreadPool& pool);
    [[nodiscard]] std::int64_t rows_in(std::int64_t tile) const;
    [[nodiscard]] std::uint32_t read_tile(std::int64_t tile, Scratch& scratch) const;
    [[nodiscard]] Error bad_number(std::int64_t tile) const;

    std::string name_;
    WeightForm form_;
    const RowSource& rows_;
    const QuantizeKernels& kernels_;
    WeightGrid grid_;
    std::vector<float> globals_;
    std::int64_t globals_known_ = 0;  // of the first matrices
};

// A weight and the memory it lies in.
struct OwnedWeight {
    Buffer codes, scales, biases, globals;
    WeightView view;
};

// A whole weight at once. Errors: as WeightEncoder::encode; unsupported, where can_encode says no.
Result<OwnedWeight> encode_weight(const std::string& name, const WeightForm& form, const RowSource& rows,
                                  ThreadPool& pool,
                                  const QuantizeKernels& kernels = choose_quantize_kernels());

// The same numbers in the other layout, bit for bit. Errors: unsupported, where the encoding has no such
// layout.
Result<OwnedWeight> with_layout(const WeightView& weight, Layout layout);

// Rows [first, first + count) of all rows as f32, `stride` elements apart. The reference of every kernel that
// reads a weight: scale * q + bias is rounded once, code * scale * global once at each product that is not
// exact. Not fast.
void decode_rows(const WeightView& weight, std::int64_t first, std::int64_t count, float* out,
                 std::int64_t stride);

}  // namespace dgemma::files
