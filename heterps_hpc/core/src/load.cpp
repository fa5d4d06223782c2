// Saved rows come back, in the order of the index; what the next ones need is fetched meanwhile.
#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "table.hpp"

namespace hps {
namespace {

// The places of some keys in about the order in which the index holds them, equal keys in the order
// given. A large index has too many pages for the processor to know where all of them are; sorted,
// it must learn of each page once, not once per key.
class IndexOrder {
 public:
    void sort(const uint64_t* keys, size_t n) {
        hashes_.resize(n);
        places_.resize(n);
        std::array<uint32_t, (1u << kBits) + 1> start{};
        for (size_t i = 0; i < n; ++i) {
            hashes_[i] = Index::hash_of(keys[i]);
            ++start[(hashes_[i] >> (64 - kBits)) + 1];
        }
        std::partial_sum(start.begin(), start.end(), start.begin());
        for (size_t i = 0; i < n; ++i)
            places_[start[hashes_[i] >> (64 - kBits)]++] = static_cast<uint32_t>(i);
    }
    size_t size() const { return places_.size(); }
    uint32_t place(size_t i) const { return places_[i]; }
    uint64_t hash(size_t i) const { return hashes_[places_[i]]; }

 private:
    static constexpr int kBits = 10;
    std::vector<uint64_t> hashes_;
    std::vector<uint32_t> places_;
};

}  // namespace

// The row of a key; made if there is none.
uint32_t Table::row_to_load(uint64_t key, uint64_t hash, uint32_t partition) {
    const uint32_t row = index_.find(hash);
    if (row == kNoRow) {
        ++stats_.loaded;
        return new_row(key, hash, partition);
    }
    return is_cold(row) ? promote(hash, row, partition) : row;
}

void Table::write_row(uint32_t row, const RowArrays& in, size_t i) {
    before_write(row);
    const RowParts to = rows_.view().parts(row);
    kernels_.narrow(in.vectors + i * layout_.wide_bytes, to.vectors, layout_.dim);
    std::memcpy(to.states, in.state + i * layout_.state_bytes, layout_.state_bytes);
    if (layout_.has_steps()) field<uint32_t>(to.fields, layout_.step) = in.step[i];
    if (layout_.has_counters()) {
        field<float>(to.fields, layout_.show) = in.show[i];
        field<float>(to.fields, layout_.click) = in.click[i];
    }
}

void Table::load(uint32_t partition, const RowArrays& in, int64_t n) {
    constexpr int64_t kAtOnce = 16384;
    constexpr size_t kAhead = 32;
    const std::unique_lock lock(mutex_);
    IndexOrder order;
    for (int64_t first = 0; first < n; first += kAtOnce) {
        order.sort(in.keys + first, static_cast<size_t>(std::min(kAtOnce, n - first)));
        const auto place = [&](size_t i) { return static_cast<size_t>(first) + order.place(i); };
        for (size_t i = 0; i < order.size(); ++i) {
            if (i + kAhead < order.size()) {
                __builtin_prefetch(index_.home(order.hash(i + kAhead)), 1);
                const char* vector = in.vectors + place(i + kAhead) * layout_.wide_bytes;
                __builtin_prefetch(vector);
                __builtin_prefetch(vector + 63);
            }
            if (cold_) compact();
            const uint32_t row = row_to_load(in.keys[place(i)], order.hash(i), partition);
            write_row(row, in, place(i));
        }
    }
}

}  // namespace hps
