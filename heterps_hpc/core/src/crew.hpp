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

inline void pause_briefly() {
#if defined(__SSE2__)
    _mm_pause();
#endif
}

// Waits until `value` is no longer `old`: awake for a few ten microseconds (a hundred where a pause
// is long), because most phases of a call are over by then; then asleep.
template <class T>
void wait_while(const std::atomic<T>& value, T old) {
    constexpr int kTurns = 2000;
    for (int turn = 0; turn < kTurns; ++turn) {
        if (value.load(std::memory_order_acquire) != old) return;
        pause_briefly();
    }
    while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

// Where the threads of one call wait for each other.
class Meeting {
 public:
    explicit Meeting(int num_threads) : num_threads_(num_threads), missing_(num_threads) {}
    void arrive() {
        const uint32_t turn = turn_.load(std::memory_order_relaxed);
        if (missing_.fetch_sub(1, std::memory_order_acq_rel) > 1) {
            wait_while(turn_, turn);
            return;
        }
        missing_.store(num_threads_, std::memory_order_relaxed);
        // In the one order of all threads: else the look for sleepers that follows could come
        // before it, and miss one that still saw the old turn.
        turn_.store(turn + 1, std::memory_order_seq_cst);
        turn_.notify_all();
    }

 private:
    const int num_threads_;
    std::atomic<int> missing_;
    std::atomic<uint32_t> turn_{0};
};

// Those who work on one call.
struct Team {
    explicit Team(int n) : num_workers(n), meeting(n) {}
    const int num_workers;
    Meeting meeting;
};

class Crew {
 public:
    using Work = std::function<void(int worker, Team& team)>;

    // That of this process: threads do not survive a fork().
    static Crew& mine();

    // Calls `work`, which must not throw, on `wanted` threads at once, the caller's as worker 0;
    // on fewer if the system has no more, on the caller's alone if another call has the crew.
    void run(int wanted, const Work& work);

 private:
    struct Call {
        const Work& work;
        Team team;
    };
    struct alignas(64) Member {
        std::atomic<Call*> call{nullptr};  // null = waits for one
        std::thread thread;
    };

    explicit Crew(pid_t process) : process_(process) {}
    int hire(int wanted);
    static void serve(Member& member, int worker);

    const pid_t process_;
    std::mutex busy_;
    std::vector<std::unique_ptr<Member>> members_;
};

}  // namespace hps
