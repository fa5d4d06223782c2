#include "fetcher.hpp"

#include <algorithm>
#include <cstring>

namespace hps {

Fetcher::~Fetcher() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

void Fetcher::request(std::vector<uint32_t> slots) {
    std::sort(slots.begin(), slots.end());  // neighbours share pages
    slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
    std::erase_if(slots, [this](uint32_t slot) { return staged_.contains(slot); });
    if (slots.empty()) return;
    auto job = std::make_shared<Job>();
    job->rows.resize(slots.size() * record_bytes_);
    job->slots = std::move(slots);
    jobs_.push_back(job);
    {
        const std::lock_guard lock(mutex_);
        if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
        queue_.push_back(job);
    }
    changed_.notify_all();
    // Only what is sure to be read may be waited for.
    for (uint32_t i = 0; i < job->slots.size(); ++i) staged_[job->slots[i]] = {job.get(), i};
    while (jobs_.size() > kMaxJobs) {
        for (const uint32_t slot : jobs_.front()->slots) {
            const auto it = staged_.find(slot);
            if (it != staged_.end() && it->second.job == jobs_.front().get()) staged_.erase(it);
        }
        jobs_.pop_front();
    }
}

void Fetcher::work() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
        if (stop_) return;
        const std::shared_ptr<Job> job = queue_.front();
        queue_.pop_front();
        lock.unlock();
        bool failed = false;
        try {
            for (size_t i = 0; i < job->slots.size(); ++i) {
                file_.read_written(job->slots[i], job->rows.data() + i * record_bytes_);
            }
        } catch (const SpillError&) {
            failed = true;
        }
        lock.lock();
        job->failed = failed;
        job->done.store(true, std::memory_order_release);
        changed_.notify_all();
    }
}

bool Fetcher::take(uint32_t slot, char* row) const {
    const auto it = staged_.find(slot);
    if (it == staged_.end()) return false;
    const Job* job = it->second.job;
    if (!job->done.load(std::memory_order_acquire)) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [job] { return job->done.load(std::memory_order_relaxed); });
    }
    if (job->failed) return false;
    std::memcpy(row, job->rows.data() + size_t{it->second.row} * record_bytes_, record_bytes_);
    return true;
}

}  // namespace hps
