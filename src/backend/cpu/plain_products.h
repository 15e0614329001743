// Matrix products of the CPU: rows packed into panels, weights packed tile by tile as they are read.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/dot_kernels.h"
#include "backend/cpu/plain_kernels.h"
#include "backend/cpu/scratch.h"
#include "base/thread_pool.h"
#include "base/weight_view.h"

namespace dgemma::backend::cpu {

// What the activations of a product become.
enum class Operand : std::uint8_t {
    f32,
    bf16,   // for bf16 weights, by dot products of pairs
    bytes,  // 8 bits with a scale per row and kByteBlock columns, for affine weights in tiles
};

// The kernels of a machine; dots is null where there are none, or none are wanted.
struct KernelTables {
    const PlainKernels* plain = nullptr;
    const DotKernels* dots = nullptr;
};

// Rows [n, k] cut into panels, k running slowest within a panel. f32 panels all have the kernel's height, the
// last one filled up with zeros: a row goes through the same instructions however many share its panel. The
// dot kernels treat each row alone, so their panels are as even as can be. Panels are kept and used again.
class Panels {
  public:
    // For rows of another kind; to be packed next.
    void become(const KernelTables& kernels, Operand operand) {
        kernels_ = kernels;
        operand_ = operand;
    }

    // Rows r = 0 .. rows - 1 from source(r) -> const float* [k].
    template <class Source>
    void pack(ThreadPool& pool, std::int64_t rows, std::int64_t k, Source source) {
        layout(rows, k);
        // Whole panels to a thread: the rows of a panel lie word beside word, and two threads that write into
        // the same cache lines wait for each other.
        pool.parallel_for(panels_, 1, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t panel = begin; panel < end; ++panel) pack_panel(panel, source);
        });
    }
    template <class Source>
    void pack_here(std::int64_t rows, std::int64_t k, Source source) {
        layout(rows, k);
        for (std::int64_t panel = 0; panel < panels_; ++panel) pack_panel(panel, source);
    }

    [[nodiscard]] Operand operand() const { return operand_; }
    [[nodiscard]] std::int64_t panels() const { return panels_; }
    [[nodiscard]] std::int64_t first_row(std::int64_t panel) const;  // of panel `panels()`: all rows
    [[nodiscard]] const float* f32(std::int64_t panel) const;
    [[nodiscard]] const std::uint32_t* pairs(std::int64_t panel) const;
    [[nodiscard]] BytePanel bytes(std::int64_t panel) const;

  private:
    void layout(std::int64_t rows, std::int64_t k);
    template <class Source>
    void pack_panel(std::int64_t panel, Source source) {
        const float* rows[kMaxPanelRows];
        const std::int64_t first = first_row(panel);
        for (std::int64_t r = first; r < first_row(panel + 1); ++r) rows[r - first] = source(r);
        write_panel(panel, rows);
    }
    void write_panel(std::int64_t panel, const float* const* rows);

    KernelTables kernels_;
    Operand operand_ = Operand::f32;
    std::int64_t rows_ = 0, k_ = 0, panels_ = 0;
    Scratch values_;  // f32, pairs of bf16, or quads of codes
    Scratch scales_, sums_;
};

// Panels that belong to the calling thread.
Panels& thread_panels();

// out [rows, outs] = x W^T, W one matrix [outs, ins] of `weight`.
struct Product {
    const Panels* x = nullptr;
    const WeightView* weight = nullptr;
    std::int64_t matrix = 0;  // expert of a bank
    float* out = nullptr;     // of the first row, at the weight's first output
    std::int64_t stride = 0;  // from one row of out to the next; 0: outs
};

class Products {
  public:
    Products(const KernelTables& kernels, ThreadPool& pool) : kernels_(kernels), pool_(pool) {}

    [[nodiscard]] const KernelTables& kernels() const { return kernels_; }

    // What activations a weight is multiplied with.
    [[nodiscard]] Operand operand_for(const WeightView& weight) const;
    // Panels for a weight's activations, in a place of their own: the next call for this slot takes them
    // back.
    [[nodiscard]] Panels& panels_for(const WeightView& weight, std::size_t slot = 0);

    // All products in one loop over the threads; results rounded to bf16 if `bf16`.
    void run(std::span<const Product> products, bool bf16);

    // Whether `rows` rows go through these weights in blocks: a thread takes some of the rows and all of the
    // weights, which it finds as tiles in the cache that the cores share, and what is done with the results
    // finds them in its own. Else the threads share the tiles, and every tile goes past all rows: better for
    // few rows, and the only way where the weights fit no cache.
    [[nodiscard]] bool in_blocks(std::int64_t rows, std::span<const WeightView* const> weights) const;
    // The weights as tiles: those that a file has as rows are interleaved by all threads. Of weights that are
    // multiplied by dot products; valid until the next call.
    std::span<const WeightView> as_tiles(std::span<const WeightView* const> weights);
    // Rows r = 0 .. rows - 1 of a weight's activations, source(r) -> const float*, in panels of the calling
    // thread, which its next call takes back.
    template <class Source>
    const Panels& pack_here(const WeightView& weight, std::int64_t rows, Source source) const {
        return pack_here(weight, rows, weight.shape.back(), source);
    }
    // The same for what is k long and multiplied with columns of a table.
    template <class Source>
    const Panels& pack_here(const WeightView& table, std::int64_t rows, std::int64_t k, Source source) const {
        Panels& panels = thread_panels();
        panels.become(kernels_, operand_for(table));
        panels.pack_here(rows, k, source);
        return panels;
    }

    // Outputs a tile has; a range that `columns` computes begins at a multiple of it.
    [[nodiscard]] std::int64_t tile_width(const Product& p) const {
        return p.x->operand() == Operand::f32 ? std::int64_t{kernels_.plain->cols} : kTileRows;
    }
    // Outputs [begin, end) of one product, on this thread; `begin` of them is p.out's first. The caller tells
    // of the whole product by note_work.
    void columns(const Product& p, std::int64_t begin, std::int64_t end, bool bf16);
    void note_work(const Product& p);
    void note_work(const WeightView& weight, std::int64_t rows);

    // out [rows, cols] (+)= p T, T the rows [first, first + count) of table [*, cols]. p: f32 or bf16 panels,
    // `count` even in the latter case.
    void times_rows(const Panels& p, std::int64_t count, const WeightView& table, std::int64_t first,
                    float* out, bool add);

    // The same for blocks of rows. Whether a table [*, cols] is multiplied with rows of probabilities in
    // blocks, as in_blocks says it of weights.
    [[nodiscard]] bool in_blocks_of_columns(std::int64_t rows, const WeightView& table) const;
    // Such a table's columns as tiles [cols / 32][rows / 2][32][2], interleaved by all threads; valid until
    // other columns are asked for.
    const std::uint32_t* columns_as_tiles(const WeightView& table);
    // Whether columns interleaved from now on serve the calls that follow too: once for all canvases of a
    // pass.
    void keep_columns(bool keep) {
        keeps_columns_ = keep;
        columns_of_ = nullptr;
    }
    // out [rows, cols] (+)= p T on this thread; p: bf16 panels.
    void times_tiles(const Panels& p, std::int64_t count, const WeightView& table, const std::uint32_t* tiles,
                     std::int64_t first, float* out, bool add) const;
    void note_columns(const WeightView& table, std::int64_t rows);

    // Multiply-adds since the last call, by kind.
    std::array<double, kArithmetics> take_work() { return std::exchange(work_, {}); }

  private:
    void note_work(Operand operand, std::int64_t rows, std::int64_t outs, std::int64_t ins);
    // The tile of outputs that begins at `column`, written from p.out + at.
    void tile(const Product& p, std::int64_t column, std::int64_t at, bool bf16);
    void tile_f32(const Product& p, std::int64_t column, std::int64_t at, bool bf16);
    void tile_dots(const Product& p, std::int64_t column, std::int64_t at);

    KernelTables kernels_;
    ThreadPool& pool_;
    std::deque<Panels> panels_;
    Scratch tiles_, columns_;
    const std::byte* columns_of_ = nullptr;  // the table whose columns are kept there
    bool keeps_columns_ = false;
    std::vector<WeightView> tiled_;
    std::array<double, kArithmetics> work_{};
};

// Scratch of at least n floats that belongs to the calling thread; `slot` tells apart what is used at the
// same time.
float* thread_scratch(int slot, std::int64_t n);

}  // namespace dgemma::backend::cpu
