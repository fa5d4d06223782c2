// Which keys of a batch are equal: lists every key once, in order of first appearance, and gives
// each its place in the list. A batch names its frequent keys over and over; with the list the
// table is asked once for each, and everything per key is an access to memory small enough for the
// cache.
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
        if (keys_.size() <= n) {
            keys_.resize(n + 1);
            tags_.resize(n + 1);
        }
        size_ = 0;
        // Most large batches have few distinct keys: start small, grow if they have not.
        clear(std::bit_ceil(std::max({n / 2, std::min<uint64_t>(4 * n, 16384), kLeastSlots})));
    }

    void add(const uint64_t* keys, int64_t n, uint32_t* member) {
        for (int64_t at = 0; at < n; at += kAtOnce) {
            if (size_ + uint64_t{kAtOnce} > limit_) grow();
            add_some(keys + at, std::min<int64_t>(kAtOnce, n - at), member + at);
        }
    }

    uint32_t size() const { return size_; }
    const uint64_t* keys() const { return keys_.data(); }
    const uint32_t* tags() const { return tags_.data(); }  // the lower half of each key's hash

 private:
    static constexpr uint32_t kFree = 0xffffffffu;
    static constexpr uint64_t kLeastSlots = 256;
    static constexpr uint32_t kAtOnce = 64;  // keys between two looks at the room that is left

    void clear(uint64_t capacity) {
        if (slots_.size() < capacity) slots_.resize(capacity);
        std::fill_n(slots_.begin(), capacity, kFree);
        limit_ = capacity / 2;
        mask_ = static_cast<uint32_t>(capacity - 1);
        shift_ = 32 - std::min(static_cast<int>(std::bit_width(capacity)) - 1, 31);
    }

    void grow() {
        clear((uint64_t{mask_} + 1) * 2);
        for (uint32_t place = 0; place < size_; ++place) {
            uint32_t slot = tags_[place] >> shift_;
            while (slots_[slot] != kFree) slot = (slot + 1) & mask_;
            slots_[slot] = place;
        }
    }

    // Hides which one it is from the compiler, which would make a branch of it.
    static uint32_t hidden_min(uint32_t a, uint32_t b) {
        uint32_t least = std::min(a, b);
        asm("" : "+r"(least));
        return least;
    }

    // Whether a key is new is a coin toss to the processor, so there is no branch on it: the key is
    // put behind the last one of the list, and a free slot leads there, where it finds itself.
    void add_some(const uint64_t* keys, int64_t n, uint32_t* member) {
        uint32_t* slots = slots_.data();
        uint64_t* listed = keys_.data();
        uint32_t* tags = tags_.data();
        const uint32_t mask = mask_;
        const int shift = shift_;
        uint32_t size = size_;
        for (int64_t i = 0; i < n; ++i) {
            const uint64_t key = keys[i];
            const auto tag = static_cast<uint32_t>(mix64(key));
            listed[size] = key;
            tags[size] = tag;
            uint32_t slot = tag >> shift;
            uint32_t place = hidden_min(slots[slot], size);
            while (listed[place] != key) [[unlikely]] {
                slot = (slot + 1) & mask;
                place = hidden_min(slots[slot], size);
            }
            slots[slot] = place;
            member[i] = place;
            size += place == size;
        }
        size_ = size;
    }

    std::vector<uint64_t> keys_;
    std::vector<uint32_t> tags_;
    std::vector<uint32_t> slots_;  // places; open addressing
    uint64_t limit_ = 0;
    uint32_t size_ = 0, mask_ = 0;
    int shift_ = 0;
};

}  // namespace hps
