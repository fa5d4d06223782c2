// Eviction: rows too old or of too low a score go, some partitions at every push.
#include <cmath>

#include "table.hpp"

namespace hps {

float Table::decay(uint64_t steps) const {
    return static_cast<float>(std::pow(config_.show_decay, static_cast<double>(steps)));
}

bool Table::expired(const char* fields, uint64_t step) const {
    const uint64_t age = step - field<uint32_t>(fields, layout_.step);
    if (config_.max_age != 0 && age > config_.max_age) return true;
    if (!config_.evict_by_score) return false;
    const float kept = decay(age);
    const double show = field<float>(fields, layout_.show) * kept;
    const double click = field<float>(fields, layout_.click) * kept;
    return config_.show_weight * (show - click) + config_.click_weight * click < config_.min_score;
}

// Rows of pulls not yet pushed must stay: their gradients are still to come.
std::vector<bool> Table::pinned_rows() const {
    std::vector<bool> pinned(size_t{rows_.num_blocks()} * rows_.rows_per_block());
    for (const Pulled* h : open_handles_) {
        for (uint32_t u = 0; u < h->num_distinct; ++u) {
            if (h->rows[u] != kNoRow) pinned[h->rows[u]] = true;
        }
    }
    return pinned;
}

uint64_t Table::sweep_partition(uint32_t partition, uint64_t step,
                                const std::vector<bool>& pinned) {
    uint64_t evicted = 0;
    for (const uint32_t b : rows_.blocks_of(partition)) {
        for (uint32_t i = 0; i < rows_.rows_per_block(); ++i) {
            if (!rows_.block(b).has(i)) continue;
            const uint32_t row = rows_.first_row(b) + i;
            if (!expired(rows_.view().fields(row), step) || pinned[row]) continue;
            index_.erase(Index::hash_of(rows_.view().key(row)));
            rows_.release(row);
            ++evicted;
        }
    }
    return evicted;
}

// Partition p is swept at every evict_every-th step, each partition at its own, whatever the
// shards: so no step pays for the whole table, and sharding changes nothing.
uint64_t Table::sweep(uint64_t step) {
    if (config_.max_age == 0 && !config_.evict_by_score) return 0;
    const uint64_t every = config_.evict_every;
    uint64_t evicted = 0;
    std::vector<bool> pinned;
    for (const uint32_t p : held_list_) {
        if (step % every != uint64_t{p} * every / config_.num_partitions) continue;
        if (pinned.empty()) pinned = pinned_rows();
        evicted += sweep_partition(p, step, pinned);
        if (cold_) evicted += sweep_cold(p, step);
    }
    stats_.evicted += evicted;
    return evicted;
}

}  // namespace hps
