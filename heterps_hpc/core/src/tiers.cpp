// Hot rows in memory, cold rows on disk. A row is promoted when a training pull wants it; a
// partition over its part of the budget demotes rows that were not used lately (a clock with a
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
    uint32_t& h = heat(row);
    h += kPin + ((h & (kPin - 1)) < kMaxUses);
}

void Table::unpin(const Pulled& handle) {
    constexpr uint32_t kAhead = 16;
    for (uint32_t u = 0; u < handle.num_distinct; ++u) {
        if (u + kAhead < handle.num_distinct && handle.rows[u + kAhead] != kNoRow) {
            __builtin_prefetch(&heat(handle.rows[u + kAhead]), 1);
        }
        if (handle.rows[u] != kNoRow) heat(handle.rows[u]) -= kPin;
    }
    for (Clock& clock : clocks_) clock.limit = hot_limit_;
}

void Table::read_cold(uint32_t cold_row, char* record) const {
    const uint32_t slot = cold_row & ~kCold;
    if (!fetcher_->take(slot, record)) cold_->read(slot, record);
}

void Table::release_slot(uint32_t slot) {
    cold_->free(slot);
    fetcher_->forget(slot);
}

uint32_t Table::promote(uint64_t hash, uint32_t cold_row, uint32_t partition) {
    keep_budget(partition);
    record_.resize(layout_.record_bytes);
    read_cold(cold_row, record_.data());
    const uint32_t row = rows_.allocate(partition);
    before_write(row);
    rows_.restore(row, record_.data());
    heat(row) = 1;
    index_.replace(hash, row);
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
        uint32_t& h = heat(row);
        __builtin_prefetch(&h + size_t{kAhead} * layout_.fields_bytes / 4, 1);
        if (h == 0) return row;
        if ((h & (kPin - 1)) != 0) --h;
    }
    return kNoRow;
}

void Table::demote(uint32_t row, uint32_t partition) {
    record_.resize(layout_.record_bytes);
    rows_.save(row, record_.data());
    const uint32_t slot = cold_->append(partition, record_.data());
    index_.replace(Index::hash_of(rows_.view().key(row)), slot | kCold);
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
        heat(victims[n]) = kPin;  // not to be found a second time
        __builtin_prefetch(rows_.view().vector(victims[n]));
        __builtin_prefetch(index_.home(Index::hash_of(rows_.view().key(victims[n]))), 1);
    }
    size_t demoted = 0;
    try {
        for (; demoted < n; ++demoted) demote(victims[demoted], partition);
    } catch (...) {  // they stay in memory, and may be chosen again
        for (; demoted < n; ++demoted) heat(victims[demoted]) = 0;
        throw;
    }
    return n > 0;
}

// Demotes rows until one more is within the budget.
void Table::keep_budget(uint32_t partition) {
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
    std::vector<char> rows(size_t{used} * layout_.record_bytes);
    cold_->read_segment(number, used, rows.data());
    for (uint32_t i = 0; i < used; ++i) {
        if (!cold_->has(number, i)) continue;
        const char* p = rows.data() + size_t{i} * layout_.record_bytes;
        const uint32_t old = cold_->first_slot(number) + i;
        const uint32_t slot = cold_->append(partition, p);
        index_.replace(Index::hash_of(field<uint64_t>(p, layout_.record_key)), slot | kCold);
        release_slot(old);
    }
}

void Table::prefetch(const uint64_t* keys, int64_t n) {
    if (!cold_) return;
    constexpr int64_t kAtOnce = 64;
    std::array<uint64_t, 4096> recent{};  // most keys of a batch have just been seen
    std::array<uint64_t, kAtOnce> hashes;
    std::vector<uint32_t> slots;
    const std::unique_lock lock(mutex_);
    for (int64_t at = 0; at < n; at += kAtOnce) {
        size_t num_hashes = 0;
        for (int64_t i = at; i < std::min(at + kAtOnce, n); ++i) {
            const uint64_t hash = Index::hash_of(keys[i]);
            uint64_t& last = recent[hash % recent.size()];
            hashes[num_hashes] = hash;
            num_hashes += last != hash;
            last = hash;
            __builtin_prefetch(index_.home(hash));
        }
        for (size_t i = 0; i < num_hashes; ++i) {
            const uint32_t row = index_.find(hashes[i]);
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
        rows.resize(size_t{used} * layout_.record_bytes);
        for (uint32_t i = 0; i < used && cold_->segment(number).buffer; ++i) {
            cold_->read(cold_->first_slot(number) + i,
                        rows.data() + size_t{i} * layout_.record_bytes);
        }
        if (!cold_->segment(number).buffer) cold_->read_segment(number, used, rows.data());
        for (uint32_t i = 0; i < used; ++i) {
            const char* p = rows.data() + size_t{i} * layout_.record_bytes;
            if (!cold_->has(number, i) || !expired(p + layout_.record_fields, step)) continue;
            index_.erase(Index::hash_of(field<uint64_t>(p, layout_.record_key)));
            release_slot(cold_->first_slot(number) + i);
            ++evicted;
        }
    }
    return evicted;
}

}  // namespace hps
