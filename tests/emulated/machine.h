// A machine that runs a Hopper kernel's source without a card: to find out whether its indices, layouts and
// barriers are right. It knows nothing of time, of memory orders or of how exact a matrix unit is.
//
// Every thread of a grid is a context of its own, and they run in turns, warps in a random order. What the
// copy engine and cp.async bring comes at some random later time; a matrix product is done when somebody
// waits for it, and whoever looks at its sums before finds NaN. Shared memory is full of NaN at first. The
// headers of this folder stand in the place of those of src/backend/cuda that are made of Hopper's
// instructions.
//
// Blocks may come in clusters. An address in the shared memory of one of them has its rank and one above
// `rank_bit`; without that it is of the thread's own block. No other block may be reached once all its
// threads are done.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ucontext.h>

namespace dgemma::emulated {

constexpr std::size_t shared_bytes = std::size_t{1} << 18, stack_bytes = std::size_t{128} << 10;
constexpr unsigned block_registers = 1 << 16;
constexpr int rank_bit = 20;

struct Barrier {  // an mbarrier
    int count = 0, pending = 0;
    std::int64_t bytes = 0;
    int phase = 0;
};
struct Meeting {  // of threads that wait for each other
    int arrived = 0;
    std::int64_t round = 0;
};
struct Warp {
    Meeting meeting;
    std::uint32_t brought[32] = {};
};
struct Block {
    unsigned number = 0;
    std::uint8_t* memory = nullptr;
    std::vector<Warp> warps;
    std::map<std::uint32_t, Barrier> barriers;
    std::map<int, Meeting> meetings;
    unsigned left = 0;           // threads that are not done
    int registers = 0;           // that threads gave and nobody took
    std::vector<bool> ordinary;  // of 16 bytes of shared memory: written by an ordinary copy since a fence
};
struct Thread {
    Block* block = nullptr;
    unsigned number = 0;
    bool done = false;
    int registers = 0;
    ucontext_t context{};
    std::vector<char> stack;
    std::vector<std::function<void()>> copies, products;        // not yet committed
    std::vector<std::vector<std::function<void()>>> committed;  // groups of products
};

struct Machine {
    Thread* current = nullptr;
    ucontext_t scheduler{};
    unsigned blocks = 0, threads = 0, cluster = 1;  // cluster: blocks of one
    std::vector<Block> all;
    std::vector<Meeting> clusters;  // all threads of each
    std::int64_t progress = 0;
    bool in_thread = false;
    std::string wrong;  // the first thing that no kernel may do
    std::function<void()> kernel;
    std::vector<std::pair<Thread*, std::function<void()>>> later;
    std::mt19937 chance{1};
};
inline Machine machine;

inline void yield() { swapcontext(&machine.current->context, &machine.scheduler); }
// The thread goes no further, and the grid ends with this message.
inline void fail(const std::string& what) {
    if (!machine.in_thread) throw std::runtime_error(what);
    if (machine.wrong.empty()) machine.wrong = what;
    for (;;) yield();
}
template <class Condition>
void wait_until(Condition condition) {
    while (!condition()) yield();
    ++machine.progress;
}
inline void meet(Meeting& m, int threads) {
    const std::int64_t round = m.round;
    if (++m.arrived == threads) {
        m.arrived = 0, ++m.round, ++machine.progress;
    } else {
        wait_until([&] { return m.round != round; });
    }
}
// What each lane of the warp brings.
inline void exchange(std::uint32_t brought, std::uint32_t (&all)[32]) {
    Warp& warp = machine.current->block->warps[machine.current->number / 32];
    warp.brought[machine.current->number % 32] = brought;
    meet(warp.meeting, 32);
    std::memcpy(all, warp.brought, sizeof all);
    meet(warp.meeting, 32);  // nobody brings anything new before all have seen this
}

// As setmaxnreg does: whoever wants more than others gave waits for it.
inline void set_registers(int count) {
    Thread& own = *machine.current;
    if (count % 8 != 0 || count < 24 || count > 256) fail("so many registers no thread may have");
    wait_until([&] { return own.block->registers >= count - own.registers; });
    own.block->registers -= count - std::exchange(own.registers, count);
}

inline unsigned rank_in_cluster() { return machine.current->block->number % machine.cluster; }
// Whose shared memory an address is of.
inline Block& block_of(std::uint32_t address) {
    Block* own = machine.current->block;
    const std::uint32_t rank = address >> rank_bit;
    if (rank == 0) return *own;
    if (rank > machine.cluster) fail("a block that the cluster does not have");
    Block& other = machine.all[own->number - own->number % machine.cluster + rank - 1];
    if (other.left == 0) fail("a block that has left");
    return other;
}
constexpr std::uint32_t inside_block(std::uint32_t address) { return address & ((1u << rank_bit) - 1); }
inline Barrier& barrier_at(std::uint32_t address) {
    Block& block = block_of(address);
    const auto found = block.barriers.find(inside_block(address));
    if (found == block.barriers.end()) fail("a barrier that was not made");
    return found->second;
}
inline void settle(Barrier& b) {
    if (b.pending == 0 && b.bytes == 0) b.pending = b.count, ++b.phase, ++machine.progress;
}
inline void arrive(std::uint32_t address, int bytes = 0) {
    Barrier& b = barrier_at(address);
    if (b.pending == 0) fail("more arrivals than a barrier has");
    b.bytes += bytes, --b.pending;
    settle(b);
}
inline void land(std::uint32_t address, int bytes) {
    Barrier& b = barrier_at(address);
    b.bytes -= bytes;
    settle(b);
}

inline void run_thread() {
    machine.kernel();
    machine.current->done = true;
    --machine.current->block->left;
    ++machine.progress;
    for (;;) yield();
}

// Throws where a kernel does what none may do, or where nobody goes on. cluster: so many neighbouring blocks.
inline void run_grid(unsigned blocks, unsigned threads, std::function<void()> kernel, unsigned cluster = 1) {
    if (blocks % cluster != 0) throw std::runtime_error("blocks that make no whole clusters");
    machine.blocks = blocks, machine.threads = threads, machine.kernel = std::move(kernel);
    machine.cluster = cluster, machine.clusters.assign(blocks / cluster, {});
    machine.wrong.clear(), machine.later.clear();
    const std::unique_ptr<std::uint8_t, decltype(&std::free)> memory(
        static_cast<std::uint8_t*>(std::aligned_alloc(shared_bytes, blocks * shared_bytes)), &std::free);
    std::memset(memory.get(), 0xFF, blocks * shared_bytes);
    std::vector<Block>& all = machine.all;
    all.clear(), all.resize(blocks);
    std::vector<std::unique_ptr<Thread>> everybody;
    for (unsigned b = 0; b < blocks; ++b) {
        all[b].number = b, all[b].memory = memory.get() + b * shared_bytes, all[b].warps.resize(threads / 32);
        all[b].ordinary.resize(shared_bytes / 16), all[b].left = threads;
        for (unsigned t = 0; t < threads; ++t) {
            auto& thread = *everybody.emplace_back(std::make_unique<Thread>());
            thread.block = &all[b], thread.number = t, thread.stack.resize(stack_bytes);
            thread.registers = static_cast<int>(block_registers / threads / 8 * 8);  // of one block alone
            getcontext(&thread.context);
            thread.context.uc_stack.ss_sp = thread.stack.data();
            thread.context.uc_stack.ss_size = thread.stack.size();
            makecontext(&thread.context, run_thread, 0);
        }
    }
    std::vector<std::size_t> order(everybody.size() / 32);
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (bool left = true; left || !machine.later.empty();) {
        const std::int64_t before = machine.progress;
        for (auto n = 1 + machine.chance() % 40; n > 0 && !machine.later.empty(); --n) {
            std::swap(machine.later[machine.chance() % machine.later.size()], machine.later.back());
            const auto [whose, what] = std::move(machine.later.back());
            machine.later.pop_back();
            machine.current = whose;
            what();
            ++machine.progress;
        }
        left = false;
        std::shuffle(order.begin(), order.end(), machine.chance);
        for (const std::size_t warp : order) {
            for (std::size_t t = 32 * warp; t < 32 * warp + 32; ++t) {
                if (everybody[t]->done) continue;
                left = true;
                machine.current = everybody[t].get();
                machine.in_thread = true;
                swapcontext(&machine.scheduler, &machine.current->context);
                machine.in_thread = false;
            }
        }
        if (!machine.wrong.empty()) throw std::runtime_error(machine.wrong);
        if (left && machine.progress == before) throw std::runtime_error("nobody goes on");
    }
    for (const Block& b : all) {
        for (const auto& [address, barrier] : b.barriers) {
            if (barrier.bytes != 0) throw std::runtime_error("a barrier still waits for bytes");
        }
    }
}

// threadIdx.x and the like.
template <class Value>
struct Number {
    operator unsigned() const { return Value::now(); }  // NOLINT: as the device's own
};
struct ThreadNumber {
    static unsigned now() { return machine.current->number; }
};
struct BlockNumber {
    static unsigned now() { return machine.current->block->number; }
};
struct Blocks {
    static unsigned now() { return machine.blocks; }
};
struct Threads {
    static unsigned now() { return machine.threads; }
};
template <class Value>
struct Index {
    Number<Value> x;
};

template <class T, class From>
T shuffle(T mine, From from) {
    static_assert(sizeof(T) == 4);
    std::uint32_t bits, all[32];
    std::memcpy(&bits, &mine, 4);
    exchange(bits, all);
    std::memcpy(&mine, &all[from(static_cast<int>(machine.current->number % 32))], 4);
    return mine;
}

}  // namespace dgemma::emulated
