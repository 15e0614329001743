// bf16 matrix products on Hopper: the copy engine fills a ring of tiles, two warpgroups multiply. Rows of x
// are the 64-high side of the matrix instruction, outputs its other side.
//
// An output's sum runs over k in ascending steps of 16 inside each part of k, and over the parts in order,
// whether parts are spread over blocks or follow each other in one: the bits do not depend on the number of
// rows.
#include "backend/cuda/device.cuh"
#include "backend/cuda/kernels.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90.cuh"

namespace dgemma::backend::cuda {

namespace {

constexpr int tile_rows = 128;  // of x; 64 for each of the two multiplying warpgroups
constexpr int depth = 64;       // of one stage in k
constexpr int threads = 384;    // one warpgroup copies, two multiply
constexpr int most_weights = 3;

enum class Form : std::uint8_t {
    rounded,  // out [rows, outs] in bf16
    gated,    // out [rows, outs] = rb(rb(gelu(gate)) * up): half of a tile's columns are gate, half up
    parts,    // f32 sums [parts, rows, outs]
};

struct Product {
    CUtensorMap x;
    CUtensorMap weight[most_weights];  // gated: gate and up
    void* out[most_weights];
    int outs[most_weights];
    int first_tile[most_weights + 1];  // column tiles of the weights before; gated has one list of tiles
    int rows;
    int row_tiles;
    int steps;       // of k in all
    int part_steps;  // of one part
    int spread;      // parts that are items of their own; 1: each item runs through all parts
};

template <int Columns, int Stages>
struct __align__(1024) Ring {
    bf16 x[Stages][tile_rows * depth];
    bf16 weight[Stages][Columns * depth];
    std::uint64_t full[Stages], empty[Stages];
};

template <int Columns>
constexpr int stages_of() {
    return Columns == 256 ? 4 : Columns == 192 ? 5 : Columns == 128 ? 6 : 8;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// What an item is: its part of k, its weight, its columns and its rows.
template <Form Kind, int Columns>
struct Item {
    __device__ Item(const Product& p, int item) {
        row = item % p.row_tiles * tile_rows;
        item /= p.row_tiles;
        const int tiles = p.first_tile[most_weights];
        const int tile = item % tiles;
        which = 0;
        while (which + 1 < most_weights && tile >= p.first_tile[which + 1]) ++which;
        column = (tile - p.first_tile[which]) * (Kind == Form::gated ? Columns / 2 : Columns);
        part = item / tiles;
        first_step = p.spread > 1 ? part * p.part_steps : 0;
        end_step = p.spread > 1 ? min(p.steps, first_step + p.part_steps) : p.steps;
    }
    int row, column, which, part, first_step, end_step;
};

template <Form Kind, int Columns, bool ByRows, bool Serial>
__device__ void multiply_rows(const Product& p, Ring<Columns, stages_of<Columns>()>& ring, int items) {
    constexpr int stages = stages_of<Columns>();
    const int group = static_cast<int>(threadIdx.x) / 128 - 1;  // of the two that multiply
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const auto release = [&](int stage) {
        if (lane == 0) barrier_arrive(&ring.empty[stage]);
    };
    int stage = 0, phase = 0;
    for (int i = static_cast<int>(blockIdx.x); i < items; i += static_cast<int>(gridDim.x)) {
        const Item<Kind, Columns> item(p, i);
        float sums[Columns / 2];
        float total[Serial ? Columns / 2 : 1];
        if (Serial) {
#pragma unroll
            for (float& x : total) x = 0;
        }
        if (item.first_step >= item.end_step) {
#pragma unroll
            for (float& x : sums) x = 0;
        }
        int previous = -1;
        int in_part = 0;
        for (int step = item.first_step; step < item.end_step; ++step) {
            barrier_wait(&ring.full[stage], phase);
            const std::uint64_t a = tile_descriptor(ring.x[stage] + group * 64 * depth);
            const std::uint64_t b = tile_descriptor(ring.weight[stage], ByRows ? 64 * depth * 2 : 16);
            warpgroup_begin();
#pragma unroll
            for (int k = 0; k < depth / 16; ++k) {
                WarpgroupMultiply<Columns, ByRows>::run(sums, a + 2 * k, b + (ByRows ? 128 : 2) * k,
                                                        in_part > 0 || k > 0);
            }
            warpgroup_commit();
            if (previous >= 0) {
                warpgroup_wait<1>();
                release(previous);
            }
            previous = stage;
            if (++stage == stages) stage = 0, phase ^= 1;
            ++in_part;
            if (Serial && (in_part == p.part_steps || step + 1 == item.end_step)) {
                warpgroup_wait<0>();
                hold(sums);
                release(previous);
                previous = -1;
                in_part = 0;
#pragma unroll
                for (int c = 0; c < Columns / 2; ++c) total[c] += sums[c];
            }
        }
        warpgroup_wait<0>();
        if (previous >= 0) release(previous);
        hold(sums);
        if constexpr (Serial) {
#pragma unroll
            for (int c = 0; c < Columns / 2; ++c) sums[c] = total[c];
        }

        const int outs = p.outs[Kind == Form::gated ? 0 : item.which];
        void* out = p.out[Kind == Form::gated ? 0 : item.which];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = item.row + group * 64 + warp * 16 + 8 * h + lane / 4;
            if (row >= p.rows) continue;
            const std::int64_t at = static_cast<std::int64_t>(row) * outs;
            constexpr int blocks = Columns / 8 / (Kind == Form::gated ? 2 : 1);
#pragma unroll
            for (int j = 0; j < blocks; ++j) {
                const int column = item.column + 8 * j + lane % 4 * 2;
                if (column >= outs) continue;
                float low = sums[4 * j + 2 * h], high = sums[4 * j + 2 * h + 1];
                if (Kind == Form::parts) {
                    float* to =
                        static_cast<float*>(out) + static_cast<std::int64_t>(item.part) * p.rows * outs + at;
                    *reinterpret_cast<float2*>(to + column) = make_float2(low, high);
                    continue;
                }
                if (Kind == Form::gated) {
                    const int up = 4 * (j + blocks) + 2 * h;
                    low = rounded<bf16>(gelu(rounded<bf16>(low))) * rounded<bf16>(sums[up % (Columns / 2)]);
                    high = rounded<bf16>(gelu(rounded<bf16>(high))) *
                           rounded<bf16>(sums[(up + 1) % (Columns / 2)]);
                }
                *reinterpret_cast<std::uint32_t*>(static_cast<bf16*>(out) + at + column) = pack2(low, high);
            }
        }
    }
}

template <Form Kind, int Columns, bool ByRows>
__device__ void copy_tiles(const Product& p, Ring<Columns, stages_of<Columns>()>& ring, int items) {
    constexpr int stages = stages_of<Columns>();
    int stage = 0, phase = 0;
    for (int i = static_cast<int>(blockIdx.x); i < items; i += static_cast<int>(gridDim.x)) {
        const Item<Kind, Columns> item(p, i);
        for (int step = item.first_step; step < item.end_step; ++step) {
            barrier_wait(&ring.empty[stage], phase ^ 1);
            std::uint64_t* full = &ring.full[stage];
            barrier_expect(full, (tile_rows + Columns) * depth * 2);
            const int k = step * depth;
            copy_box(ring.x[stage], p.x, k, item.row, full);
            bf16* to = ring.weight[stage];
            if (ByRows) {
#pragma unroll
                for (int n = 0; n < Columns; n += 64)
                    copy_box(to + n * depth, p.weight[0], item.column + n, k, full);
            } else if (Kind == Form::gated) {
                copy_box(to, p.weight[0], k, item.column, full);
                copy_box(to + Columns / 2 * depth, p.weight[1], k, item.column, full);
            } else {
                copy_box(to, p.weight[item.which], k, item.column, full);
            }
            if (++stage == stages) stage = 0, phase ^= 1;
        }
    }
}

#endif

template <Form Kind, int Columns, bool ByRows, bool Serial>
__global__ void __launch_bounds__(threads, 1) sm90_multiply_kernel(const __grid_constant__ Product p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    extern __shared__ std::uint8_t shared[];
    using Tiles = Ring<Columns, stages_of<Columns>()>;
    Tiles& ring = *reinterpret_cast<Tiles*>(shared + padding_to_1024(shared));
    if (threadIdx.x == 0) {
        for (int s = 0; s < stages_of<Columns>(); ++s) {
            barrier_init(&ring.full[s], 1);
            barrier_init(&ring.empty[s], 8);  // a lane of every multiplying warp
        }
        barrier_init_done();
    }
    begin_kernel();
    __syncthreads();
    const int items = p.row_tiles * p.first_tile[most_weights] * p.spread;
    if (threadIdx.x < 128) {
        give_registers<40>();
        if (threadIdx.x == 0) copy_tiles<Kind, Columns, ByRows>(p, ring, items);
    } else {
        take_registers<232>();
        multiply_rows<Kind, Columns, ByRows, Serial>(p, ring, items);
    }
#endif
}

template <Form Kind, int Columns, bool ByRows, bool Serial>
void run_product(Context& c, const Product& p) {
    auto* kernel = sm90_multiply_kernel<Kind, Columns, ByRows, Serial>;
    constexpr int bytes = static_cast<int>(sizeof(Ring<Columns, stages_of<Columns>()>)) + 1024;
    c.check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
            "a matrix product");
    if (c.failed()) return;
    const int items = p.row_tiles * p.first_tile[most_weights] * p.spread;
    launch(c, "a matrix product", kernel, static_cast<unsigned>(std::min(items, c.multiprocessors())),
           threads, bytes, p);
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

// How many columns a tile has: wide ones where there are many, else so that the blocks of one round are busy.
int columns_for(std::int64_t width, int row_tiles, int multiprocessors) {
    if (width >= 32768) return 256;
    const int narrow = tiles(width, 128) * row_tiles;
    return narrow > multiprocessors && tiles(width, 192) * row_tiles <= multiprocessors ? 192 : 128;
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
    for (int i = 0; i < most_weights; ++i) {
        p.first_tile[i + 1] = p.first_tile[i];
        if (i >= count) continue;
        p.first_tile[i + 1] += tiles(weights[i].outs, columns);
        p.weight[i] = tensor_map(c, weights[i].data, weights[i].outs, weights[i].ins, columns);
        p.out[i] = outs[i];
        p.outs[i] = static_cast<int>(weights[i].outs);
    }
    if (parts == 1) {
        columns == 256   ? run_product<Form::rounded, 256, false, false>(c, p)
        : columns == 192 ? run_product<Form::rounded, 192, false, false>(c, p)
                         : run_product<Form::rounded, 128, false, false>(c, p);
        return 1;
    }
    if (count > 1 || p.row_tiles > 4) {
        run_product<Form::rounded, 128, false, true>(c, p);
        return 1;
    }
    float* to = c.scratch<float>(Scratch::partials, parts * rows * width);
    p.out[0] = to;
    p.spread = static_cast<int>(parts);
    run_product<Form::parts, 128, false, false>(c, p);
    if (sums == nullptr) {
        add_parts(c, Element::bf16, to, parts, rows * width, outs[0]);
        return 1;
    }
    *sums = to;
    return parts;
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
    by_rows ? run_product<Form::parts, 256, true, false>(c, p)
            : run_product<Form::parts, 128, false, false>(c, p);
}

bool hopper_kernels_compiled() {
    // A build without code for 9.0a still has these functions, empty; ask one of them.
    cudaFuncAttributes attributes{};
    if (cudaFuncGetAttributes(&attributes, sm90_multiply_kernel<Form::gated, 64, false, false>) !=
        cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    return attributes.binaryVersion == 90;
}

}  // namespace dgemma::backend::cuda
