// A few threads that read, render and tokenize requests, so that the thread of the sockets never waits.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/result.h"

namespace dgemma::server {

class WorkerPool {
  public:
    WorkerPool() = default;
    ~WorkerPool();  // finishes what has begun and drops the rest
    WorkerPool(const WorkerPool&) = delete;
    WorkerPool& operator=(const WorkerPool&) = delete;

    // Errors: io, where the system gives no thread.
    Status start(int threads);
    void run(std::function<void()> job);

  private:
    void work();

    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::function<void()>> jobs_;
    bool ends_ = false;
};

}  // namespace dgemma::server
