#include "thread_pool.hpp"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <exception>

namespace hps {

// Never deleted: its threads wait until the process ends, and one from before a fork() has none
// that could be joined.
ThreadPool& ThreadPool::of_this_process() {
    static std::atomic<ThreadPool*> current{nullptr};
    const pid_t process = getpid();
    ThreadPool* pool = current.load(std::memory_order_acquire);
    while (pool == nullptr || pool->process_ != process) {
        auto fresh = std::unique_ptr<ThreadPool>(new ThreadPool(process));
        if (current.compare_exchange_strong(pool, fresh.get())) pool = fresh.release();
    }
    return *pool;
}

void ThreadPool::work_off(PoolThread& thread, int worker) {
    for (;;) {
        wait_while<Call*>(thread.call, nullptr);
        Call* call = thread.call.load(std::memory_order_acquire);
        call->work(worker, call->workers);
        thread.call.store(nullptr, std::memory_order_seq_cst);
        thread.call.notify_one();
    }
}

// How many threads there are to work with, the caller's included.
int ThreadPool::start_threads(int wanted) {
    sigset_t all, before;  // signals are for the threads that Python knows
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        threads_.reserve(static_cast<size_t>(wanted));
        for (int worker = static_cast<int>(threads_.size()) + 1; worker < wanted; ++worker) {
            auto thread = std::make_unique<PoolThread>();
            thread->thread = std::thread(work_off, std::ref(*thread), worker);
            threads_.push_back(std::move(thread));
        }
    } catch (const std::exception&) {
        // The system has no more threads: those that there are do the work of the others.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return std::min(wanted, static_cast<int>(threads_.size()) + 1);
}

void ThreadPool::run(int wanted, const Work& work) {
    const std::unique_lock lock(busy_, std::try_to_lock);
    Call call{work, Workers(lock.owns_lock() ? start_threads(wanted) : 1)};
    const size_t num_helpers = static_cast<size_t>(call.workers.num_workers) - 1;
    for (size_t i = 0; i < num_helpers; ++i) {
        threads_[i]->call.store(&call, std::memory_order_seq_cst);
        threads_[i]->call.notify_one();
    }
    work(0, call.workers);
    for (size_t i = 0; i < num_helpers; ++i) wait_while<Call*>(threads_[i]->call, &call);
}

}  // namespace hps
