// Hot rows in memory, cold rows on disk. A row is promoted when a training pull wants it; a
// partition over its share of the budget demotes rows that were not used lately (a clock with a
// small use count per row, so frequent rows survive several turns). Rows of pulls not yet pushed
// are pinned. Nothing here changes a value: with or without tiers the table learns the same bits.
#include <algorithm>
#include <array>

#include "table.hpp"

namespace hps {
namespace {

// The field `heat`: pins in the upper 24 bits, uses in the lower 8.
constexpr uint32_t kPin = 256;
constexpr uint32_t kMaxUses = 7;
constexpr size_t kMaxVictims = 16;  // demoted at once, so that their cache misses overlap

}  // namespace

void Table::pin(uint32_t row) {
    uint32_t& heat = field<uint32_t>(rows_.at(row), layout_.heat);
    heat += kPin + ((heat & (kPin - 1)) < kMaxUses);
}

void Table::unpin(const Pulled& handle) {
    constexpr uint32_t kAhead = 16;
    const auto heat = [&](uint32_t row) {
        return reinterpret_cast<uint32_t*>(rows_.at(row) + layout_.heat);
    };
    for (uint32_t u = 0; u < handle.num_distinct; ++u) {
        if (u + kAhead < handle.num_distinct && handle.rows[u + kAhead] != kNoRow) {
            __builtin_prefetch(heat(handle.rows[u + kAhead]), 1);
        }
        if (handle.rows[u] != kNoRow) *heat(handle.rows[u]) -= kPin;
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
    constexpr uint32_t kAhead = 8;
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
        char* p = rows_.at(row);
        __builtin_prefetch(p + size_t{kAhead} * layout_.stride + layout_.heat, 1);
        uint32_t& heat = field<uint32_t>(p, layout_.heat);
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

// Demotes some rows of a partition; false = there is none that is not pinned.
bool Table::demote_some(uint32_t partition) {
    std::array<uint32_t, kMaxVictims> victims;
    const size_t wanted = std::clamp<size_t>(hot_limit_ / 64, 1, kMaxVictims);
    size_t n = 0;
    for (; n < wanted; ++n) {
        victims[n] = next_victim(partition);
        if (victims[n] == kNoRow) break;
        char* p = rows_.at(victims[n]);
        field<uint32_t>(p, layout_.heat) = kPin;  // not to be found a second time
        __builtin_prefetch(index_.home(Index::tag_of(key_at(p))), 1);
    }
    size_t demoted = 0;
    try {
        for (; demoted < n; ++demoted) demote(victims[demoted], partition);
    } catch (...) {  // they stay in memory, and may be chosen again
        for (; demoted < n; ++demoted) {
            field<uint32_t>(rows_.at(victims[demoted]), layout_.heat) = 0;
        }
        throw;
    }
    return n > 0;
}

void Table::make_room(uint32_t partition) {
    Clock& clock = clocks_[partition];
    while (rows_.live(partition) >= clock.limit) {
        if (demote_some(partition)) continue;
        // Every row is pinned: the batches under way need more than the budget. Let them have it,
        // some rows at a time, until their handles are closed.
        clock.limit = rows_.live(partition) + rows_.rows_per_block();
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
        if (!cold_->has(number, i)) continue;
        const char* p = rows.data() + size_t{i} * layout_.stride;
        const uint32_t old = cold_->first_slot(number) + i;
        const uint32_t slot = cold_->append(partition, p);
        index_.replace(Index::tag_of(field<uint64_t>(p, layout_.key)), old | kCold, slot | kCold);
        release_slot(old);
    }
}

void Table::prefetch(const uint64_t* keys, int64_t n) {
    if (!cold_) return;
    constexpr int64_t kAtOnce = 64;
    std::array<uint32_t, 4096> recent{};  // tags: most keys of a batch have just been seen
    std::array<uint32_t, kAtOnce> tags;
    std::vector<uint32_t> slots;
    const std::unique_lock lock(mutex_);
    for (int64_t at = 0; at < n; at += kAtOnce) {
        size_t num_tags = 0;
        for (int64_t i = at; i < std::min(at + kAtOnce, n); ++i) {
            const uint32_t tag = Index::tag_of(keys[i]);
            uint32_t& last = recent[tag % recent.size()];
            tags[num_tags] = tag;
            num_tags += last != tag;
            last = tag;
            __builtin_prefetch(index_.home(tag));
        }
        for (size_t i = 0; i < num_tags; ++i) {
            const uint32_t row = Index::candidate(*index_.home(tags[i]), tags[i]);
            if (is_cold(row) && !cold_->in_memory(row & ~kCold)) slots.push_back(row & ~kCold);
        }
    }
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
            if (!cold_->has(number, i) || !expired(p, step)) continue;
            const uint32_t slot = cold_->first_slot(number) + i;
            index_.erase(Index::tag_of(field<uint64_t>(p, layout_.key)), slot | kCold);
            release_slot(slot);
            ++evicted;
        }
    }
    return evicted;
}

}  // namespace hps
