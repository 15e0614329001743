// bf16 matrix products on Hopper: which tiles, which clusters, how many parts of k.
#include <algorithm>

#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90_product.cuh"

namespace dgemma::backend::cuda {

namespace {

template <Form Kind, int Columns, bool ByRows, bool Serial, bool Clustered = false>
void run_product(Context& c, const Product& p) {
    auto* kernel = sm90_multiply_kernel<Kind, Columns, ByRows, Serial, Clustered>;
    constexpr int bytes = static_cast<int>(sizeof(Ring<Columns, stages_of<Columns>()>)) + 1024;
    c.check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
            "a matrix product");
    if (c.failed()) return;
    constexpr int cluster = Clustered ? 2 : 1;
    const int items = p.row_tiles * p.first_tile[most_weights] * p.spread;
    const int blocks = std::min(items, c.multiprocessors() / cluster * cluster);
    launch_clusters(c, "a matrix product", kernel, static_cast<unsigned>(blocks), threads, bytes,
                    dim3(cluster), p);
}

int tiles(std::int64_t count, int tile) { return static_cast<int>((count + tile - 1) / tile); }

// The frame of a product: rows of x, k, and parts.
Product frame(Context& c, const void* x, std::int64_t rows, std::int64_t ins, std::int64_t parts) {
    Product p{};
    p.x = tensor_map(c, x, rows, ins, tile_rows);
    p.rows = static_cast<int>(rows);
    p.row_tiles = tiles(rows, tile_rows);
    p.steps = tiles(ins, depth);
    p.part_steps = static_cast<int>(part_of(ins, parts)) / depth;
    p.spread = 1;
    return p;
}

void one_list(Product& p, int column_tiles) {
    for (int i = 1; i <= most_weights; ++i) p.first_tile[i] = column_tiles;
}

constexpr std::int64_t always_wide = 32768;  // columns of a weight, as the head has

// How many columns a tile has: those whose rounds take the least time, and of such the widest, which take
// the least from the second-level cache.
int columns_for(std::int64_t width, int row_tiles, int multiprocessors) {
    int best = wide_columns;
    if (width >= always_wide) return best;
    const auto time = [&](int columns) {
        return tiles(std::int64_t{tiles(width, columns)} * row_tiles, multiprocessors) * columns;
    };
    for (const int columns : {192, 128}) {
        if (time(columns) < time(best)) best = columns;
    }
    return best;
}

void run_wide(Context& c, const Product& p) {
    p.row_tiles % 2 == 0 ? run_product<Form::rounded, wide_columns, false, false, true>(c, p)
                         : run_product<Form::rounded, wide_columns, false, false>(c, p);
}

}  // namespace

bool sm90_fits(const void* x, const DeviceMatrix& weight) {
    const auto aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
    return weight.type == Element::bf16 && aligned(x) && aligned(weight.data) && weight.ins % 8 == 0 &&
           weight.outs % 8 == 0;
}

std::int64_t sm90_multiply(Context& c, const void* x, std::int64_t rows, const DeviceMatrix* weights,
                           void* const* outs, int count, float** sums) {
    if (c.failed() || rows == 0) return 1;
    std::int64_t width = 0;
    for (int i = 0; i < count; ++i) width += weights[i].outs;
    const std::int64_t parts = parts_for(width, weights[0].ins);
    Product p = frame(c, x, rows, weights[0].ins, parts);
    const int columns = parts > 1 ? 128 : columns_for(width, p.row_tiles, c.multiprocessors());
    const bool spread = parts > 1 && count == 1 && p.row_tiles <= 4;
    p.spread = spread ? static_cast<int>(parts) : 1;
    const bool all_parts = parts > 1 && !spread;
    const bool pairs = p.row_tiles % 2 == 0 && (columns == wide_columns || (all_parts && p.row_tiles >= 16));
    for (int i = 0; i < most_weights; ++i) {
        p.first_tile[i + 1] = p.first_tile[i];
        if (i >= count) continue;
        p.first_tile[i + 1] += tiles(weights[i].outs, columns);
        p.weight[i] =
            tensor_map(c, weights[i].data, weights[i].outs, weights[i].ins, pairs ? columns / 2 : columns);
        p.out[i] = outs[i];
        p.outs[i] = static_cast<int>(weights[i].outs);
    }
    if (!spread) {
        all_parts&& pairs         ? run_product<Form::rounded, 128, false, true, true>(c, p)
        : all_parts               ? run_product<Form::rounded, 128, false, true>(c, p)
        : columns == wide_columns ? run_wide(c, p)
        : columns == 192          ? run_product<Form::rounded, 192, false, false>(c, p)
                                  : run_product<Form::rounded, 128, false, false>(c, p);
        return 1;
    }
    float* to = c.scratch<float>(Scratch::partials, parts * rows * width);
    p.out[0] = to;
    run_product<Form::parts, 128, false, false>(c, p);
    if (sums == nullptr) {
        add_parts(c, Element::bf16, to, parts, rows * width, outs[0]);
        return 1;
    }
    *sums = to;
    return parts;
}

bool sm90_multiplies_blocks(const DeviceMatrix& weight, std::int64_t block_rows) {
    return weight.outs >= always_wide && block_rows % tile_rows == 0;
}

void sm90_multiply_blocks(Context& c, const void* x, std::int64_t block_rows, const DeviceMatrix& weight,
                          std::span<void* const> outs) {
    if (c.failed()) return;
    Product p = frame(c, x, block_rows * static_cast<std::int64_t>(outs.size()), weight.ins, 1);
    p.weight[0] = tensor_map(c, weight.data, weight.outs, weight.ins,
                             p.row_tiles % 2 == 0 ? wide_columns / 2 : wide_columns);
    p.outs[0] = static_cast<int>(weight.outs);
    p.block_rows = static_cast<int>(block_rows);
    std::copy(outs.begin(), outs.end(), p.blocks);
    one_list(p, tiles(weight.outs, wide_columns));
    run_wide(c, p);
}

void sm90_multiply_gated(Context& c, const void* x, std::int64_t rows, const DeviceMatrix& gate,
                         const DeviceMatrix& up, void* out) {
    if (c.failed() || rows == 0) return;
    const bool many = rows > 1024;
    const int columns = many ? 128 : 64;
    Product p = frame(c, x, rows, gate.ins, 1);
    p.weight[0] = tensor_map(c, gate.data, gate.outs, gate.ins, columns / 2);
    p.weight[1] = tensor_map(c, up.data, up.outs, up.ins, columns / 2);
    p.out[0] = out;
    p.outs[0] = static_cast<int>(gate.outs);
    one_list(p, tiles(gate.outs, columns / 2));
    many ? run_product<Form::gated, 128, false, false>(c, p)
         : run_product<Form::gated, 64, false, false>(c, p);
}

void sm90_multiply_parts(Context& c, const void* x, std::int64_t rows, const DeviceMatrix& weight,
                         bool by_rows, std::int64_t parts, float* sums) {
    if (c.failed() || rows == 0) return;
    const std::int64_t ins = by_rows ? weight.outs : weight.ins;
    const std::int64_t outs = by_rows ? weight.ins : weight.outs;
    Product p = frame(c, x, rows, ins, parts);
    p.weight[0] = tensor_map(c, weight.data, weight.outs, weight.ins, by_rows ? 64 : 128);
    p.out[0] = sums;
    p.outs[0] = static_cast<int>(outs);
    p.spread = static_cast<int>(parts);
    one_list(p, tiles(outs, by_rows ? 256 : 128));
    !by_rows               ? run_product<Form::parts, 128, false, false>(c, p)
    : p.row_tiles % 2 == 0 ? run_product<Form::parts, 256, true, false, true>(c, p)
                           : run_product<Form::parts, 256, true, false>(c, p);
}

bool hopper_kernels_compiled() {
    // A build without code for 9.0a still has these functions, empty; ask one of them.
    cudaFuncAttributes attributes{};
    if (cudaFuncGetAttributes(&attributes, sm90_multiply_kernel<Form::gated, 64, false, false, false>) !=
        cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    return attributes.binaryVersion == 90;
}

}  // namespace dgemma::backend::cuda
