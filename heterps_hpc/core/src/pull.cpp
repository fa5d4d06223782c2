// The pull: keys -> rows -> pooled vectors, sixty-four keys at a time, so that the cache misses of
// a chunk are all in flight together:
//
//   chunk  n      rows  | settle, pool
//   chunk  n+1  buckets | rows          | settle, pool
//                         buckets of n+2 ...
#include <algorithm>
#include <cstring>

#include "parallel.hpp"
#include "table.hpp"

namespace hps {
namespace {

constexpr int kChunkKeys = 64;

void prefetch_row(const char* row, uint32_t vector_bytes, uint32_t key_offset) {
    const uint32_t bytes = std::min(vector_bytes, 512u);
    for (uint32_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at);
    __builtin_prefetch(row + key_offset);
}

}  // namespace

struct Table::Chunk {
    const uint64_t* keys;
    int num_keys;
    bool train;
    int num_misses;
    int misses[kChunkKeys];  // keys that verify() could not settle
    int num_unsure;
    int unsure[kChunkKeys];  // keys whose home bucket overflowed
    uint32_t tag[kChunkKeys];
    const Bucket* home[kChunkKeys];
    uint32_t row[kChunkKeys];
    const char* vector[kChunkKeys];
    std::vector<char> scratch;  // vectors of keys that have no row in memory
    std::vector<char> record;   // a row read from disk

    char* scratch_vector(int i, size_t bytes) {
        scratch.resize(bytes * kChunkKeys);
        return scratch.data() + bytes * static_cast<size_t>(i);
    }
};

void Table::fetch_buckets(Chunk& c) const {
    for (int i = 0; i < c.num_keys; ++i) {
        c.tag[i] = Index::tag_of(c.keys[i]);
        c.home[i] = index_.home(c.tag[i]);
        __builtin_prefetch(c.home[i]);
    }
}

// Buckets fetched before other keys were settled may have been split since; a key that moved is
// then missed here and found by settle().
void Table::fetch_rows(Chunk& c) const {
    const RowView rows = rows_.view();
    const uint32_t vector_bytes = layout_.dim * layout_.value_bytes;
    const auto fetch = [&](int i, uint32_t row) {
        c.row[i] = row;
        c.vector[i] = nullptr;
        if (row < kCold) {
            c.vector[i] = rows.at(row);
            prefetch_row(c.vector[i], vector_bytes, layout_.key);
        }
    };
    c.num_unsure = 0;
    for (int i = 0; i < c.num_keys; ++i) {
        const uint32_t row = Index::candidate(*c.home[i], c.tag[i]);
        fetch(i, row);
        if (row == kUnsure) {
            __builtin_prefetch(index_.second(c.tag[i]));
            c.unsure[c.num_unsure++] = i;
        }
    }
    for (int u = 0; u < c.num_unsure; ++u) {
        const int i = c.unsure[u];
        fetch(i, Index::candidate(*index_.second(c.tag[i]), c.tag[i]));
    }
}

void Table::verify(Chunk& c) const {
    c.num_misses = 0;
    for (int i = 0; i < c.num_keys; ++i) {
        const bool hit =
            c.vector[i] != nullptr && field<uint64_t>(c.vector[i], layout_.key) == c.keys[i];
        c.misses[c.num_misses] = i;
        c.num_misses += !hit;
    }
}

// Settles a key that was not found so far: two overflowed buckets, equal tags, row on disk, or no
// row.
void Table::settle(Chunk& c, int i, Pulled* handle) {
    const uint64_t key = c.keys[i];
    c.vector[i] = nullptr;
    c.row[i] = kNoRow;
    uint32_t partition = 0;
    if (!holds_all_ || c.train) {
        partition = partition_of(key, config_.num_partitions);
        if (!held_[partition]) return;
    }
    uint32_t row = find(key, c.record);
    const size_t vector_bytes = size_t{layout_.dim} * layout_.value_bytes;
    if (row != kNoRow && (row & kCold) != 0) {
        if (!c.train) {
            char* v = c.scratch_vector(i, vector_bytes);
            std::memcpy(v, c.record.data(), vector_bytes);
            c.vector[i] = v;
            return;
        }
        row = promote(row, c.record.data(), partition);
    }
    if (row == kNoRow && c.train) {
        if (admission_.admits(partition, key)) {
            row = create(key, partition);
        } else {
            handle->absent.push_back(key);
            ++stats_.rejected;
        }
    }
    c.row[i] = row;
    if (row != kNoRow) {
        c.vector[i] = rows_.at(row);
    } else if (config_.unknown_default) {
        char* v = c.scratch_vector(i, vector_bytes);
        initial_vector(key, v);
        c.vector[i] = v;
    }
}

// Gives every key of a chunk that starts at `key` its row, or notes it in `deferred`.
void Table::settle_misses(Chunk& c, int64_t key, Pulled* handle, std::vector<int64_t>* deferred) {
    verify(c);
    for (int m = 0; m < c.num_misses; ++m) {
        c.vector[c.misses[m]] = nullptr;
        c.row[c.misses[m]] = kNoRow;
    }
    // Known to the handle, and pinned, before room is made for rows that come from disk.
    if (handle != nullptr) {
        std::copy_n(c.row, c.num_keys, handle->rows.data() + key);
        for (int i = 0; cold_ && i < c.num_keys; ++i) {
            if (c.row[i] != kNoRow) pin(c.row[i]);
        }
    }
    for (int m = 0; m < c.num_misses; ++m) {
        const int i = c.misses[m];
        if (deferred == nullptr) {
            settle(c, i, handle);
            if (handle != nullptr) handle->rows[static_cast<size_t>(key + i)] = c.row[i];
            if (handle != nullptr && cold_ && c.row[i] != kNoRow) pin(c.row[i]);
            continue;
        }
        if (holds_all_ || held_[partition_of(c.keys[i], config_.num_partitions)]) {
            deferred->push_back(key + i);
        }
    }
}

// Lists the rows of a pull once each, while they are in the cache, so that the push need not. As in
// gather(), a row's mark is its place in the list, and is believed only if the list agrees.
void Table::list_rows(const Chunk& c, int64_t key, Pulled& h) const {
    const RowView rows = rows_.view();
    uint32_t* unique = h.unique.data();
    uint32_t* member = h.member.data() + key;
    uint32_t num_unique = h.num_unique;
    for (int i = 0; i < c.num_keys; ++i) {
        const uint32_t row = c.row[i];
        if (row == kNoRow) {
            member[i] = kNoRow;
            continue;
        }
        uint32_t& place = field<uint32_t>(rows.at(row), layout_.mark);
        const uint32_t guess = std::min(place, num_unique);
        const bool known = place < num_unique && unique[guess] == row;
        const uint32_t u = known ? guess : num_unique;
        unique[u] = row;
        place = u;
        num_unique += !known;
        member[i] = u;
    }
    h.num_unique = num_unique;
}

// For the plainest pull only: one key per sample, nothing counted per row. A snapshot's reader
// copies whole rows, marks and all, so none may be written under it.
bool Table::may_list(const PullArgs& a, int threads) const {
    return threads == 1 && a.offsets == nullptr && a.weights == nullptr && !cold_ &&
           layout_.step == 0 && snapshots_.empty() && a.num_keys < int64_t{UINT32_MAX};
}

// Pulls samples [first, last). With `deferred`, samples with unsettled keys are only noted there:
// several threads may look up at once, but only one may create rows.
void Table::pull_range(const PullArgs& a, Pulled* handle, int64_t first, int64_t last,
                       std::vector<int64_t>* deferred) {
    Chunk chunks[2];
    PoolArgs pool{nullptr,   0,      0,     a.offsets,    first,      last,
                  a.weights, a.mean, a.out, a.out_stride, layout_.dim};
    int64_t key = a.offsets == nullptr ? first : a.offsets[first];
    const int64_t end = a.offsets == nullptr ? last : a.offsets[last];
    const auto start = [&](Chunk& c, int64_t at) {
        c.train = a.train;
        c.keys = a.keys + at;
        c.num_keys = static_cast<int>(std::min<int64_t>(kChunkKeys, end - at));
        fetch_buckets(c);
    };
    start(chunks[0], key);
    for (int turn = 0;; turn ^= 1) {
        Chunk& chunk = chunks[turn];
        const int64_t next = key + chunk.num_keys;
        if (cold_ && a.train) compact();
        fetch_rows(chunk);
        if (next < end) start(chunks[turn ^ 1], next);
        settle_misses(chunk, key, handle, deferred);
        if (handle != nullptr && handle->listed) list_rows(chunk, key, *handle);
        pool.vectors = chunk.vector;
        pool.key_begin = key;
        pool.key_end = next;
        kernels_.pool(pool);
        if (next >= end) return;
        key = next;
    }
}

void Table::pull_parallel(const PullArgs& a, Pulled* handle, int threads) {
    std::vector<std::vector<int64_t>> deferred(static_cast<size_t>(threads));
    std::vector<int64_t> cut(static_cast<size_t>(threads) + 1, a.num_samples);
    for (int t = 0; t < threads; ++t) {
        const int64_t key = a.num_keys / threads * t;
        cut[static_cast<size_t>(t)] =
            a.offsets == nullptr
                ? key
                : std::lower_bound(a.offsets, a.offsets + a.num_samples, key) - a.offsets;
    }
    cut[0] = 0;
    run_parallel(threads, [&](int t) {
        const auto i = static_cast<size_t>(t);
        if (cut[i] < cut[i + 1]) {
            pull_range(a, handle, cut[i], cut[i + 1], a.train ? &deferred[i] : nullptr);
        }
    });
    // In the order of the keys, whatever the number of threads.
    int64_t done = -1;
    for (const auto& keys : deferred) {
        for (const int64_t key : keys) {
            int64_t sample = key;
            if (a.offsets != nullptr) {
                sample =
                    std::upper_bound(a.offsets, a.offsets + a.num_samples + 1, key) - a.offsets - 1;
            }
            if (sample > done) pull_range(a, handle, sample, sample + 1, nullptr);
            done = sample;
        }
    }
}

std::shared_ptr<Pulled> Table::pull(const PullArgs& a) {
    // Pins are not counted atomically, so a training pull of a table with tiers is one thread's.
    const bool alone = a.num_keys < kParallelMinKeys || (cold_ && a.train);
    const int threads = alone ? 1 : config_.threads;
    if (!a.train) {
        const std::shared_lock lock(mutex_);
        eval_keys_.fetch_add(static_cast<uint64_t>(a.num_keys), std::memory_order_relaxed);
        if (a.num_samples == 0) return nullptr;
        if (threads > 1) {
            pull_parallel(a, nullptr, threads);
        } else {
            pull_range(a, nullptr, 0, a.num_samples, nullptr);
        }
        return nullptr;
    }
    auto handle = std::make_shared<Pulled>(shared_from_this());
    handle->num_samples = a.num_samples;
    handle->mean = a.mean;
    if (a.offsets != nullptr) handle->offsets.assign(a.offsets, a.offsets + a.num_samples + 1);
    if (a.weights != nullptr) {
        const auto* w = static_cast<const char*>(a.weights);
        handle->weights.assign(w, w + static_cast<size_t>(a.num_keys) * layout_.value_bytes);
    }
    const std::unique_lock lock(mutex_);
    spares_.reserve(open_handles_.size() + 1);  // closing a handle must not fail
    if (!spares_.empty()) {
        Spare& spare = spares_.back();
        handle->rows.swap(spare.rows);
        handle->unique.swap(spare.unique);
        handle->member.swap(spare.member);
        spares_.pop_back();
    }
    const auto num_keys = static_cast<size_t>(a.num_keys);
    handle->rows.resize(num_keys);
    handle->listed = may_list(a, threads);
    if (handle->listed) {
        handle->unique.resize(num_keys + 1);
        handle->member.resize(num_keys);
    }
    // A pull that fails half way unpins the rows that it had got so far.
    if (cold_) std::fill(handle->rows.begin(), handle->rows.end(), kNoRow);
    open_handles_.insert(handle.get());
    handle->open = true;
    stats_.pulled_keys += static_cast<uint64_t>(a.num_keys);
    if (a.num_samples == 0) return handle;
    try {
        if (threads > 1) {
            pull_parallel(a, handle.get(), threads);
        } else {
            pull_range(a, handle.get(), 0, a.num_samples, nullptr);
        }
    } catch (...) {
        close(*handle);
        throw;
    }
    return handle;
}

}  // namespace hps
