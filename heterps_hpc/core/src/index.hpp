// The index: which row holds a key.
//
// Extendible hashing: a directory of segments of 512 buckets, each bucket one cache line of eight
// (tag, row) entries. A full segment splits in two, a step of some ten microseconds whatever the
// size of the table, so growth never stops the world. The 32-bit tag holds both the directory bits
// (from the top) and the bucket (at the bottom), so splitting and erasing need no look at the
// rows, which may be on disk. Keys themselves live in the rows: a caller compares them.
#pragma once
#include <cstdint>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "arena.hpp"
#include "hash.hpp"
#include "rows.hpp"

namespace hps {

struct alignas(64) Bucket {
    static constexpr int kSlots = 8;
    uint32_t tag[kSlots];
    uint32_t row[kSlots];  // kNoRow = empty; entries fill a bucket from the front
};

class Index {
 public:
    explicit Index(Arena& arena);

    static uint32_t tag_of(uint64_t key) { return static_cast<uint32_t>(mix64(key)); }
    const Bucket* home(uint32_t tag) const {
        return directory_[slot_of(tag)] + (tag & kBucketMask);
    }

    // Where an entry goes that its home bucket has no room for.
    const Bucket* second(uint32_t tag) const {
        return directory_[slot_of(tag)] + ((tag + 1) & kBucketMask);
    }

    // The row of the first entry of the home bucket with this tag, kNoRow if there is certainly
    // none, or kUnsure.
    static uint32_t candidate(const Bucket& bucket, uint32_t tag);

    // Visits every row whose tag matches until same(row) says yes; that row, or kNoRow.
    template <class Same>
    uint32_t find(uint32_t tag, Same same) const;

    void insert(uint32_t tag, uint32_t row);  // the key must be absent
    // Splits an empty index as often as so many keys would.
    void reserve(uint64_t num_keys);
    static size_t bytes_for(uint64_t num_keys);
    void replace(uint32_t tag, uint32_t old_row, uint32_t new_row);
    void erase(uint32_t tag, uint32_t row);

    uint64_t size() const { return size_; }
    size_t directory_bytes() const;

 private:
    static constexpr uint32_t kBuckets = 512;
    static constexpr uint32_t kBucketMask = kBuckets - 1;
    static constexpr uint32_t kMaxEntries = kBuckets * Bucket::kSlots * 12 / 16;
    static constexpr int kMaxDepth = 32 - 9;
    // Keys of a segment that is split in advance: few segments get so many more that they overflow.
    static constexpr uint32_t kPlannedEntries = kMaxEntries - kMaxEntries / 12;

    struct Segment {
        Bucket* buckets;
        uint32_t entries;
        int depth;
    };

    static int depth_for(uint64_t num_keys);
    size_t slot_of(uint32_t tag) const { return (uint64_t{tag} << depth_) >> 32; }
    Bucket* new_buckets();
    void split(uint32_t tag);
    void double_directory();
    static void put(Bucket* buckets, uint32_t tag, uint32_t row);
    uint32_t* entry_of(uint32_t tag, uint32_t row);

    Arena& arena_;
    int depth_ = 0;
    uint64_t size_ = 0;
    std::vector<Bucket*> directory_;    // what a look-up reads
    std::vector<uint32_t> segment_of_;  // the same, as numbers into segments_
    std::vector<Segment> segments_;
};

// Which of eight numbers are the wanted one, as bits.
#if defined(__SSE2__)
inline uint32_t matching(const uint32_t (&eight)[Bucket::kSlots], uint32_t number) {
    const __m128i wanted = _mm_set1_epi32(static_cast<int>(number));
    const auto* four = reinterpret_cast<const __m128i*>(eight);
    const __m128i low = _mm_cmpeq_epi32(_mm_load_si128(four), wanted);
    const __m128i high = _mm_cmpeq_epi32(_mm_load_si128(four + 1), wanted);
    const __m128i both = _mm_packs_epi16(_mm_packs_epi32(low, high), _mm_setzero_si128());
    return static_cast<uint32_t>(_mm_movemask_epi8(both));
}
#else
inline uint32_t matching(const uint32_t (&eight)[Bucket::kSlots], uint32_t number) {
    uint32_t mask = 0;
    for (int i = 0; i < Bucket::kSlots; ++i) mask |= uint32_t{eight[i] == number} << i;
    return mask;
}
#endif

inline uint32_t Index::candidate(const Bucket& bucket, uint32_t tag) {
    const uint32_t mask = matching(bucket.tag, tag);
    if (mask != 0) {
        // An empty slot may match by its leftover tag; its row then says kNoRow, and entries fill
        // from the front, so no real match can follow it.
        const uint32_t row = bucket.row[__builtin_ctz(mask)];
        if (row != kNoRow) return row;
    }
    return bucket.row[Bucket::kSlots - 1] == kNoRow ? kNoRow : kUnsure;
}

template <class Same>
uint32_t Index::find(uint32_t tag, Same same) const {
    const Bucket* buckets = directory_[slot_of(tag)];
    for (uint32_t b = tag & kBucketMask;; b = (b + 1) & kBucketMask) {
        const Bucket& bucket = buckets[b];
        for (uint32_t mask = matching(bucket.tag, tag); mask != 0; mask &= mask - 1) {
            const uint32_t row = bucket.row[__builtin_ctz(mask)];
            if (row != kNoRow && same(row)) return row;
        }
        if (bucket.row[Bucket::kSlots - 1] == kNoRow) return kNoRow;
    }
}

}  // namespace hps
