// The pull: keys -> distinct keys -> rows -> pooled vectors.
#include <algorithm>

#include "lookup.hpp"
#include "parallel.hpp"

namespace hps {
namespace {

constexpr int64_t kBlockKeys = 1024;  // at once on one thread: what fits into the cache

PoolArgs pool_args(const PullArgs& a, const uint32_t* member, const char* const* vectors,
                   uint32_t dim) {
    PoolArgs p{};
    p.vectors = vectors;
    p.member = member;
    p.offsets = a.offsets;
    p.num_samples = a.num_samples;
    p.weights = a.weights;
    p.mean = a.mean;
    p.out = a.out;
    p.out_stride = a.out_stride;
    p.dim = dim;
    return p;
}

}  // namespace

void Table::pull_alone(Lookup& l) {
    const PullArgs& a = l.args;
    Distinct& distinct = l.scratch.distinct[0];
    auto& misses = l.scratch.misses[0];
    PoolArgs pool = pool_args(a, l.member, l.scratch.vectors.data(), layout_.dim);
    bool any_absent = false;
    distinct.start(a.num_keys);
    do {
        pool.key_end = std::min(pool.key_begin + kBlockKeys, a.num_keys);
        const uint32_t first = distinct.size();
        distinct.add(a.keys + pool.key_begin, pool.key_end - pool.key_begin,
                     l.member + pool.key_begin);
        look_up(distinct, first, distinct.size(), l.rows, l.scratch.vectors.data(), misses);
        any_absent |= settle_all(l, first, distinct.size(), misses);
        if (any_absent) note_absent(l, pool.key_begin, pool.key_end);
        kernels_.pool(pool);
        pool.key_begin = pool.key_end;
    } while (pool.key_begin < a.num_keys);
}

// Threads list the keys of their own samples, and the lists are joined in order: places are then
// in order of first appearance, whatever the number of threads.
void Table::pull_together(Lookup& l, int threads) {
    const PullArgs& a = l.args;
    PullScratch& s = l.scratch;
    std::vector<int64_t> sample(static_cast<size_t>(threads) + 1, a.num_samples);
    const auto first_sample = [&](int t) { return sample[static_cast<size_t>(t)]; };
    const auto first_key = [&](int t) {
        return a.offsets == nullptr ? first_sample(t) : a.offsets[first_sample(t)];
    };
    sample[0] = 0;
    for (int t = 1; t < threads; ++t) {
        const int64_t key = a.num_keys / threads * t;
        const auto* end = a.offsets + a.num_samples;
        sample[static_cast<size_t>(t)] =
            a.offsets == nullptr ? key : std::lower_bound(a.offsets, end, key) - a.offsets;
    }
    const auto list = [&](int t) {
        Distinct& mine = s.distinct[static_cast<size_t>(t)];
        mine.start(t == 0 ? a.num_keys : first_key(t + 1) - first_key(t));
        mine.add(a.keys + first_key(t), first_key(t + 1) - first_key(t), l.member + first_key(t));
    };
    const auto join = [&](int share) {
        for (size_t t = 1; share == 0 && t < static_cast<size_t>(threads); ++t) {
            const Distinct& other = s.distinct[t];
            if (s.place[t].size() < other.size()) s.place[t].resize(other.size());
            s.distinct[0].add(other.keys(), other.size(), s.place[t].data());
        }
    };
    const auto look = [&](int t) {
        const uint32_t* place = s.place[static_cast<size_t>(t)].data();
        for (int64_t k = first_key(t); t > 0 && k < first_key(t + 1); ++k) {
            l.member[k] = place[l.member[k]];
        }
        const uint64_t n = s.distinct[0].size();
        const auto share = [&](int i) {
            return static_cast<uint32_t>(n * static_cast<uint64_t>(i) /
                                         static_cast<uint64_t>(threads));
        };
        look_up(s.distinct[0], share(t), share(t + 1), l.rows, s.vectors.data(),
                s.misses[static_cast<size_t>(t)]);
    };
    const auto settle = [&](int share) {
        if (share != 0) return;
        auto& all = s.misses[0];
        for (size_t t = 1; t < static_cast<size_t>(threads); ++t) {
            all.insert(all.end(), s.misses[t].begin(), s.misses[t].end());
            s.misses[t].clear();
        }
        if (settle_all(l, 0, s.distinct[0].size(), all)) note_absent(l, 0, a.num_keys);
    };
    const auto pool = [&](int t) {
        PoolArgs p = pool_args(a, l.member, s.vectors.data(), layout_.dim);
        p.sample = first_sample(t);
        p.num_samples = first_sample(t + 1);
        p.key_begin = first_key(t);
        p.key_end = first_key(t + 1);
        if (p.sample < p.num_samples) kernels_.pool(p);
    };
    run_phases(threads, list, join, look, settle, pool);
}

void Table::pull_rows(Lookup& l) {
    // Pins are not counted atomically, so a training pull of a table with tiers is one thread's.
    const bool alone =
        l.args.num_keys < kParallelMinKeys || (cold_ != nullptr && l.handle != nullptr);
    const int threads = alone ? 1 : config_.threads;
    l.scratch.start(threads, l.args.num_keys);
    for (auto& misses : l.scratch.misses) misses.clear();
    if (threads > 1) {
        pull_together(l, threads);
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
    } catch (...) {
        close(*handle);
        throw;
    }
    handle->num_distinct = scratch.distinct[0].size();
    return handle;
}

}  // namespace hps
