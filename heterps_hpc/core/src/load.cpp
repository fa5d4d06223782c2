// Saved rows come back, in the order of the index; what the next ones need is fetched meanwhile.
#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>

#include "table.hpp"

namespace hps {
namespace {

// The places of some keys in about the order in which the index holds them, equal keys in the order
// given. A large index has too many pages for the processor to know where all of them are; sorted,
// it must learn of each page once, not once per key.
class IndexOrder {
 public:
    void sort(const uint64_t* keys, size_t n) {
        tags_.resize(n);
        places_.resize(n);
        std::array<uint32_t, (1u << kBits) + 1> start{};
        for (size_t i = 0; i < n; ++i) {
            tags_[i] = Index::tag_of(keys[i]);
            ++start[(tags_[i] >> (32 - kBits)) + 1];
        }
        std::partial_sum(start.begin(), start.end(), start.begin());
        for (size_t i = 0; i < n; ++i)
            places_[start[tags_[i] >> (32 - kBits)]++] = static_cast<uint32_t>(i);
    }
    size_t size() const { return places_.size(); }
    uint32_t place(size_t i) const { return places_[i]; }
    uint32_t tag(size_t i) const { return tags_[places_[i]]; }

 private:
    static constexpr int kBits = 10;
    std::vector<uint32_t> tags_, places_;
};

}  // namespace

// The row of a key; made if there is none.
uint32_t Table::row_to_load(uint64_t key, uint32_t partition, std::vector<char>& record) {
    const uint32_t tag = Index::tag_of(key);
    const bool absent = Index::candidate(*index_.home(tag), tag) == kNoRow;
    const uint32_t row = absent ? kNoRow : find(key, record);
    if (row == kNoRow) {
        ++stats_.loaded;
        return new_row(key, partition);
    }
    return (row & kCold) != 0 ? promote(row, record.data(), partition) : row;
}

void Table::write_row(uint32_t row, const RowArrays& in, size_t i) {
    const size_t vector_bytes = size_t{layout_.dim} * layout_.value_bytes;
    const size_t state_bytes = size_t{layout_.state_dim} * layout_.value_bytes;
    before_write(row);
    char* p = rows_.at(row);
    std::memcpy(p, in.vectors + i * vector_bytes, vector_bytes);
    std::memcpy(p + layout_.state, in.state + i * state_bytes, state_bytes);
    if (layout_.step != 0) field<uint32_t>(p, layout_.step) = in.step[i];
    if (layout_.show != 0) {
        field<float>(p, layout_.show) = in.show[i];
        field<float>(p, layout_.click) = in.click[i];
    }
}

void Table::reserve(uint64_t num_rows) {
    const std::unique_lock lock(mutex_);
    const size_t held = held_list_.size();
    const uint64_t in_memory = cold_ ? std::min(num_rows, hot_limit_ * held) : num_rows;
    if (in_memory > kMaxRow) {
        throw std::invalid_argument("table: room for " + std::to_string(in_memory) +
                                    " rows, but a shard has at most 2^31; use more shards");
    }
    if (rows_.size() != 0) return;
    stop_touching_ = false;
    arena_.reserve(Index::bytes_for(num_rows) + rows_.bytes_for(in_memory, held));
    index_.reserve(num_rows);
}

void Table::touch_reserved() {
    Arena::Room room;
    {
        const std::shared_lock lock(mutex_);
        room = arena_.reserved();
    }
    Arena::touch(room, stop_touching_);
}

void Table::load(uint32_t partition, const RowArrays& in, int64_t n) {
    constexpr int64_t kAtOnce = 16384;
    constexpr size_t kAhead = 32;
    const size_t vector_bytes = size_t{layout_.dim} * layout_.value_bytes;
    const std::unique_lock lock(mutex_);
    IndexOrder order;
    std::vector<char> record;
    for (int64_t first = 0; first < n; first += kAtOnce) {
        order.sort(in.keys + first, static_cast<size_t>(std::min(kAtOnce, n - first)));
        const auto place = [&](size_t i) { return static_cast<size_t>(first) + order.place(i); };
        for (size_t i = 0; i < order.size(); ++i) {
            if (i + kAhead < order.size()) {
                __builtin_prefetch(index_.home(order.tag(i + kAhead)), 1);
                const char* vector = in.vectors + place(i + kAhead) * vector_bytes;
                __builtin_prefetch(vector);
                __builtin_prefetch(vector + 63);
            }
            if (cold_) compact();
            write_row(row_to_load(in.keys[place(i)], partition, record), in, place(i));
        }
    }
}

}  // namespace hps
