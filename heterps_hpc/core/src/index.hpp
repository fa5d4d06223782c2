// The index: which row holds a key.
//
// A bucket is one cache line of five (hash, row) entries. The hash is a bijection of the key, so
// the line alone decides whether a key is there. A key's home bucket is its hash scaled to the
// number of buckets: buckets are in the order of the hashes, and the array grows in place, by a
// quarter, from its end to its front, some buckets with every few keys that are inserted:
//
//   |  not moved yet: `before_` buckets  |   gap   |  moved: `after_` buckets               |
//                                 frontier_                (hashes from frontier_ on)
//
// So growth never stops the world, and the index is always between 0.8 and 1 times as full as it
// may be. An entry that its home has no place for lies in the next bucket that has.
#pragma once
#include <cstdint>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "hash.hpp"
#include "pages.hpp"
#include "rows.hpp"

namespace hps {

struct alignas(64) Bucket {
    static constexpr uint32_t kSlots = 5;
    uint64_t hash[kSlots];
    uint32_t inverse[kSlots];  // ~row: fresh, zeroed memory is empty. Filled from the front
    uint32_t displaced;        // entries whose home is here, but which lie in a later bucket

    uint32_t row(uint32_t i) const { return ~inverse[i]; }
    bool full() const { return inverse[kSlots - 1] != 0; }
    uint32_t size() const {
        uint32_t n = 0;  // no branch: how full a bucket is cannot be guessed
        for (const uint32_t i : inverse) n += i != 0;
        return n;
    }
    void append(uint32_t i, uint64_t h, uint32_t r) {
        hash[i] = h;
        inverse[i] = ~r;
    }
    void remove(uint32_t i, uint32_t size) {
        hash[i] = hash[size - 1];
        inverse[i] = inverse[size - 1];
        inverse[size - 1] = 0;
    }
};
static_assert(sizeof(Bucket) == 64);

// Where the home buckets lie: the cheap part of the index, which loops over keys copy.
struct Homes {
    const Bucket* buckets;
    uint64_t before, after;  // numbers of buckets; equal when the index does not grow
    uint64_t frontier;       // hashes (upper half) from here on have moved

    static uint64_t scaled(uint64_t hash, uint64_t n) { return ((hash >> 32) * n) >> 32; }
    uint64_t number(uint64_t hash) const {
        return scaled(hash, (hash >> 32) >= frontier ? after : before);
    }
    const Bucket* home(uint64_t hash) const { return buckets + number(hash); }
};

// A place whose key was not found so far.
struct Miss {
    uint32_t place;
    uint32_t candidate;  // what the index said: kNoRow, or its row on disk
};

class Index {
 public:
    Index();

    static uint64_t hash_of(uint64_t key) { return mix64(key); }
    Homes homes() const { return {buckets_, before_, after_, frontier_}; }
    const Bucket* home(uint64_t hash) const { return homes().home(hash); }

    // The row of a hash as its home bucket knows it, by the bits of matching(): kNoRow if there is
    // certainly none, kUnsure if find() must look further.
    static uint32_t candidate(const Bucket& home, uint32_t mask);
    uint32_t find(uint64_t hash) const;  // or kNoRow

    void insert(uint64_t hash, uint32_t row);  // the hash must be absent
    void replace(uint64_t hash, uint32_t row);
    void erase(uint64_t hash);
    // Makes place for so many keys in an empty index.
    void reserve(uint64_t num_keys);
    static size_t bytes_for(uint64_t num_keys);
    size_t bytes() const { return after_ * sizeof(Bucket); }
    MemoryRange memory() const { return memory_.range(); }

 private:
    static constexpr uint64_t kLeastBuckets = 64;
    // Mapped behind the last home, and touched only if it overflows.
    static constexpr uint64_t kTail = 1024;
    static constexpr uint64_t kAtOnce = 64;        // buckets moved at once
    static constexpr uint32_t kInserts = 16;       // between two such moves
    static constexpr uint64_t kNear = 8;           // buckets from home: most displaced keys
    static constexpr uint64_t kMaxDistance = 600;  // buckets from home: else keys made to collide

    struct Entry {
        uint64_t hash;
        uint32_t row;
    };
    struct Place {
        Bucket* bucket;  // null = absent
        uint32_t slot;
    };

    static uint64_t max_keys(uint64_t buckets) { return buckets * Bucket::kSlots * 11 / 16; }
    static uint64_t buckets_for(uint64_t num_keys);
    uint64_t home_number(uint64_t hash) const { return homes().number(hash); }
    void start_growth();
    void move_some();
    void take_out(uint64_t number, uint64_t first, uint64_t last);
    void put(uint64_t hash, uint32_t row);
    Bucket* bucket_at(uint64_t number);
    Place locate(uint64_t hash) const;

    GrowableMemory memory_;
    Bucket* buckets_ = nullptr;
    uint64_t num_mapped_ = 0;
    uint64_t before_ = 0, after_ = 0, frontier_ = 0;  // see Homes
    uint64_t unmoved_ = 0;                            // of the buckets `before_`, the first so many
    uint64_t size_ = 0;
    std::vector<Entry> moving_;
};

// Which of the five hashes are the wanted one, as bits.
inline uint32_t matching(const Bucket& bucket, uint64_t hash) {
    uint32_t mask = uint32_t{bucket.hash[4] == hash} << 4;
#if defined(__SSE2__)
    const __m128i wanted = _mm_set1_epi64x(static_cast<long long>(hash));
    const auto* two = reinterpret_cast<const __m128i*>(bucket.hash);
    const auto equal = [wanted](__m128i pair) {
        const __m128i halves = _mm_cmpeq_epi32(pair, wanted);
        const __m128i both = _mm_and_si128(halves, _mm_shuffle_epi32(halves, 0xb1));
        return static_cast<uint32_t>(_mm_movemask_pd(_mm_castsi128_pd(both)));
    };
    return mask | equal(_mm_load_si128(two)) | equal(_mm_load_si128(two + 1)) << 2;
#else
    for (uint32_t i = 0; i < 4; ++i) mask |= uint32_t{bucket.hash[i] == hash} << i;
    return mask;
#endif
}

inline uint32_t Index::candidate(const Bucket& home, uint32_t mask) {
    if (mask != 0) [[likely]] {
        // An empty slot may match by what it held before; its row then is kNoRow, and as entries
        // fill from the front, no real match can follow it.
        const uint32_t row = home.row(static_cast<uint32_t>(__builtin_ctz(mask)));
        if (row != kNoRow) [[likely]]
            return row;
    }
    return home.displaced == 0 ? kNoRow : kUnsure;
}

}  // namespace hps
