// Reads rows of the cold file ahead of time, on a thread of its own.
//
// The table says which slots; the thread only fills buffers and never looks at the table. A slot
// that the table frees meanwhile is simply forgotten: nobody will ask for it.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cold.hpp"

namespace hps {

class Fetcher {
 public:
    Fetcher(const ColdFile& file, uint32_t record_bytes)
        : file_(file), record_bytes_(record_bytes) {}
    ~Fetcher();

    void request(std::vector<uint32_t> slots);  // written slots only
    // Copies a requested row, waiting for it if need be; false if it was not requested or its
    // reading failed (the caller then reads it itself, and reports what is wrong).
    bool take(uint32_t slot, char* row) const;
    void forget(uint32_t slot) { staged_.erase(slot); }

 private:
    struct Job {
        std::vector<uint32_t> slots;
        std::vector<char> rows;
        bool failed = false;  // known once it is done
        std::atomic<bool> done{false};
    };
    void work();

    static constexpr size_t kMaxJobs = 16;  // older requests that were never pulled are dropped
    const ColdFile& file_;
    const uint32_t record_bytes_;
    struct Place {
        Job* job;  // one of jobs_
        uint32_t row;
    };
    std::pmr::unsynchronized_pool_resource nodes_;  // thousands come and go with every batch
    std::pmr::unordered_map<uint32_t, Place> staged_{&nodes_};
    std::deque<std::shared_ptr<Job>> jobs_;

    mutable std::mutex mutex_;
    mutable std::condition_variable changed_;
    std::deque<std::shared_ptr<Job>> queue_;
    bool stop_ = false;
    std::thread thread_;
};

}  // namespace hps
