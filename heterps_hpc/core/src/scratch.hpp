// Memory that pulls and pushes work in. It belongs to the calling thread and is shared by all its
// tables, so that it stays in the cache from one table to the next.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "distinct.hpp"
#include "index.hpp"
#include "rows.hpp"

namespace hps {

struct PullScratch {
    std::vector<Distinct> distinct;            // per thread; the first one has all keys at the end
    std::vector<std::vector<uint32_t>> place;  // per thread: of its keys among those of the first
    std::vector<std::vector<Miss>> misses;     // per thread: places without a row in memory
    std::vector<const char*> vectors;          // per place; null = contributes nothing
    std::vector<uint32_t> rows, member;        // of a pull without a handle
    std::vector<std::unique_ptr<char[]>> loose;  // vectors that lie in no row
    std::vector<char> wide;                      // a vector per thread

    void start(int threads, int64_t num_keys, size_t wide_bytes) {
        const auto t = static_cast<size_t>(threads);
        if (wide.size() < t * wide_bytes) wide.resize(t * wide_bytes);
        if (distinct.size() < t) {
            distinct.resize(t);
            place.resize(t);
            misses.resize(t);
        }
        if (vectors.size() < static_cast<size_t>(num_keys)) {
            vectors.resize(static_cast<size_t>(num_keys));
        }
        loose.clear();
    }
    static PullScratch& mine() {
        static thread_local PullScratch scratch;
        return scratch;
    }
};

// The gradients that one thread adds up.
struct Sources {
    std::vector<uint32_t> member, sample;
    std::vector<char> coefficient;
};

struct PushScratch {
    std::vector<Sources> sources;  // per thread
    Distinct distinct;             // rows of several pulls
    std::vector<uint64_t> keys, hashes;
    std::vector<uint32_t> rows, place, member;
    std::vector<char> sums;
    std::vector<uint32_t> shows;
    std::vector<float> clicks;

    // So many bytes, on a cache line.
    char* aligned_sums(size_t bytes) {
        constexpr size_t kLine = 64;
        if (sums.size() < bytes + kLine) sums.resize(bytes + kLine);
        const auto misplaced = reinterpret_cast<uintptr_t>(sums.data()) % kLine;
        return sums.data() + (kLine - misplaced) % kLine;
    }
    static PushScratch& mine() {
        static thread_local PushScratch scratch;
        return scratch;
    }
};

}  // namespace hps
