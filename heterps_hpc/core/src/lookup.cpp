// Keys -> rows. While a block of keys is listed, the buckets of all of them are prefetched; when
// the distinct ones are looked up, their vectors are; and then they are pooled. So the cache misses
// of many keys are in flight together.
//
// Nothing changes while keys are looked up; those not found are settled afterwards, in order.
#include "lookup.hpp"

#include <algorithm>
#include <cstring>

#include "prefetch.hpp"

namespace hps {

void Table::fetch_buckets(const uint64_t* hashes, uint32_t first, uint32_t last) const {
    const Homes homes = index_.homes();
    for (uint32_t u = first; u < last; ++u) prefetch_line(homes.home(hashes[u]));
}

// Rows and vectors of the hashes at places [first, last); those without a row in memory go to
// `misses`.
void Table::look_up(const uint64_t* hashes, uint32_t first, uint32_t last, uint32_t* rows,
                    const char** vectors, std::vector<Miss>& misses) const {
    const size_t first_miss = misses.size();
    misses.resize(first_miss + last - first);
    LookUpArgs a{hashes,       first, last,    index_.homes(),
                 rows_.view(), rows,  vectors, misses.data() + first_miss};
    kernels_.look_up(a);
    misses.resize(first_miss + a.num_misses);
    look_further(hashes, rows, vectors, misses, first_miss);
}

// Finds those of the misses whose home bucket had no place for them.
void Table::look_further(const uint64_t* hashes, uint32_t* rows, const char** vectors,
                         std::vector<Miss>& misses, size_t first_miss) const {
    size_t kept = first_miss;
    for (size_t i = first_miss; i < misses.size(); ++i) {
        Miss miss = misses[i];
        if (miss.candidate == kUnsure) miss.candidate = index_.find(hashes[miss.place]);
        if (miss.candidate >= kCold) {
            misses[kept++] = miss;
            continue;
        }
        rows[miss.place] = miss.candidate;
        vectors[miss.place] = rows_.view().vector(miss.candidate);
        prefetch_lines(vectors[miss.place], layout_.vector_bytes);
    }
    misses.resize(kept);
}

// The vector of a row on disk, good until the end of the pull.
void Table::read_loose(Lookup& l, uint32_t place, uint32_t cold_row) const {
    l.scratch.loose.push_back(std::make_unique<char[]>(layout_.record_bytes));
    read_cold(cold_row, l.scratch.loose.back().get());
    l.scratch.vectors[place] = l.scratch.loose.back().get();
}

// Settles a key that has no row in memory: it is on disk, or nowhere. True = it is not admitted
// yet.
bool Table::settle(Lookup& l, const Miss& miss) {
    const uint32_t u = miss.place;
    const uint64_t hash = l.hashes()[u];
    const uint64_t key = unmix64(hash);
    const bool train = l.handle != nullptr;
    uint32_t partition = 0;
    if (!holds_all_ || train) {
        partition = partition_of(key, config_.num_partitions);
        if (!held_[partition]) return false;
    }
    const bool refused = l.args.absent != nullptr && l.args.absent->contains(key);
    uint32_t row = kNoRow;
    if (!refused && miss.candidate != kNoRow) {
        row = index_.find(hash);  // rows on disk may have moved since it was looked up
        if (is_cold(row)) {
            if (!train) {
                read_loose(l, u, row);
                return false;
            }
            row = promote(hash, row, partition);
        }
    }
    const bool may_create = train && row == kNoRow;
    if (may_create && !refused && admission_.admits(partition, key)) {
        row = create(key, hash, partition);
    }
    if (row != kNoRow) {
        if (train && cold_) pin(row);
        l.rows[u] = row;
        l.scratch.vectors[u] = rows_.view().vector(row);
    }
    return train && row == kNoRow;
}

// Settles the keys that were looked up at places [first, last), of which `misses` were not found.
bool Table::settle_all(Lookup& l, uint32_t first, uint32_t last, std::vector<Miss>& misses) {
    if (l.args.absent != nullptr) {  // a row that they have by now is not theirs in this pull
        misses.clear();
        for (uint32_t u = first; u < last; ++u) {
            if (l.rows[u] != kNoRow && l.args.absent->contains(unmix64(l.hashes()[u])))
                l.rows[u] = kNoRow;
            if (l.rows[u] != kNoRow) continue;
            l.scratch.vectors[u] = nullptr;
            misses.push_back({u, kUnsure});
        }
    }
    // Pinned before others are demoted for rows that come from disk.
    for (uint32_t u = first; cold_ && l.handle != nullptr && u < last; ++u) {
        if (l.rows[u] != kNoRow) pin(l.rows[u]);  // in the cache since it was looked up
    }
    bool any_absent = false;
    constexpr size_t kAhead = 32, kNear = 8;
    for (size_t i = 0; i < misses.size(); ++i) {
        if (cold_ && l.handle != nullptr && i % 64 == 0) compact();
        if (cold_ && i + kAhead < misses.size()) cold_->expect(misses[i + kAhead].candidate);
        if (i + kNear < misses.size()) {  // from the second-level cache to the first
            __builtin_prefetch(index_.home(l.hashes()[misses[i + kNear].place]), 1);
        }
        any_absent |= settle(l, misses[i]);
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
