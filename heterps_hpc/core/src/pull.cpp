// The pull: keys -> distinct keys -> rows -> pooled vectors.
#include <algorithm>

#include "lookup.hpp"
#include "phases.hpp"
#include "prefetch.hpp"

namespace hps {
namespace {

constexpr int64_t kBlockKeys = 1024;  // at once on one thread: what fits into the cache
static_assert(Distinct::kAtOnce <= kHashesAtOnce);

}  // namespace

void Table::pull_alone(Lookup& l) {
    const PullArgs& a = l.args;
    Distinct& distinct = l.scratch.distinct[0];
    auto& misses = l.scratch.misses[0];
    PoolArgs pool = l.pool_args(layout_.dim);
    bool any_absent = false;
    distinct.start(a.num_keys);
    do {
        pool.key_end = std::min(pool.key_begin + kBlockKeys, a.num_keys);
        const uint32_t first = distinct.size();
        const Homes homes = index_.homes();
        distinct.add(a.keys + pool.key_begin, pool.key_end - pool.key_begin,
                     l.member + pool.key_begin,
                     [&](const uint64_t* keys, uint32_t n, uint64_t* hashes) {
                         kernels_.hash_keys(keys, n, &homes, hashes);
                     });
        look_up(distinct.hashes(), first, distinct.size(), l.rows, l.scratch.vectors.data(),
                misses);
        any_absent |= settle_all(l, first, distinct.size(), misses);
        if (any_absent) note_absent(l, pool.key_begin, pool.key_end);
        kernels_.pool(pool);
        pool.key_begin = pool.key_end;
    } while (pool.key_begin < a.num_keys);
}

void Table::pull_rows(Lookup& l) {
    // Pins are not counted atomically, so a training pull of a table with tiers is one thread's.
    const bool alone =
        l.args.num_keys < kParallelMinKeys || (cold_ != nullptr && l.handle != nullptr);
    const int threads = alone ? 1 : config_.threads;
    l.scratch.start(threads, l.args.num_keys, layout_.wide_bytes);
    for (auto& misses : l.scratch.misses) misses.clear();
    if (threads > 1) {
        pull_parallel(l, threads);
    } else {
        pull_alone(l);
    }
}

void Table::evaluate(const PullArgs& a) {
    PullScratch& scratch = PullScratch::mine();
    const auto num_keys = static_cast<size_t>(a.num_keys);
    if (scratch.rows.size() < num_keys) {
        scratch.rows.resize(num_keys);
        scratch.member.resize(num_keys);
    }
    Lookup lookup{a, nullptr, scratch, scratch.rows.data(), scratch.member.data()};
    const std::shared_lock lock(mutex_);
    eval_keys_.fetch_add(static_cast<uint64_t>(a.num_keys), std::memory_order_relaxed);
    if (a.num_samples > 0) pull_rows(lookup);
}

std::shared_ptr<Pulled> Table::new_handle(const PullArgs& a) {
    auto handle = std::make_shared<Pulled>(shared_from_this());
    handle->num_samples = a.num_samples;
    handle->mean = a.mean;
    if (a.offsets != nullptr) handle->offsets.assign(a.offsets, a.offsets + a.num_samples + 1);
    if (a.weights != nullptr) {
        const auto* w = static_cast<const char*>(a.weights);
        handle->weights.assign(w, w + static_cast<size_t>(a.num_keys) * layout_.value_bytes);
    }
    return handle;
}

std::shared_ptr<Pulled> Table::pull(const PullArgs& a) {
    if (a.num_keys >= int64_t{UINT32_MAX}) {
        throw std::invalid_argument("pull: more than 2^32 keys in one batch; use smaller batches");
    }
    if (!a.train) {
        evaluate(a);
        return nullptr;
    }
    auto handle = new_handle(a);
    const std::unique_lock lock(mutex_);
    spares_.reserve(open_handles_.size() + 1);  // closing a handle must not fail
    if (!spares_.empty()) {
        handle->rows.swap(spares_.back().rows);
        handle->member.swap(spares_.back().member);
        handle->hashes.swap(spares_.back().hashes);
        handle->hashes.clear();
        spares_.pop_back();
    }
    const auto num_keys = static_cast<size_t>(a.num_keys);
    handle->num_keys = num_keys;
    if (handle->rows.size() < num_keys) {
        handle->rows.resize(num_keys);
        handle->member.resize(num_keys);
    }
    // A pull that fails half way unpins the rows that it had got so far.
    if (cold_) std::fill_n(handle->rows.begin(), num_keys, kNoRow);
    handle->num_distinct = cold_ ? static_cast<uint32_t>(num_keys) : 0;
    open_handles_.insert(handle.get());
    handle->open = true;
    stats_.pulled_keys += static_cast<uint64_t>(a.num_keys);
    if (a.num_samples == 0) return handle;
    PullScratch& scratch = PullScratch::mine();
    Lookup lookup{a, handle.get(), scratch, handle->rows.data(), handle->member.data()};
    try {
        pull_rows(lookup);
        if (config_.precision != Precision::kFull) {
            handle->hashes.assign(lookup.hashes(), lookup.hashes() + scratch.distinct[0].size());
        }
    } catch (...) {
        close(*handle);
        throw;
    }
    handle->num_distinct = scratch.distinct[0].size();
    return handle;
}

}  // namespace hps
