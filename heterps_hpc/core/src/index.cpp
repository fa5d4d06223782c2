#include "index.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace hps {

Index::Index(Arena& arena) : arena_(arena) {
    segments_.push_back({new_buckets(), 0, 0});
    directory_.push_back(segments_[0].buckets);
    segment_of_.push_back(0);
}

Bucket* Index::new_buckets() {
    auto* buckets = static_cast<Bucket*>(arena_.allocate(sizeof(Bucket) * kBuckets));
    for (uint32_t b = 0; b < kBuckets; ++b) std::fill_n(buckets[b].row, Bucket::kSlots, kNoRow);
    return buckets;
}

void Index::put(Bucket* buckets, uint32_t tag, uint32_t row) {
    for (uint32_t b = tag & kBucketMask;; b = (b + 1) & kBucketMask) {
        const uint32_t empty = matching(buckets[b].row, kNoRow);
        if (empty == 0) continue;
        const int i = __builtin_ctz(empty);
        buckets[b].tag[i] = tag;
        buckets[b].row[i] = row;
        return;
    }
}

void Index::insert(uint32_t tag, uint32_t row) {
    while (segments_[segment_of_[slot_of(tag)]].entries >= kMaxEntries) split(tag);
    Segment& segment = segments_[segment_of_[slot_of(tag)]];
    put(segment.buckets, tag, row);
    ++segment.entries;
    ++size_;
}

int Index::depth_for(uint64_t num_keys) {
    int depth = 0;
    while (depth < kMaxDepth && (num_keys >> depth) > kPlannedEntries) ++depth;
    return depth;
}

size_t Index::bytes_for(uint64_t num_keys) {
    return (sizeof(Bucket) * kBuckets) << depth_for(num_keys);
}

void Index::reserve(uint64_t num_keys) {
    const int depth = depth_for(num_keys);
    if (size_ != 0 || segments_.size() != 1) return;
    const size_t count = size_t{1} << depth;
    std::vector<Segment> segments = {{segments_[0].buckets, 0, depth}};
    segments.reserve(count);
    while (segments.size() < count) segments.push_back({new_buckets(), 0, depth});
    std::vector<Bucket*> directory(count);
    std::vector<uint32_t> segment_of(count);
    for (size_t i = 0; i < count; ++i) {
        directory[i] = segments[i].buckets;
        segment_of[i] = static_cast<uint32_t>(i);
    }
    segments_.swap(segments);
    directory_.swap(directory);
    segment_of_.swap(segment_of);
    depth_ = depth;
}

void Index::double_directory() {
    const size_t n = directory_.size();
    std::vector<Bucket*> directory(n * 2);
    std::vector<uint32_t> segment_of(n * 2);
    for (size_t i = 0; i < n * 2; ++i) {
        directory[i] = directory_[i / 2];
        segment_of[i] = segment_of_[i / 2];
    }
    directory_.swap(directory);
    segment_of_.swap(segment_of);
    ++depth_;
}

// Splits the segment of `tag` by the next bit of the tags. Allocates before it changes anything.
void Index::split(uint32_t tag) {
    const uint32_t old = segment_of_[slot_of(tag)];
    if (segments_[old].depth == kMaxDepth) {
        throw std::runtime_error(
            "table index: more than 3000 keys share the same hash bits; these keys were made to "
            "collide. Hash the raw features with another seed");
    }
    if (segments_.size() == segments_.capacity()) segments_.reserve(2 * segments_.size());
    Bucket* upper = new_buckets();
    auto copy = std::make_unique<Bucket[]>(kBuckets);
    if (segments_[old].depth == depth_) double_directory();

    const auto fresh = static_cast<uint32_t>(segments_.size());
    Bucket* lower = segments_[old].buckets;
    const int depth = segments_[old].depth + 1;
    std::memcpy(copy.get(), lower, sizeof(Bucket) * kBuckets);
    for (uint32_t b = 0; b < kBuckets; ++b) std::fill_n(lower[b].row, Bucket::kSlots, kNoRow);
    uint32_t moved = 0;
    for (uint32_t b = 0; b < kBuckets; ++b) {
        for (int i = 0; i < Bucket::kSlots && copy[b].row[i] != kNoRow; ++i) {
            const bool up = (copy[b].tag[i] >> (32 - depth)) & 1;
            put(up ? upper : lower, copy[b].tag[i], copy[b].row[i]);
            moved += up;
        }
    }
    segments_.push_back({upper, moved, depth});
    segments_[old].entries -= moved;
    segments_[old].depth = depth;

    const size_t span = size_t{1} << (depth_ - depth);  // directory entries of each half
    const size_t first = (slot_of(tag) / (span * 2)) * (span * 2) + span;
    for (size_t i = first; i < first + span; ++i) {
        directory_[i] = upper;
        segment_of_[i] = fresh;
    }
}

uint32_t* Index::entry_of(uint32_t tag, uint32_t row) {
    Bucket* buckets = directory_[slot_of(tag)];
    for (uint32_t b = tag & kBucketMask;; b = (b + 1) & kBucketMask) {
        for (int i = 0; i < Bucket::kSlots; ++i) {
            if (buckets[b].row[i] == row) return &buckets[b].row[i];
            if (buckets[b].row[i] == kNoRow)
                throw std::logic_error("table index: row is not indexed");
        }
    }
}

void Index::replace(uint32_t tag, uint32_t old_row, uint32_t new_row) {
    *entry_of(tag, old_row) = new_row;
}

// Fills the hole from the end of its bucket; if that bucket was full, an entry of a later bucket
// that had overflowed over it must come back, or look-ups would stop too early.
void Index::erase(uint32_t tag, uint32_t row) {
    Segment& segment = segments_[segment_of_[slot_of(tag)]];
    Bucket* buckets = segment.buckets;
    uint32_t* entry = entry_of(tag, row);
    auto hole = static_cast<uint32_t>(
        reinterpret_cast<Bucket*>(reinterpret_cast<uintptr_t>(entry) & ~uintptr_t{63}) - buckets);
    auto slot = static_cast<int>(entry - buckets[hole].row);
    --segment.entries;
    --size_;
    for (;;) {
        Bucket& bucket = buckets[hole];
        const bool was_full = bucket.row[Bucket::kSlots - 1] != kNoRow;
        int last = Bucket::kSlots - 1;
        while (bucket.row[last] == kNoRow) --last;
        bucket.tag[slot] = bucket.tag[last];
        bucket.row[slot] = bucket.row[last];
        bucket.row[last] = kNoRow;
        if (!was_full) return;
        bool found = false;
        for (uint32_t b = (hole + 1) & kBucketMask; !found; b = (b + 1) & kBucketMask) {
            for (int i = 0; i < Bucket::kSlots && buckets[b].row[i] != kNoRow; ++i) {
                const uint32_t distance = (b - (buckets[b].tag[i] & kBucketMask)) & kBucketMask;
                if (distance >= ((b - hole) & kBucketMask)) {
                    bucket.tag[last] = buckets[b].tag[i];
                    bucket.row[last] = buckets[b].row[i];
                    hole = b;
                    slot = i;
                    found = true;
                    break;
                }
            }
            if (!found && buckets[b].row[Bucket::kSlots - 1] == kNoRow) return;
        }
    }
}

size_t Index::directory_bytes() const {
    return directory_.capacity() * sizeof(Bucket*) + segment_of_.capacity() * sizeof(uint32_t) +
           segments_.capacity() * sizeof(Segment);
}

}  // namespace hps
