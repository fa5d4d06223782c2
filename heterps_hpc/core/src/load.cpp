// Saved rows come back: looked up and written some at a time, so that their cache misses are in
// flight together.
#include <algorithm>
#include <cstring>

#include "scratch.hpp"
#include "table.hpp"

namespace hps {

// The row of a key that look_up() did not find; made if there is none.
uint32_t Table::row_to_load(uint64_t key, uint32_t partition, bool certain,
                            std::vector<char>& record) {
    const uint32_t row = certain ? kNoRow : find(key, record);
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

void Table::load(uint32_t partition, const RowArrays& in, int64_t n) {
    constexpr int64_t kBlockKeys = 1024;
    // With tiers, making room for one row may take another out of memory.
    const int64_t at_once = cold_ ? 1 : kBlockKeys;
    const std::unique_lock lock(mutex_);
    Distinct keys;
    std::vector<uint32_t> member(kBlockKeys), rows(kBlockKeys);
    std::vector<Miss> misses;
    std::vector<const char*> vectors(kBlockKeys);
    std::vector<char> record;
    for (int64_t first = 0; first < n; first += at_once) {
        const int64_t count = std::min(at_once, n - first);
        if (cold_) compact();
        keys.start(count);
        keys.add(in.keys + first, count, member.data());
        misses.clear();
        look_up(keys, 0, keys.size(), rows.data(), vectors.data(), misses);
        for (const Miss& miss : misses) {
            rows[miss.place] =
                row_to_load(keys.keys()[miss.place], partition, miss.candidate == kNoRow, record);
        }
        for (int64_t i = 0; i < count; ++i) {
            write_row(rows[member[static_cast<size_t>(i)]], in, static_cast<size_t>(first + i));
        }
    }
}

}  // namespace hps
