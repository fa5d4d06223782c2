// Runs a call's phases on several threads, each phase after the one before it is done, and raises
// the first error in the caller.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <vector>

#include "thread_pool.hpp"

namespace hps {

constexpr int64_t kParallelMinKeys = 16384;  // below this one thread is faster

// Every phase is called as phase(share) for all shares below `shares`; an error skips the phases
// that follow.
template <class... Phases>
void run_phases(int shares, Phases... phases) {
    std::vector<std::exception_ptr> errors(static_cast<size_t>(shares));
    std::atomic<bool> failed{false};
    const auto run = [&](int worker, Workers& workers, auto& phase) {
        for (int share = worker; share < shares && !failed; share += workers.num_workers) {
            try {
                phase(share);
            } catch (...) {
                errors[static_cast<size_t>(share)] = std::current_exception();
                failed = true;
            }
        }
        workers.barrier.arrive_and_wait();
    };
    ThreadPool::of_this_process().run(
        shares, [&](int worker, Workers& workers) { (run(worker, workers, phases), ...); });
    for (const std::exception_ptr& error : errors) {
        if (error) std::rethrow_exception(error);
    }
}

}  // namespace hps
