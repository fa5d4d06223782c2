// Keys -> rows. Distinct keys are looked up some at a time, in three stages, so that the cache
// misses of many keys are in flight together:
//
//   keys   0..31    fetch buckets | fetch rows    | compare keys
//   keys  32..63                    fetch buckets | fetch rows   | compare keys
//
// Nothing changes while keys are looked up; those not found are settled afterwards, in order.
#include "lookup.hpp"

#include <algorithm>
#include <cstring>

namespace hps {
namespace {

constexpr uint32_t kAtOnce = 32;

void prefetch_row(const char* row, uint32_t vector_bytes, uint32_t key_offset) {
    const uint32_t bytes = std::min(vector_bytes, 512u);
    for (uint32_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at);
    __builtin_prefetch(row + key_offset);
}

}  // namespace

void Table::fetch_buckets(const uint32_t* tags, uint32_t first, uint32_t last) const {
    for (uint32_t u = first; u < last; ++u) __builtin_prefetch(index_.home(tags[u]));
}

void Table::fetch_rows(const uint32_t* tags, uint32_t first, uint32_t last, uint32_t* rows,
                       const char** vectors) const {
    const RowView view = rows_.view();
    const uint32_t vector_bytes = layout_.dim * layout_.value_bytes;
    uint32_t unsure[kAtOnce];  // places whose home bucket overflowed
    uint32_t num_unsure = 0;
    const auto fetch = [&](uint32_t u, uint32_t row) {
        rows[u] = row;
        vectors[u] = nullptr;
        if (row < kCold) {
            vectors[u] = view.at(row);
            prefetch_row(vectors[u], vector_bytes, layout_.key);
        }
    };
    for (uint32_t u = first; u < last; ++u) {
        const uint32_t row = Index::candidate(*index_.home(tags[u]), tags[u]);
        fetch(u, row);
        if (row == kUnsure) {
            __builtin_prefetch(index_.second(tags[u]));
            unsure[num_unsure++] = u;
        }
    }
    for (uint32_t i = 0; i < num_unsure; ++i) {
        const uint32_t tag = tags[unsure[i]];
        fetch(unsure[i], Index::candidate(*index_.second(tag), tag));
    }
}

// Rows and vectors of the keys at places [first, last); those not found yet go to `misses`.
void Table::look_up(const Distinct& keys, uint32_t first, uint32_t last, uint32_t* rows,
                    const char** vectors, std::vector<Miss>& misses) const {
    const uint32_t* tags = keys.tags();
    const auto clip = [&](uint64_t at) {
        return static_cast<uint32_t>(std::clamp<uint64_t>(at, first, last));
    };
    for (uint64_t at = first; at < uint64_t{last} + 2 * kAtOnce; at += kAtOnce) {
        fetch_buckets(tags, clip(at), clip(at + kAtOnce));
        if (at < uint64_t{first} + kAtOnce) continue;
        fetch_rows(tags, clip(at - kAtOnce), clip(at), rows, vectors);
        if (at < uint64_t{first} + 2 * kAtOnce) continue;
        for (uint32_t u = clip(at - 2 * kAtOnce); u < clip(at - kAtOnce); ++u) {
            if (vectors[u] != nullptr && field<uint64_t>(vectors[u], layout_.key) == keys.keys()[u])
                continue;
            misses.push_back({u, rows[u]});
            rows[u] = kNoRow;
            vectors[u] = nullptr;
        }
    }
}

// A place for a vector that lies in no row, good until the end of the pull.
char* Table::loose_vector(PullScratch& scratch) const {
    scratch.loose.push_back(std::make_unique<char[]>(size_t{layout_.dim} * layout_.value_bytes));
    return scratch.loose.back().get();
}

// Settles a key that look_up() did not find: two overflowed buckets, equal tags, row on disk, or
// no row. True = it is not admitted yet.
bool Table::settle(Lookup& l, const Miss& miss, std::vector<char>& record) {
    const uint32_t u = miss.place;
    const uint64_t key = l.keys()[u];
    const bool train = l.handle != nullptr;
    uint32_t partition = 0;
    if (!holds_all_ || train) {
        partition = partition_of(key, config_.num_partitions);
        if (!held_[partition]) return false;
    }
    const bool refused = l.args.absent != nullptr && l.args.absent->contains(key);
    uint32_t row = refused || miss.candidate == kNoRow ? kNoRow : find(key, record);
    if (row != kNoRow && (row & kCold) != 0) {
        if (!train) {
            char* v = loose_vector(l.scratch);
            std::memcpy(v, record.data(), size_t{layout_.dim} * layout_.value_bytes);
            l.scratch.vectors[u] = v;
            return false;
        }
        row = promote(row, record.data(), partition);
    }
    const bool may_create = train && row == kNoRow;
    if (may_create && !refused && admission_.admits(partition, key)) row = create(key, partition);
    if (row != kNoRow) {
        if (train && cold_) pin(row);
        l.rows[u] = row;
        l.scratch.vectors[u] = rows_.at(row);
    }
    return train && row == kNoRow;
}

// Settles the keys that were looked up at places [first, last), of which `misses` were not found.
bool Table::settle_all(Lookup& l, uint32_t first, uint32_t last, std::vector<Miss>& misses) {
    if (l.args.absent != nullptr) {  // a row that they have by now is not theirs in this pull
        misses.clear();
        for (uint32_t u = first; u < last; ++u) {
            if (l.rows[u] != kNoRow && l.args.absent->contains(l.keys()[u])) l.rows[u] = kNoRow;
            if (l.rows[u] != kNoRow) continue;
            l.scratch.vectors[u] = nullptr;
            misses.push_back({u, kUnsure});
        }
    }
    // Pinned before room is made for rows that come from disk.
    for (uint32_t u = first; cold_ && l.handle != nullptr && u < last; ++u) {
        if (l.rows[u] != kNoRow) pin(l.rows[u]);  // in the cache since it was looked up
    }
    bool any_absent = false;
    std::vector<char> record;
    for (size_t i = 0; i < misses.size(); ++i) {
        if (cold_ && l.handle != nullptr && i % 64 == 0) compact();
        if (cold_ && i + kAtOnce < misses.size()) cold_->expect(misses[i + kAtOnce].candidate);
        any_absent |= settle(l, misses[i], record);
    }
    misses.clear();
    return any_absent;
}

// Notes every sighting of the keys [first, last) that are not admitted, for the push to count.
void Table::note_absent(const Lookup& l, int64_t first, int64_t last) {
    for (int64_t k = first; k < last; ++k) {
        const uint64_t key = l.args.keys[k];
        if (l.rows[l.member[k]] != kNoRow) continue;
        if (!holds_all_ && !held_[partition_of(key, config_.num_partitions)]) continue;
        l.handle->absent.push_back(key);
        ++stats_.rejected;
    }
}

}  // namespace hps
