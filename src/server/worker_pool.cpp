#include "server/worker_pool.h"

#include <system_error>
#include <utility>

namespace dgemma::server {

WorkerPool::~WorkerPool() {
    {
        const std::lock_guard lock(mutex_);
        ends_ = true;
        jobs_.clear();
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

Status WorkerPool::start(int threads) {
    try {
        for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
        return Error{ErrorKind::io,
                     "The system gives no more threads; raise its limit of processes (ulimit -u)."};
    }
    return {};
}

void WorkerPool::run(std::function<void()> job) {
    {
        const std::lock_guard lock(mutex_);
        jobs_.push_back(std::move(job));
    }
    changed_.notify_one();
}

void WorkerPool::work() {
    for (;;) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
        if (ends_) return;
        const std::function<void()> job = std::move(jobs_.front());
        jobs_.pop_front();
        lock.unlock();
        job();
    }
}

}  // namespace dgemma::server
