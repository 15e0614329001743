#include "base/thread_pool.h"

#include <algorithm>
#include <cassert>
#include <exception>
#include <fstream>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include <sched.h>

namespace dgemma {

struct ThreadPool::Loop {
    std::int64_t items, grain;
    const std::function<void(std::int64_t, std::int64_t)>* body;
    std::atomic<std::int64_t> next{0};
    std::mutex mutex;
    std::exception_ptr thrown;  // by the first body that did
};

namespace {

// A pass of a small model is hundreds of loops of some microseconds: as long as the next one may be about to
// come, looking for it is cheaper than being woken. Some tens of microseconds of it.
constexpr int kPatience = 2000;

template <class Condition>
void look_for(int rounds, Condition condition) {
    for (int i = 0; i < rounds && !condition(); ++i) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
}

// The first logical processor of each physical core that this process may use; none where nobody says.
std::vector<int> core_processors() {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return {};
    std::set<std::pair<int, int>> cores;  // (package, core)
    std::vector<int> first;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (!CPU_ISSET(cpu, &allowed)) continue;
        const std::string topology = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
        int package = 0;
        int core = cpu;
        std::ifstream(topology + "physical_package_id") >> package;
        if (!(std::ifstream(topology + "core_id") >> core)) core = cpu;
        if (cores.emplace(package, core).second) first.push_back(cpu);
    }
    return first;
}

// Keeps the calling thread on the core of its place. Where the system does not let it, it computes elsewhere.
void stay_on(const std::vector<int>& cores, std::size_t place) {
    if (place >= cores.size()) return;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cores[place], &one);
    sched_setaffinity(0, sizeof(one), &one);
}

}  // namespace

ThreadPool::ThreadPool(int threads, bool pin) {
    assert(threads >= 1);
    if (pin) cores_ = core_processors();
    // Threads that have to share a processor must not keep it from each other.
    if (threads <= static_cast<int>(std::thread::hardware_concurrency())) patience_ = kPatience;
    try {
        for (int i = 1; i < threads; ++i)
            workers_.emplace_back([this, i] { work(static_cast<std::size_t>(i)); });
    } catch (const std::system_error&) {
        // A limit on processes or memory; those there are do the work, and results do not depend on their
        // number.
    }
}

bool ThreadPool::can_make(int threads) { return ThreadPool(threads).threads() == threads; }

ThreadPool::~ThreadPool() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : workers_) t.join();
}

void ThreadPool::share(Loop& loop) {
    for (;;) {
        const std::int64_t begin = loop.next.fetch_add(loop.grain, std::memory_order_relaxed);
        if (begin >= loop.items) return;
        try {
            (*loop.body)(begin, std::min(begin + loop.grain, loop.items));
        } catch (...) {
            // Told on the calling thread, once nobody works on the loop any more.
            const std::lock_guard lock(loop.mutex);
            if (!loop.thrown) loop.thrown = std::current_exception();
            loop.next.store(loop.items, std::memory_order_relaxed);
        }
    }
}

void ThreadPool::work(std::size_t place) {
    stay_on(cores_, place);
    std::uint64_t seen = 0;
    for (;;) {
        look_for(patience_, [&] { return stop_ || generation_ != seen; });
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || (loop_ != nullptr && generation_ != seen); });
        if (stop_) return;
        seen = generation_;
        Loop& loop = *loop_;
        ++busy_;
        lock.unlock();
        share(loop);
        lock.lock();
        if (--busy_ == 0) idle_.notify_one();
    }
}

void ThreadPool::parallel_for(std::int64_t items, std::int64_t grain,
                              const std::function<void(std::int64_t, std::int64_t)>& body) {
    if (items <= 0) return;
    thread_local const ThreadPool* at_home = nullptr;  // the pool whose core this thread is on
    if (!cores_.empty() && at_home != this) {
        stay_on(cores_, 0);
        at_home = this;
    }
    grain = std::max<std::int64_t>(grain, 1);
    if (workers_.empty() || items <= grain) {
        for (std::int64_t i = 0; i < items; i += grain) body(i, std::min(i + grain, items));
        return;
    }
    Loop loop{.items = items, .grain = grain, .body = &body, .next = 0, .mutex = {}, .thrown = {}};
    {
        const std::lock_guard lock(mutex_);
        assert(loop_ == nullptr && "one loop at a time");
        loop_ = &loop;
        ++generation_;
    }
    wake_.notify_all();
    share(loop);
    {
        const std::lock_guard lock(mutex_);
        loop_ = nullptr;  // a worker that wakes from here on finds nothing; those inside are waited for
    }
    look_for(patience_, [&] { return busy_ == 0; });
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [&] { return busy_ == 0; });
    lock.unlock();
    if (loop.thrown) std::rethrow_exception(loop.thrown);
}

int ThreadPool::default_threads() {
    const std::vector<int> cores = core_processors();
    return cores.empty() ? std::max(1, static_cast<int>(std::thread::hardware_concurrency()))
                         : static_cast<int>(cores.size());
}

}  // namespace dgemma
