// Which keys of a batch are equal: lists the hash of every key once, in order of first appearance,
// and gives each key its place in the list. A batch names its frequent keys over and over; with the
// list the table is asked once for each, and everything per key is an access to memory small enough
// for the cache.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "hash.hpp"

namespace hps {

class Distinct {
 public:
    // Forgets all keys; at most num_keys will be added.
    void start(int64_t num_keys) {
        const auto n = static_cast<uint64_t>(num_keys);
        if (hashes_.size() <= n) hashes_.resize(n + 1);
        size_ = 0;
        num_keys_ = n;
        num_added_ = 0;
        // Most large batches have few distinct keys: start small, grow if they have not.
        clear(std::bit_ceil(std::max({n / 2, std::min<uint64_t>(4 * n, 16384), kLeastSlots})));
    }

    static constexpr uint32_t kAtOnce = 64;  // keys

    // `hash_some(keys, n, hashes)` hashes up to kAtOnce keys.
    template <class HashSome>
    void add(const uint64_t* keys, int64_t n, uint32_t* member, HashSome hash_some) {
        uint64_t hashes[kAtOnce];
        for (int64_t at = 0; at < n; at += kAtOnce) {
            const auto some = static_cast<uint32_t>(std::min<int64_t>(kAtOnce, n - at));
            hash_some(keys + at, some, hashes);
            add_some(hashes, some, member + at);
        }
    }
    void add_hashes(const uint64_t* hashes, int64_t n, uint32_t* member) {
        for (int64_t at = 0; at < n; at += kAtOnce) {
            const auto some = static_cast<uint32_t>(std::min<int64_t>(kAtOnce, n - at));
            add_some(hashes + at, some, member + at);
        }
    }

    uint32_t size() const { return size_; }
    const uint64_t* hashes() const { return hashes_.data(); }

 private:
    static constexpr uint32_t kFree = 0xffffffffu;
    static constexpr uint64_t kLeastSlots = 256;

    void clear(uint64_t capacity) {
        if (slots_.size() < capacity) slots_.resize(capacity);
        std::fill_n(slots_.begin(), capacity, kFree);
        limit_ = capacity / 2;
        mask_ = static_cast<uint32_t>(capacity - 1);
        shift_ = 32 - std::min(static_cast<int>(std::bit_width(capacity)) - 1, 31);
    }

    uint32_t first_slot(uint64_t hash) const { return static_cast<uint32_t>(hash) >> shift_; }

    // To what all keys will need if they go on as they began.
    void grow() {
        const uint64_t expected = num_keys_ * size_ / std::max<uint64_t>(num_added_, 1);
        clear(std::max((uint64_t{mask_} + 1) * 2, std::bit_ceil(2 * expected)));
        for (uint32_t place = 0; place < size_; ++place) {
            uint32_t slot = first_slot(hashes_[place]);
            while (slots_[slot] != kFree) slot = (slot + 1) & mask_;
            slots_[slot] = place;
        }
    }

    // 1 or 0, of which the compiler would make a branch if it saw where that comes from.
    static uint32_t is_free(uint32_t content) {
        uint32_t free = content == kFree;
        asm("" : "+r"(free));
        return free;
    }

    // Where a slot leads. The size of the list comes in last: the next key waits for nothing else.
    static uint32_t place_of(uint32_t content, uint32_t free, uint32_t size) {
        return content + ((size + 1) & (0 - free));  // kFree + 1 is 0
    }

    // Whether a key is new is a coin toss to the processor, so there is no branch on it: the key is
    // put behind the last one of the list, and a free slot leads there, where it finds itself.
    void add_some(const uint64_t* hashes, uint32_t n, uint32_t* member) {
        if (size_ + uint64_t{kAtOnce} > limit_) grow();
        uint32_t* slots = slots_.data();
        uint64_t* listed = hashes_.data();
        const uint32_t mask = mask_;
        const int shift = shift_;
        uint32_t size = size_;
        for (uint32_t i = 0; i < n; ++i) {
            const uint64_t hash = hashes[i];
            listed[size] = hash;
            uint32_t slot = static_cast<uint32_t>(hash) >> shift;
            uint32_t free = is_free(slots[slot]);
            uint32_t place = place_of(slots[slot], free, size);
            while (listed[place] != hash) [[unlikely]] {
                slot = (slot + 1) & mask;
                free = is_free(slots[slot]);
                place = place_of(slots[slot], free, size);
            }
            slots[slot] = place;
            member[i] = place;
            size += free;
        }
        size_ = size;
        num_added_ += n;
    }

    std::vector<uint64_t> hashes_;
    std::vector<uint32_t> slots_;  // places; open addressing
    uint64_t num_keys_ = 0, num_added_ = 0;
    uint64_t limit_ = 0;
    uint32_t size_ = 0, mask_ = 0;
    int shift_ = 0;
};

}  // namespace hps
