// Runs a call's phases on several threads, each phase after the one before it is done, and hands
// the first error to the caller. Threads are made per call: some ten microseconds, against the
// milliseconds of a call worth splitting, and nothing to shut down or to break across fork().
#pragma once
#include <atomic>
#include <barrier>
#include <cstdint>
#include <exception>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

namespace hps {

constexpr int64_t kParallelMinKeys = 16384;  // below this one thread is faster

// Every phase is called as phase(share) for all shares below `threads`; an error skips the phases
// that follow.
template <class... Phases>
void run_phases(int threads, Phases... phases) {
    std::vector<std::exception_ptr> errors(static_cast<size_t>(threads));
    std::atomic<bool> failed{false};
    std::atomic<int> num_workers{0};
    std::optional<std::barrier<>> barrier;
    const auto run = [&](int worker, int workers, auto& phase) {
        for (int share = worker; share < threads && !failed; share += workers) {
            try {
                phase(share);
            } catch (...) {
                errors[static_cast<size_t>(share)] = std::current_exception();
                failed = true;
            }
        }
        barrier->arrive_and_wait();
    };
    const auto work = [&](int worker) {
        num_workers.wait(0);
        (run(worker, num_workers, phases), ...);
    };
    std::vector<std::thread> others;
    others.reserve(static_cast<size_t>(threads));
    int started = 1;
    try {
        for (; started < threads; ++started) others.emplace_back(work, started);
    } catch (const std::system_error&) {
        // No more threads to be had: those that there are do the shares of the others.
    }
    barrier.emplace(started);
    num_workers = started;
    num_workers.notify_all();
    work(0);
    for (std::thread& other : others) other.join();
    for (const std::exception_ptr& error : errors) {
        if (error) std::rethrow_exception(error);
    }
}

}  // namespace hps
