// Threads that stand ready to help with a call. All tables of a process share them: starting
// threads takes longer than many a call that is worth splitting. They may use the processors that
// the first such caller may use.
#pragma once
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace hps {

inline void relax_cpu() {
#if defined(__SSE2__)
    _mm_pause();
#endif
}

// Waits until `value` is no longer `old`: awake for a few ten microseconds (a hundred where a pause
// is long), because most phases of a call are over by then; then asleep.
template <class T>
void wait_while(const std::atomic<T>& value, T old) {
    constexpr int kSpins = 2000;
    for (int spin = 0; spin < kSpins; ++spin) {
        if (value.load(std::memory_order_acquire) != old) return;
        relax_cpu();
    }
    while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

// Where the threads of one call wait for each other.
class Barrier {
 public:
    explicit Barrier(int num_threads) : num_threads_(num_threads), remaining_(num_threads) {}
    void arrive_and_wait() {
        const uint32_t generation = generation_.load(std::memory_order_relaxed);
        if (remaining_.fetch_sub(1, std::memory_order_acq_rel) > 1) {
            wait_while(generation_, generation);
            return;
        }
        remaining_.store(num_threads_, std::memory_order_relaxed);
        // In the one order of all threads: else the look for sleepers that follows could come
        // before it, and miss one that still saw the old generation.
        generation_.store(generation + 1, std::memory_order_seq_cst);
        generation_.notify_all();
    }

 private:
    const int num_threads_;
    std::atomic<int> remaining_;
    std::atomic<uint32_t> generation_{0};
};

// Those who work on one call.
struct Workers {
    explicit Workers(int n) : num_workers(n), barrier(n) {}
    const int num_workers;
    Barrier barrier;
};

class ThreadPool {
 public:
    using Work = std::function<void(int worker, Workers& workers)>;

    // That of this process: threads do not survive a fork().
    static ThreadPool& of_this_process();

    // Calls `work`, which must not throw, on `wanted` threads at once, the caller's as worker 0;
    // on fewer if the system has no more, on the caller's alone if another call has the pool.
    void run(int wanted, const Work& work);

 private:
    struct Call {
        const Work& work;
        Workers workers;
    };
    struct alignas(64) PoolThread {
        std::atomic<Call*> call{nullptr};  // null = waits for one
        std::thread thread;
    };

    explicit ThreadPool(pid_t process) : process_(process) {}
    int start_threads(int wanted);
    static void work_off(PoolThread& thread, int worker);

    const pid_t process_;
    std::mutex busy_;
    std::vector<std::unique_ptr<PoolThread>> threads_;
};

}  // namespace hps
