// A pool of threads that share the items of one loop at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace dgemma {

// Runs loops over independent items. Which thread takes which items is not fixed, so an item's result must
// depend on the item alone; then results do not depend on the number of threads.
class ThreadPool {
  public:
    // threads: how many work on a loop, the caller included; at least 1. Where the system makes fewer, the
    // pool works with those: threads() says how many.
    // pin: each stays on a physical core of its own, as far as there are so many; the calling thread from its
    // first loop on.
    explicit ThreadPool(int threads, bool pin = false);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    [[nodiscard]] int threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Calls body(begin, end) for disjoint ranges that cover [0, items), at most `grain` items each, and
    // returns when all are done. One loop at a time: not to be called from within a body. What a body throws
    // is thrown here, when no other runs any more; ranges not begun by then are left out.
    void parallel_for(std::int64_t items, std::int64_t grain,
                      const std::function<void(std::int64_t begin, std::int64_t end)>& body);

    // Whether the system makes that many threads now.
    static bool can_make(int threads);

    // Physical cores this process may use (hyper-threads counted once), at least 1.
    static int default_threads();

  private:
    struct Loop;
    void work(std::size_t place);
    static void share(Loop& loop);

    std::vector<std::thread> workers_;
    std::mutex mutex_;
    std::condition_variable wake_, idle_;
    Loop* loop_ = nullptr;
    std::atomic<std::uint64_t> generation_ = 0;  // written under the mutex, as the two below
    std::atomic<int> busy_ = 0;
    std::atomic<bool> stop_ = false;
    std::vector<int> cores_;  // to stay on: one logical processor of each; none: wherever the system likes
    int patience_ = 0;        // rounds of looking before a thread goes to sleep
};

}  // namespace dgemma
