#include "backend/cpu/plain_products.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "backend/cpu/rows.h"
#include "backend/cpu/weight_rows.h"

namespace dgemma::backend::cpu {

float* thread_scratch(int slot, std::int64_t n) {
    thread_local std::array<std::vector<float>, 6> scratch;
    std::vector<float>& own = scratch[static_cast<std::size_t>(slot)];
    if (static_cast<std::int64_t>(own.size()) < n) own.resize(static_cast<std::size_t>(n));
    return own.data();
}

// ---------------------------------------------------------------------------------------------- panels

Panels& thread_panels() {
    thread_local Panels panels;
    return panels;
}

void Panels::layout(std::int64_t rows, std::int64_t k) {
    rows_ = rows;
    k_ = k;
    const std::int64_t height = operand_ == Operand::f32    ? kernels_.plain->rows
                                : operand_ == Operand::bf16 ? kernels_.dots->bf16_rows
                                                            : kernels_.dots->byte_rows;
    panels_ = (rows + height - 1) / height;
    if (operand_ == Operand::f32) {
        (void)values_.floats(panels_ * height * k);
    } else if (operand_ == Operand::bf16) {
        (void)values_.floats(rows * (k / 2) * kernels_.dots->pair_words);
    } else {
        (void)values_.floats(rows * (k / 4));
        (void)scales_.floats(rows * ((k + kByteBlock - 1) / kByteBlock));
        (void)sums_.floats(rows * (k / kAffineGroup));
    }
}

std::int64_t Panels::first_row(std::int64_t panel) const {
    if (operand_ == Operand::f32) return std::min(rows_, panel * kernels_.plain->rows);
    return panels_ == 0 ? 0 : panel * rows_ / panels_;
}

const float* Panels::f32(std::int64_t panel) const {
    return values_.data() + panel * kernels_.plain->rows * k_;
}
const std::uint32_t* Panels::pairs(std::int64_t panel) const {
    return reinterpret_cast<const std::uint32_t*>(values_.data()) +
           first_row(panel) * (k_ / 2) * kernels_.dots->pair_words;
}
BytePanel Panels::bytes(std::int64_t panel) const {
    const std::int64_t first = first_row(panel);
    return {reinterpret_cast<const std::int32_t*>(values_.data()) + first * (k_ / 4),
            scales_.data() + first * ((k_ + kByteBlock - 1) / kByteBlock),
            sums_.data() + first * (k_ / kAffineGroup)};
}

void Panels::write_panel(std::int64_t panel, const float* const* rows) {
    const std::int64_t first = first_row(panel);
    const auto count = static_cast<int>(first_row(panel + 1) - first);
    if (operand_ == Operand::f32) {
        kernels_.plain->pack(rows, k_, count, values_.data() + panel * kernels_.plain->rows * k_);
    } else if (operand_ == Operand::bf16) {
        kernels_.dots->round_rows(
            rows, k_, count,
            reinterpret_cast<std::uint32_t*>(values_.data()) + first * (k_ / 2) * kernels_.dots->pair_words);
    } else {
        const std::int64_t blocks = (k_ + kByteBlock - 1) / kByteBlock;
        for (int r = 0; r < count; ++r)
            kernels_.dots->quantise_row(
                rows[r], k_, count, r, reinterpret_cast<std::int32_t*>(values_.data()) + first * (k_ / 4),
                scales_.data() + first * blocks, sums_.data() + first * (k_ / kAffineGroup));
    }
}

// ---------------------------------------------------------------------------------------------- products

namespace {

// Weights beyond this are not kept as tiles for blocks of rows: they must fit the cores' shared cache beside
// the activations.
constexpr std::int64_t kMostTileBytes = std::int64_t{4} << 20;
constexpr std::int64_t kMostExpanded = 1 << 14;  // numbers that every block may expand to f32 for itself
constexpr std::int64_t kFewestBlockRows = 16;    // for each thread

std::int64_t tiles_of(const WeightView& w) { return (rows_of(w) + kTileRows - 1) / kTileRows; }
std::int64_t matrices_of(const WeightView& w) { return w.elements() / (rows_of(w) * cols_of(w)); }
std::int64_t tile_bytes(const WeightView& w) {
    const std::int64_t bits = w.encoding == Encoding::affine4 ? 4 : w.encoding == Encoding::affine8 ? 8 : 16;
    return matrices_of(w) * tiles_of(w) * kTileRows * cols_of(w) * bits / 8;
}

}  // namespace

Operand Products::operand_for(const WeightView& w) const {
    if (kernels_.dots == nullptr) return Operand::f32;
    if (w.encoding == Encoding::plain) {
        const bool pairs = w.type == Dtype::bf16 && cols_of(w) % 2 == 0;
        return pairs && kernels_.dots->bf16 != nullptr ? Operand::bf16 : Operand::f32;
    }
    const bool affine = w.encoding == Encoding::affine8 || w.encoding == Encoding::affine4;
    return affine && w.layout == Layout::tiles ? Operand::bytes : Operand::f32;
}

Panels& Products::panels_for(const WeightView& weight, std::size_t slot) {
    while (panels_.size() <= slot) panels_.emplace_back();
    panels_[slot].become(kernels_, operand_for(weight));
    return panels_[slot];
}

void Products::note_work(Operand operand, std::int64_t rows, std::int64_t outs, std::int64_t ins) {
    work_[static_cast<std::size_t>(operand)] +=
        static_cast<double>(rows) * static_cast<double>(outs) * static_cast<double>(ins);
}

void Products::note_work(const Product& p) {
    note_work(p.x->operand(), p.x->first_row(p.x->panels()), rows_of(*p.weight), cols_of(*p.weight));
}
void Products::note_work(const WeightView& weight, std::int64_t rows) {
    note_work(operand_for(weight), rows, rows_of(weight), cols_of(weight));
}

bool Products::in_blocks_of_columns(std::int64_t rows, const WeightView& table) const {
    return operand_for(table) == Operand::bf16 && table.layout == Layout::rows && rows_of(table) % 2 == 0 &&
           cols_of(table) % kTileRows == 0 && rows >= kFewestBlockRows * pool_.threads() &&
           table.elements() * 2 <= kMostTileBytes;
}

const std::uint32_t* Products::columns_as_tiles(const WeightView& table) {
    const std::int64_t pairs = rows_of(table) / 2, cols = cols_of(table);
    auto* to = reinterpret_cast<std::uint32_t*>(columns_.floats(pairs * cols));
    if (columns_of_ == table.codes) return to;
    columns_of_ = keeps_columns_ ? table.codes : nullptr;
    pool_.parallel_for(pairs, 32, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = 0; t < cols / kTileRows; ++t) {
            kernels_.dots->interleave_columns(table.codes + (2 * begin * cols + t * kTileRows) * 2, cols,
                                              end - begin, to + (t * pairs + begin) * kTileRows);
        }
    });
    return to;
}

void Products::note_columns(const WeightView& table, std::int64_t rows) {
    note_work(Operand::bf16, rows, cols_of(table), rows_of(table));
}

void Products::times_tiles(const Panels& p, std::int64_t count, const WeightView& table,
                           const std::uint32_t* tiles, std::int64_t first, float* out, bool add) const {
    const std::int64_t cols = cols_of(table);
    for (std::int64_t column = 0; column < cols; column += kTileRows) {
        const std::uint32_t* tile =
            tiles + (column / kTileRows * (rows_of(table) / 2) + first / 2) * kTileRows;
        for (std::int64_t panel = 0; panel < p.panels(); ++panel) {
            const std::int64_t row = p.first_row(panel);
            kernels_.dots->bf16(static_cast<int>(p.first_row(panel + 1) - row), count / 2, p.pairs(panel),
                                tile, out + row * cols + column, cols, add);
        }
    }
}

bool Products::in_blocks(std::int64_t rows, std::span<const WeightView* const> weights) const {
    std::int64_t bytes = 0;
    for (const WeightView* w : weights) {
        if (operand_for(*w) != Operand::f32) {
            bytes += tile_bytes(*w);
        } else if (w->elements() > kMostExpanded) {
            return false;
        }
    }
    return rows >= kFewestBlockRows * pool_.threads() && bytes <= kMostTileBytes;
}

std::span<const WeightView> Products::as_tiles(std::span<const WeightView* const> weights) {
    std::vector<std::int64_t> first_item(weights.size() + 1), place(weights.size());
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
        first_item[i + 1] = first_item[i];
        place[i] = bytes;
        if (weights[i]->layout == Layout::tiles || operand_for(*weights[i]) == Operand::f32) continue;
        first_item[i + 1] += matrices_of(*weights[i]) * tiles_of(*weights[i]);
        bytes += tile_bytes(*weights[i]);
    }
    auto* to = reinterpret_cast<std::byte*>(tiles_.floats(bytes / 4));
    tiled_.resize(weights.size());
    for (std::size_t i = 0; i < weights.size(); ++i) {
        tiled_[i] = *weights[i];
        if (first_item[i + 1] == first_item[i]) continue;
        tiled_[i].layout = Layout::tiles;
        tiled_[i].codes = to + place[i];
    }
    pool_.parallel_for(first_item.back(), 4, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t item = begin; item < end; ++item) {
            const auto after = std::upper_bound(first_item.begin(), first_item.end(), item);
            const auto i = static_cast<std::size_t>(after - first_item.begin() - 1);
            const WeightView& w = *weights[i];
            const std::int64_t tile = item - first_item[i];
            const std::int64_t column = tile % tiles_of(w) * kTileRows;
            const std::int64_t row = tile / tiles_of(w) * rows_of(w) + column;
            kernels_.dots->interleave_rows(
                w.codes + row * cols_of(w) * 2, cols_of(w),
                static_cast<int>(std::max<std::int64_t>(0, column + kTileRows - rows_of(w))), cols_of(w) / 2,
                reinterpret_cast<std::uint32_t*>(to + place[i] + tile * kTileRows * cols_of(w) * 2));
        }
    });
    return tiled_;
}

void Products::run(std::span<const Product> products, bool bf16) {
    std::vector<std::int64_t> first_item(products.size() + 1);
    for (std::size_t i = 0; i < products.size(); ++i) {
        const Product& p = products[i];
        note_work(p);
        first_item[i + 1] = first_item[i] + (rows_of(*p.weight) + tile_width(p) - 1) / tile_width(p);
    }
    pool_.parallel_for(first_item.back(), 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t item = begin; item < end; ++item) {
            const auto after = std::upper_bound(first_item.begin(), first_item.end(), item);
            const auto i = static_cast<std::size_t>(after - first_item.begin() - 1);
            const std::int64_t column = (item - first_item[i]) * tile_width(products[i]);
            tile(products[i], column, column, bf16);
        }
    });
}

void Products::columns(const Product& p, std::int64_t begin, std::int64_t end, bool bf16) {
    for (std::int64_t column = begin; column < end; column += tile_width(p))
        tile(p, column, column - begin, bf16);
}

void Products::tile(const Product& p, std::int64_t column, std::int64_t at, bool bf16) {
    if (p.x->operand() == Operand::f32) {
        tile_f32(p, column, at, bf16);
    } else {
        tile_dots(p, column, at);
    }
}

// Outputs [column, column + cols of the kernel) of a product, written from p.out + at: the weight's rows,
// expanded to f32 [ins][cols].
void Products::tile_f32(const Product& p, std::int64_t column, std::int64_t at, bool bf16) {
    const std::int64_t width = kernels_.plain->cols;
    const std::int64_t outs = rows_of(*p.weight), ins = cols_of(*p.weight);
    const std::int64_t valid = std::min(width, outs - column);
    const std::int64_t stride = p.stride != 0 ? p.stride : outs;
    float* row = thread_scratch(0, ins);
    float* tile = thread_scratch(1, ins * width);
    for (std::int64_t j = 0; j < width; ++j) {
        if (j < valid) {
            load_row(*p.weight, p.matrix * outs + column + j, row);
            for (std::int64_t i = 0; i < ins; ++i) tile[i * width + j] = row[i];
        } else {
            for (std::int64_t i = 0; i < ins; ++i) tile[i * width + j] = 0.0f;
        }
    }
    float* c = thread_scratch(2, kernels_.plain->rows * width);
    for (std::int64_t panel = 0; panel < p.x->panels(); ++panel) {
        kernels_.plain->tile(ins, p.x->f32(panel), tile, width, c, width, false);
        if (bf16) kernels_.plain->round(c, kernels_.plain->rows * width);
        const std::int64_t first = p.x->first_row(panel);
        const std::int64_t rows = p.x->first_row(panel + 1) - first;
        for (std::int64_t i = 0; i < rows; ++i)
            std::copy_n(c + i * width, valid, p.out + (first + i) * stride + at);
    }
}

// The same through dot products: outputs [column, column + 32).
void Products::tile_dots(const Product& p, std::int64_t column, std::int64_t at) {
    const WeightView& w = *p.weight;
    const DotKernels& dots = *kernels_.dots;
    const std::int64_t outs = rows_of(w), ins = cols_of(w);
    const std::int64_t valid = std::min(kTileRows, outs - column);
    const std::int64_t stride = p.stride != 0 ? p.stride : outs;
    TileView tile;
    if (w.layout == Layout::tiles) {
        tile = tile_of(w, p.matrix, column);
        if (w.encoding == Encoding::affine4) {
            auto* codes = reinterpret_cast<std::uint8_t*>(thread_scratch(1, ins * kTileRows / 4));
            dots.unpack4(ins, reinterpret_cast<const std::uint8_t*>(tile.codes), codes);
            tile.codes = reinterpret_cast<const std::byte*>(codes);
        }
    } else {
        auto* words = reinterpret_cast<std::uint32_t*>(thread_scratch(1, ins / 2 * kTileRows));
        dots.interleave_rows(w.codes + (p.matrix * outs + column) * ins * 2, ins,
                             static_cast<int>(kTileRows - valid), ins / 2, words);
        tile.codes = reinterpret_cast<const std::byte*>(words);
    }
    float* c = thread_scratch(2, kMaxPanelRows * kTileRows);
    for (std::int64_t panel = 0; panel < p.x->panels(); ++panel) {
        const std::int64_t first = p.x->first_row(panel);
        const auto rows = static_cast<int>(p.x->first_row(panel + 1) - first);
        float* out = p.out + first * stride + at;
        float* to = valid == kTileRows ? out : c;
        const std::int64_t ld = valid == kTileRows ? stride : kTileRows;
        if (w.encoding == Encoding::plain) {
            dots.bf16(rows, ins / 2, p.x->pairs(panel), reinterpret_cast<const std::uint32_t*>(tile.codes),
                      to, ld, false);
        } else {
            const auto product = w.encoding == Encoding::affine4 ? dots.affine4 : dots.affine8;
            product(rows, ins, p.x->bytes(panel), reinterpret_cast<const std::uint8_t*>(tile.codes),
                    tile.scales, tile.biases, to, ld);
        }
        if (to == c) {
            for (std::int64_t i = 0; i < rows; ++i) std::copy_n(c + i * kTileRows, valid, out + i * stride);
        }
    }
}

void Products::times_rows(const Panels& p, std::int64_t count, const WeightView& table, std::int64_t first,
                          float* out, bool add) {
    const std::int64_t cols = cols_of(table);
    const bool dots = p.operand() == Operand::bf16;
    note_work(p.operand(), p.first_row(p.panels()), cols, count);
    const std::int64_t width = dots ? kTileRows : std::int64_t{kernels_.plain->cols};
    const std::int64_t all = (cols + width - 1) / width;
    // Tiles that a thread takes together: a longer piece of each row.
    const std::int64_t group = dots ? std::clamp<std::int64_t>(all / pool_.threads(), 1, 8) : 1;
    pool_.parallel_for(all, group, [&](std::int64_t begin, std::int64_t end) {
        float* tiles = thread_scratch(1, count * width * (end - begin));
        const std::int64_t tile_words = dots ? count / 2 * width : count * width;
        if (dots && end * width <= cols) {
            auto* words = reinterpret_cast<std::uint32_t*>(tiles);
            constexpr std::int64_t step = 8;  // pairs at a time, so that a row is read along
            for (std::int64_t i = 0; i < count / 2; i += step) {
                for (std::int64_t t = begin; t < end; ++t) {
                    kernels_.dots->interleave_columns(table.codes + ((first + 2 * i) * cols + t * width) * 2,
                                                      cols, std::min(step, count / 2 - i),
                                                      words + (t - begin) * tile_words + i * width);
                }
            }
        } else {
            for (std::int64_t t = begin; t < end; ++t) {
                const std::int64_t valid = std::min(width, cols - t * width);
                float row[kTileRows];
                for (std::int64_t i = 0; i < count; ++i) {
                    load_part(table, first + i, t * width, valid, row);
                    std::fill(row + valid, row + width, 0.0f);
                    if (!dots) {
                        std::copy_n(row, width, tiles + i * width);
                        continue;
                    }
                    auto* halves =
                        reinterpret_cast<std::uint16_t*>(tiles + (t - begin) * tile_words + i / 2 * width) +
                        i % 2;
                    for (std::int64_t c = 0; c < width; ++c) halves[2 * c] = f32_to_bf16(row[c]);
                }
            }
        }
        float* c = thread_scratch(2, std::max<std::int64_t>(kMaxPanelRows, kernels_.plain->rows) * width);
        for (std::int64_t t = begin; t < end; ++t) {
            const std::int64_t valid = std::min(width, cols - t * width);
            const float* tile = tiles + (t - begin) * tile_words;
            for (std::int64_t panel = 0; panel < p.panels(); ++panel) {
                const std::int64_t row = p.first_row(panel);
                const std::int64_t rows = p.first_row(panel + 1) - row;
                float* to = out + row * cols + t * width;
                if (add) {
                    for (std::int64_t i = 0; i < rows; ++i) std::copy_n(to + i * cols, valid, c + i * width);
                }
                if (dots) {
                    kernels_.dots->bf16(static_cast<int>(rows), count / 2, p.pairs(panel),
                                        reinterpret_cast<const std::uint32_t*>(tile), c, width, add);
                } else {
                    kernels_.plain->tile(count, p.f32(panel), tile, width, c, width, add);
                }
                for (std::int64_t i = 0; i < rows; ++i) std::copy_n(c + i * width, valid, to + i * cols);
            }
        }
    });
}

}  // namespace dgemma::backend::cpu
