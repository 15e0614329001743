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

void Panels::layout(std::int64_t rows, std::int64_t k) {
    rows_ = rows;
    k_ = k;
    const std::int64_t height = operand_ == Operand::f32    ? kernels_.plain->rows
                                : operand_ == Operand::bf16 ? kernels_.dots->bf16_rows
                                                            : kernels_.dots->byte_rows;
    panels_ = (rows + height - 1) / height;
    if (operand_ == Operand::f32) {
        float* values = values_.floats(panels_ * height * k);
        // The rows that fill up the last panel; the others are written by pack_row.
        for (std::int64_t r = rows; r < panels_ * height; ++r) {
            float* to = values + (panels_ - 1) * height * k + r % height;
            for (std::int64_t c = 0; c < k; ++c) to[c * height] = 0.0f;
        }
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

void Panels::pack_row(std::int64_t r, const float* x) {
    if (operand_ == Operand::f32) {
        const std::int64_t height = kernels_.plain->rows;
        float* to = values_.data() + r / height * height * k_ + r % height;
        for (std::int64_t c = 0; c < k_; ++c) to[c * height] = x[c];
        return;
    }
    // The panel of row r: the last one that begins at or before it.
    std::int64_t panel = r * panels_ / rows_;
    while (first_row(panel + 1) <= r) ++panel;
    const std::int64_t first = first_row(panel);
    const std::int64_t height = first_row(panel + 1) - first;
    if (operand_ == Operand::bf16) {
        kernels_.dots->round_row(
            x, k_, height, r - first,
            reinterpret_cast<std::uint32_t*>(values_.data()) + first * (k_ / 2) * kernels_.dots->pair_words);
    } else {
        const std::int64_t blocks = (k_ + kByteBlock - 1) / kByteBlock;
        kernels_.dots->quantise_row(
            x, k_, height, r - first, reinterpret_cast<std::int32_t*>(values_.data()) + first * (k_ / 4),
            scales_.data() + first * blocks, sums_.data() + first * (k_ / kAffineGroup));
    }
}

// ---------------------------------------------------------------------------------------------- products

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
    const std::int64_t group =
        dots ? 8 : 1;  // tiles that a thread takes together: a longer piece of each row
    pool_.parallel_for((cols + width - 1) / width, group, [&](std::int64_t begin, std::int64_t end) {
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

void rotate_row(float* x, std::int64_t cols, std::int64_t head_dim, const float* frequencies,
                std::int32_t position, bool bf16) {
    const std::int64_t half = head_dim / 2;
    float* c = thread_scratch(0, head_dim);
    float* s = c + half;
    for (std::int64_t d = 0; d < half; ++d) {
        const float angle = static_cast<float>(position) * frequencies[d];
        c[d] = rounded(std::cos(angle), bf16);
        s[d] = rounded(std::sin(angle), bf16);
    }
    for (float* head = x; head < x + cols; head += head_dim) {
        for (std::int64_t d = 0; d < half; ++d) {
            const float a = head[d];
            const float b = head[d + half];
            head[d] = rounded(rounded(a * c[d], bf16) + rounded(-b * s[d], bf16), bf16);
            head[d + half] = rounded(rounded(b * c[d], bf16) + rounded(a * s[d], bf16), bf16);
        }
    }
}

}  // namespace dgemma::backend::cpu
