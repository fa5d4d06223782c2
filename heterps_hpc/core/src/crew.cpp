#include "crew.hpp"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <exception>

namespace hps {

// Never deleted: its threads wait until the process ends, and one from before a fork() has none
// that could be joined.
Crew& Crew::mine() {
    static std::atomic<Crew*> current{nullptr};
    const pid_t process = getpid();
    Crew* crew = current.load(std::memory_order_acquire);
    while (crew == nullptr || crew->process_ != process) {
        auto fresh = std::unique_ptr<Crew>(new Crew(process));
        if (current.compare_exchange_strong(crew, fresh.get())) crew = fresh.release();
    }
    return *crew;
}

void Crew::serve(Member& member, int worker) {
    for (;;) {
        wait_while<Call*>(member.call, nullptr);
        Call* call = member.call.load(std::memory_order_acquire);
        call->work(worker, call->team);
        member.call.store(nullptr, std::memory_order_seq_cst);
        member.call.notify_one();
    }
}

// How many threads there are to work with, the caller's included.
int Crew::hire(int wanted) {
    sigset_t all, before;  // signals are for the threads that Python knows
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        members_.reserve(static_cast<size_t>(wanted));
        for (int worker = static_cast<int>(members_.size()) + 1; worker < wanted; ++worker) {
            auto member = std::make_unique<Member>();
            member->thread = std::thread(serve, std::ref(*member), worker);
            members_.push_back(std::move(member));
        }
    } catch (const std::exception&) {
        // No more threads to be had: those that there are do the shares of the others.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return std::min(wanted, static_cast<int>(members_.size()) + 1);
}

void Crew::run(int wanted, const Work& work) {
    const std::unique_lock lock(busy_, std::try_to_lock);
    Call call{work, Team(lock.owns_lock() ? hire(wanted) : 1)};
    const size_t num_helpers = static_cast<size_t>(call.team.num_workers) - 1;
    for (size_t i = 0; i < num_helpers; ++i) {
        members_[i]->call.store(&call, std::memory_order_seq_cst);
        members_[i]->call.notify_one();
    }
    work(0, call.team);
    for (size_t i = 0; i < num_helpers; ++i) wait_while<Call*>(members_[i]->call, &call);
}

}  // namespace hps
