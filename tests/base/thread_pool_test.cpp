#include "base/thread_pool.h"

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <new>
#include <set>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

namespace dgemma {
namespace {

// In a thread of its own: a pinned pool keeps the thread that calls it on a core, too.
template <class F>
void apart(F f) {
    std::thread(f).join();
}

TEST(ThreadPool, EveryItemOnceWhateverTheThreadsAndTheGrain) {
    for (const int threads : {1, 2, 3, 16}) {
        for (const bool pin : {false, true}) {
            apart([&] {
                ThreadPool pool(threads, pin);
                for (const std::int64_t items : {0, 1, 7, 64, 1000}) {
                    for (const std::int64_t grain : {0, 1, 4, 5000}) {
                        std::vector<std::atomic<int>> seen(static_cast<std::size_t>(items));
                        pool.parallel_for(items, grain, [&](std::int64_t begin, std::int64_t end) {
                            for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
                        });
                        for (const auto& count : seen) EXPECT_EQ(count, 1);
                    }
                }
            });
        }
    }
}

TEST(ThreadPool, CoversEveryItemOnce) {
    for (const int threads : {1, 2, 5}) {
        ThreadPool pool(threads);
        for (int round = 0; round < 200; ++round) {
            std::vector<std::atomic<int>> seen(97);
            pool.parallel_for(97, 1 + round % 7, [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
            });
            for (const auto& count : seen) ASSERT_EQ(count.load(), 1);
        }
    }
}

TEST(ThreadPool, WhatABodyThrowsIsThrownToTheCaller) {
    for (const int threads : {1, 2, 4}) {
        ThreadPool pool(threads);
        for (int round = 0; round < 50; ++round) {
            const auto loop = [&] {
                pool.parallel_for(64, 1, [&](std::int64_t begin, std::int64_t) {
                    if (begin == round) throw std::bad_alloc();
                });
            };
            EXPECT_THROW(loop(), std::bad_alloc) << round;
            std::atomic<int> sum = 0;
            pool.parallel_for(10, 1,
                              [&](std::int64_t begin, std::int64_t) { sum += static_cast<int>(begin); });
            ASSERT_EQ(sum, 45);
        }
    }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void work_in_little_space() {
    rlimit little;
    little.rlim_cur = little.rlim_max = rlim_t{512} << 20;
    setrlimit(RLIMIT_AS, &little);
    if (ThreadPool::can_make(1024)) std::exit(1);
    ThreadPool pool(1024);
    std::atomic<int> sum = 0;
    pool.parallel_for(100, 1, [&](std::int64_t begin, std::int64_t) { sum += static_cast<int>(begin); });
    std::exit(sum == 4950 ? 0 : 2);
}

// A limit on address space leaves no room for so many stacks; the pool does with fewer and says so.
TEST(ThreadPool, DoesWithTheThreadsThereAre) {
    EXPECT_TRUE(ThreadPool::can_make(3));
    EXPECT_EXIT(work_in_little_space(), ::testing::ExitedWithCode(0), "");
}
#endif

TEST(ThreadPool, CountsAtLeastOneCore) { EXPECT_GE(ThreadPool::default_threads(), 1); }

// Loops so short that some threads are still looking for one when the next begins.
TEST(ThreadPool, ManyShortLoops) {
    ThreadPool pool(4);
    std::atomic<std::int64_t> sum = 0;
    for (int loop = 0; loop < 20'000; ++loop) {
        pool.parallel_for(4, 1, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
    }
    EXPECT_EQ(sum, 80'000);
}

TEST(ThreadPool, PinnedThreadsStayOnOneProcessorEach) {
    apart([] {
        const int cores = ThreadPool::default_threads();
        ASSERT_GE(cores, 1);
        ThreadPool pool(cores, true);
        std::mutex mutex;
        std::set<int> processors;
        std::set<std::thread::id> threads;
        const auto look = [&](std::int64_t, std::int64_t) {
            cpu_set_t set;
            CPU_ZERO(&set);
            ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
            EXPECT_EQ(CPU_COUNT(&set), 1);
            const std::lock_guard lock(mutex);
            if (threads.insert(std::this_thread::get_id()).second) {
                EXPECT_TRUE(processors.insert(sched_getcpu()).second);
            }
        };
        // A thread need not get an item of one loop.
        for (int loop = 0; loop < 1000; ++loop) pool.parallel_for(64, 1, look);
        EXPECT_GE(threads.size(), 1u);
    });
    cpu_set_t set;
    CPU_ZERO(&set);
    ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
    EXPECT_EQ(CPU_COUNT(&set) > 1, ThreadPool::default_threads() > 1);
}

}  // namespace
}  // namespace dgemma
