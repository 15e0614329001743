// Matrix products of E4M3 on Hopper: which tiles.
#include <algorithm>

#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90_product.cuh"

namespace dgemma::backend::cuda {

namespace {

template <int Columns>
void run_product(Context& c, const Product& p) {
    auto* kernel = sm90_multiply_kernel<Form::rounded, Columns, false, true, false, true>;
    constexpr int bytes = static_cast<int>(sizeof(Ring<Columns, stages_of<Columns>()>)) + 1024;
    c.check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
            "a matrix product");
    if (c.failed()) return;
    const int blocks = std::min(p.row_tiles * p.first_tile[most_weights], c.multiprocessors());
    launch(c, "a matrix product", kernel, static_cast<unsigned>(blocks), threads, bytes, p);
}

int tiles(std::int64_t count, int tile) { return static_cast<int>((count + tile - 1) / tile); }

// How many columns a tile has so that the blocks of one round are busy: no output's bits depend on it.
int columns_for(std::int64_t width, int row_tiles, int multiprocessors) {
    for (const int columns : {64, 128, 192}) {
        if (tiles(width, columns) * row_tiles <= multiprocessors) return columns;
    }
    return 128;
}

}  // namespace

void sm90_e4m3_multiply(Context& c, const E4m3Rows& x, std::int64_t rows, const E4m3Matrix* weights,
                        void* const* outs, int count) {
    if (c.failed() || rows == 0) return;
    const std::int64_t ins = weights[0].ins;
    std::int64_t width = 0;
    for (int i = 0; i < count; ++i) width += weights[i].outs;
    Product p{};
    p.x = tensor_map(c, x.codes, rows, ins / 2, tile_rows);
    p.x_scales = x.scales;
    p.rows = static_cast<int>(rows);
    p.row_tiles = tiles(rows, tile_rows);
    p.steps = p.part_steps = tiles(ins, 2 * depth);
    p.spread = 1;
    const int columns = columns_for(width, p.row_tiles, c.multiprocessors());
    for (int i = 0; i < most_weights; ++i) {
        p.first_tile[i + 1] = p.first_tile[i];
        if (i >= count) continue;
        p.first_tile[i + 1] += tiles(weights[i].outs, columns);
        p.weight[i] = tensor_map(c, weights[i].codes, weights[i].outs, ins / 2, columns);
        p.scales[i] = weights[i].scales;
        p.out[i] = outs[i];
        p.outs[i] = static_cast<int>(weights[i].outs);
    }
    columns == 64 ? run_product<64>(c, p) : columns == 128 ? run_product<128>(c, p) : run_product<192>(c, p);
}

}  // namespace dgemma::backend::cuda
