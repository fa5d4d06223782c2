// Runs one function on several threads and hands the first error to the caller. Threads are made
// per call: some ten microseconds, against the milliseconds of a call worth splitting, and
// nothing to shut down or to break across fork().
#pragma once
#include <cstdint>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace hps {

constexpr int64_t kParallelMinKeys = 16384;  // below this one thread is faster

template <class Work>
void run_parallel(int threads, Work work) {
    std::vector<std::exception_ptr> errors(static_cast<size_t>(threads));
    const auto guarded = [&](int t) {
        try {
            work(t);
        } catch (...) {
            errors[static_cast<size_t>(t)] = std::current_exception();
        }
    };
    std::vector<std::thread> others;
    others.reserve(static_cast<size_t>(threads));
    int started = 1;
    try {
        for (; started < threads; ++started) others.emplace_back(guarded, started);
    } catch (const std::system_error&) {
        // No more threads to be had: the caller's own does their share.
    }
    guarded(0);
    for (int t = started; t < threads; ++t) guarded(t);
    for (std::thread& other : others) other.join();
    for (const std::exception_ptr& error : errors) {
        if (error) std::rethrow_exception(error);
    }
}

}  // namespace hps
