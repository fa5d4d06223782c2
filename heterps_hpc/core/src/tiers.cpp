// Hot rows in memory, cold rows on disk. A row is promoted when a training pull wants it; a
// partition over its share of the budget demotes rows that were not used lately (a clock with a
// small use count per row, so frequent rows survive several turns). Rows of pulls not yet pushed
// are pinned. Nothing here changes a value: with or without tiers the table learns the same bits.
#include <algorithm>

#include "table.hpp"

namespace hps {
namespace {

// The field `heat`: pins in the upper 24 bits, uses in the lower 8.
constexpr uint32_t kPin = 256;
constexpr uint32_t kMaxUses = 7;

}  // namespace

void Table::pin(uint32_t row) {
    uint32_t& heat = field<uint32_t>(rows_.at(row), layout_.heat);
    heat += kPin + ((heat & (kPin - 1)) < kMaxUses);
}

void Table::unpin(const Pulled& handle) {
    for (uint32_t u = 0; u < handle.num_distinct; ++u) {
        if (handle.rows[u] != kNoRow)
            field<uint32_t>(rows_.at(handle.rows[u]), layout_.heat) -= kPin;
    }
    for (Clock& clock : clocks_) clock.limit = hot_limit_;
}

void Table::read_cold(uint32_t slot, char* row) const {
    if (!fetcher_->take(slot, row)) cold_->read(slot, row);
}

void Table::release_slot(uint32_t slot) {
    cold_->free(slot);
    fetcher_->forget(slot);
}

uint32_t Table::promote(uint32_t cold_row, const char* record, uint32_t partition) {
    make_room(partition);
    const uint32_t row = rows_.allocate(partition);
    before_write(row);
    char* p = rows_.at(row);
    std::memcpy(p, record, layout_.stride);
    field<uint32_t>(p, layout_.heat) = 1;
    index_.replace(Index::tag_of(key_at(p)), cold_row, row);
    release_slot(cold_row & ~kCold);
    ++stats_.promoted;
    return row;
}

// The next row that is neither pinned nor used since the hand last passed, or kNoRow.
uint32_t Table::next_victim(uint32_t partition) {
    Clock& clock = clocks_[partition];
    const auto& blocks = rows_.blocks_of(partition);
    const uint64_t turn = blocks.size() * rows_.rows_per_block();
    for (uint64_t passed = 0; passed < turn * (kMaxUses + 1); ++passed) {
        if (clock.row == rows_.rows_per_block()) {
            clock.row = 0;
            ++clock.block;
        }
        if (clock.block >= blocks.size()) clock.block = 0;
        const uint32_t b = blocks[clock.block];
        const uint32_t i = clock.row++;
        if (!rows_.block(b).has(i)) continue;
        const uint32_t row = rows_.first_row(b) + i;
        uint32_t& heat = field<uint32_t>(rows_.at(row), layout_.heat);
        if (heat == 0) return row;
        if ((heat & (kPin - 1)) != 0) --heat;
    }
    return kNoRow;
}

void Table::demote(uint32_t row, uint32_t partition) {
    const char* p = rows_.at(row);
    const uint32_t slot = cold_->append(partition, p);
    index_.replace(Index::tag_of(field<uint64_t>(p, layout_.key)), row, slot | kCold);
    rows_.release(row);
    ++stats_.demoted;
}

void Table::make_room(uint32_t partition) {
    Clock& clock = clocks_[partition];
    while (rows_.live(partition) >= clock.limit) {
        const uint32_t row = next_victim(partition);
        if (row == kNoRow) {
            // Every row is pinned: the batches under way need more than the budget. Let them have
            // it, some rows at a time, until their handles are closed.
            clock.limit = rows_.live(partition) + rows_.rows_per_block();
            return;
        }
        demote(row, partition);
    }
}

// Moves the live rows of one wasteful segment to the end of the log, which frees the segment.
// Cold rows change their numbers here, so nobody may hold one.
void Table::compact() {
    if (!cold_->wasteful()) return;
    const int64_t found = cold_->wasteful_segment();
    if (found < 0) return;
    const auto number = static_cast<uint32_t>(found);
    const uint32_t partition = cold_->segment(number).partition;
    const uint32_t used = cold_->segment(number).used;
    std::vector<char> rows(size_t{used} * layout_.stride);
    cold_->read_segment(number, used, rows.data());
    for (uint32_t i = 0; i < used; ++i) {
        if (!cold_->segment(number).has(i)) continue;
        const char* p = rows.data() + size_t{i} * layout_.stride;
        const uint32_t old = cold_->first_slot(number) + i;
        const uint32_t slot = cold_->append(partition, p);
        index_.replace(Index::tag_of(field<uint64_t>(p, layout_.key)), old | kCold, slot | kCold);
        release_slot(old);
    }
}

void Table::prefetch(const uint64_t* keys, int64_t n) {
    if (!cold_) return;
    const std::unique_lock lock(mutex_);
    constexpr int64_t kAhead = 16;
    std::vector<uint32_t> slots;
    for (int64_t i = 0; i < n; ++i) {
        if (i + kAhead < n) __builtin_prefetch(index_.home(Index::tag_of(keys[i + kAhead])));
        const uint32_t tag = Index::tag_of(keys[i]);
        const uint32_t row = Index::candidate(*index_.home(tag), tag);
        if (row >= kUnsure || (row & kCold) == 0) continue;
        const uint32_t slot = row & ~kCold;
        if (!cold_->in_memory(slot) && !fetcher_->knows(slot)) slots.push_back(slot);
    }
    std::sort(slots.begin(), slots.end());
    slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
    fetcher_->request(std::move(slots));
}

uint64_t Table::sweep_cold(uint32_t partition, uint64_t step) {
    uint64_t evicted = 0;
    std::vector<char> rows;
    for (const uint32_t number : cold_->segments_of(partition)) {
        const uint32_t used = cold_->segment(number).used;
        rows.resize(size_t{used} * layout_.stride);
        for (uint32_t i = 0; i < used && cold_->segment(number).buffer; ++i) {
            cold_->read(cold_->first_slot(number) + i, rows.data() + size_t{i} * layout_.stride);
        }
        if (!cold_->segment(number).buffer) cold_->read_segment(number, used, rows.data());
        for (uint32_t i = 0; i < used; ++i) {
            const char* p = rows.data() + size_t{i} * layout_.stride;
            if (!cold_->segment(number).has(i) || !expired(p, step)) continue;
            const uint32_t slot = cold_->first_slot(number) + i;
            index_.erase(Index::tag_of(field<uint64_t>(p, layout_.key)), slot | kCold);
            release_slot(slot);
            ++evicted;
        }
    }
    return evicted;
}

}  // namespace hps
