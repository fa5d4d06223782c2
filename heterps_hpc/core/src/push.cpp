// The push: gradients per sample -> one merged gradient per row -> one update per row.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "merge.hpp"
#include "parallel.hpp"
#include "table.hpp"

namespace hps {
namespace {

constexpr int64_t kAhead = 16;  // keys between prefetching a row's mark and reading it

template <class T>
T factor_of(const Pulled& h, int64_t key, int64_t num_keys) {
    T f = h.weights.empty() ? T(1) : reinterpret_cast<const T*>(h.weights.data())[key];
    if (h.mean && num_keys > 0) f *= T(1) / static_cast<T>(num_keys);
    return f;
}

bool is_weighted(const Pulled& h) {
    return !h.weights.empty() || (h.mean && !h.offsets.empty());
}

}  // namespace

struct Table::Batch {
    const std::vector<std::shared_ptr<Pulled>>* handles;
    const std::vector<Gradient>* gradients;
    const std::vector<const float*>* clicks;  // empty = none
    std::vector<const void*> gradient_of;     // per sample, all handles one after the other
    std::vector<float> click_of;
};

// Lists the rows of all keys once each (a sparse set: a row's mark is its place in the list, and is
// believed only if the list agrees, so marks need no clearing), then sorts the sources by row.
void Table::gather(Merge& m) const {
    const RowView rows = rows_.view();
    const uint32_t mark = layout_.mark;
    uint32_t* unique = m.unique.data();
    uint32_t* count = m.start.data() + 1;
    uint32_t num_unique = 0;
    uint64_t k = 0;
    uint32_t base = 0;
    for (const auto& handle : *m.handles) {
        const Pulled& h = *handle;
        const auto num_keys = static_cast<int64_t>(h.rows.size());
        for (int64_t s = 0; s < h.num_samples; ++s) {
            const int64_t begin = h.offsets.empty() ? s : h.offsets[static_cast<size_t>(s)];
            const int64_t end = h.offsets.empty() ? s + 1 : h.offsets[static_cast<size_t>(s) + 1];
            for (int64_t i = begin; i < end; ++i) {
                const uint32_t row = h.rows[static_cast<size_t>(i)];
                if (i + kAhead < num_keys) {
                    const uint32_t ahead = h.rows[static_cast<size_t>(i + kAhead)];
                    if (ahead != kNoRow) {
                        __builtin_prefetch(rows.at(ahead) + mark, 1);
                        __builtin_prefetch(rows.at(ahead), 1);
                    }
                }
                if (row == kNoRow ||
                    (m.threads > 1 && rows_.block_of(row) % m.threads != m.owner)) {
                    continue;
                }
                uint32_t& place = field<uint32_t>(rows.at(row), mark);
                const uint32_t guess = std::min(place, num_unique);
                const bool known = place < num_unique && unique[guess] == row;
                const uint32_t u = known ? guess : num_unique;
                count[u] = known ? count[u] + 1 : 1;
                unique[u] = row;
                place = u;
                num_unique += !known;
                m.member[k] = u;
                m.sample[k] = base + static_cast<uint32_t>(s);
                if (m.weighted) {
                    if (config_.float64) {
                        reinterpret_cast<double*>(m.factor.data())[k] =
                            factor_of<double>(h, i, end - begin);
                    } else {
                        reinterpret_cast<float*>(m.factor.data())[k] =
                            factor_of<float>(h, i, end - begin);
                    }
                }
                ++k;
            }
        }
        base += static_cast<uint32_t>(h.num_samples);
    }
    m.num_unique = num_unique;
    m.num_sources = k;
}

namespace {

// Counting sort of sources by unique row; stable, so sums are taken in key order.
template <class T>
void sort_sources(uint32_t num_unique, uint64_t n, uint32_t* start, const uint32_t* member,
                  const uint32_t* sample, uint32_t* source, const T* factor, T* coefficient) {
    uint32_t sum = 0;
    for (uint32_t u = 0; u < num_unique; ++u) {  // counts at start[u + 1] become first places
        const uint32_t count = start[u + 1];
        start[u + 1] = sum;
        sum += count;
    }
    for (uint64_t k = 0; k < n; ++k) {
        const uint32_t place = start[member[k] + 1]++;
        source[place] = sample[k];
        if (factor != nullptr) coefficient[place] = factor[k];
    }
    start[0] = 0;  // and now start[u + 1] is where u ends
}

}  // namespace

ApplyArgs Table::apply_args(double lr) const {
    ApplyArgs a{};
    a.rows = rows_.view();
    a.dim = layout_.dim;
    a.state = layout_.state;
    a.lr = lr;
    a.eps = config_.eps;
    a.weight_decay = config_.weight_decay;
    a.beta1 = config_.beta1;
    a.beta2 = config_.beta2;
    a.clip_norm = config_.clip_norm;
    return a;
}

void Table::merge_and_apply(Merge& m, double lr, uint64_t step) {
    gather(m);
    if (config_.float64) {
        auto* f = m.weighted ? reinterpret_cast<double*>(m.factor.data()) : nullptr;
        sort_sources(m.num_unique, m.num_sources, m.start.data(), m.member.data(), m.sample.data(),
                     m.source.data(), f, reinterpret_cast<double*>(m.coefficient.data()));
    } else {
        auto* f = m.weighted ? reinterpret_cast<float*>(m.factor.data()) : nullptr;
        sort_sources(m.num_unique, m.num_sources, m.start.data(), m.member.data(), m.sample.data(),
                     m.source.data(), f, reinterpret_cast<float*>(m.coefficient.data()));
    }
    ApplyArgs a = apply_args(lr);
    a.unique = m.unique.data();
    a.num_unique = m.num_unique;
    a.start = m.start.data();
    a.source = m.source.data();
    a.coefficient = m.weighted ? m.coefficient.data() : nullptr;
    a.gradients = m.gradients;
    a.scratch = m.vector.data();
    kernels_.apply(a);
    m.skipped = a.skipped;
    if (layout_.step != 0) count_shows(m, step);
}

void Table::count_shows(const Merge& m, uint64_t step) {
    for (uint32_t u = 0; u < m.num_unique; ++u) {
        char* row = rows_.at(m.unique[u]);
        uint32_t& last = field<uint32_t>(row, layout_.step);
        if (layout_.show != 0) {
            const float kept = decay(step - last);
            float clicks = 0;
            if (m.clicks != nullptr) {
                for (uint32_t s = m.start[u]; s < m.start[u + 1]; ++s)
                    clicks += m.clicks[m.source[s]];
            }
            float& show = field<float>(row, layout_.show);
            float& click = field<float>(row, layout_.click);
            show = show * kept + static_cast<float>(m.start[u + 1] - m.start[u]);
            click = click * kept + clicks;
        }
        last = static_cast<uint32_t>(step);
    }
}

void Table::count_sightings(const std::vector<std::shared_ptr<Pulled>>& handles) {
    std::vector<char> record;
    for (const auto& h : handles) {
        for (const uint64_t key : h->absent) {
            // Another batch may have brought the key over the threshold since.
            if (find(key, record) == kNoRow)
                admission_.sight(partition_of(key, config_.num_partitions), key);
        }
    }
}

void Table::check_push(const std::vector<std::shared_ptr<Pulled>>& handles, uint64_t step) const {
    if (step < step_ || step > UINT32_MAX) {
        throw std::invalid_argument("push of step " + std::to_string(step) +
                                    " after a push of step " + std::to_string(step_) +
                                    "; steps must not go back, and are below 2^32");
    }
    for (size_t h = 0; h < handles.size(); ++h) {
        if (handles[h]->table.get() != this) {
            throw std::invalid_argument("push: handle " + std::to_string(h) +
                                        " was pulled from another table; push it there");
        }
        if (!handles[h]->open || std::count(handles.begin(), handles.end(), handles[h]) > 1) {
            throw std::invalid_argument("push: handle " + std::to_string(h) +
                                        " was already pushed or discarded; pull again");
        }
    }
}

void Table::refuse_nonfinite(size_t handle) const {
    throw std::invalid_argument("push: gradient " + std::to_string(handle) + " of table '" +
                                config_.name +
                                "' holds NaN or Inf; nothing was applied. Lower the learning "
                                "rate, or set nonfinite=\"skip\" to leave such rows out");
}

void Table::check_finite(const std::vector<std::shared_ptr<Pulled>>& handles,
                         const std::vector<Gradient>& gradients) const {
    for (size_t h = 0; !config_.skip_nonfinite && h < handles.size(); ++h) {
        if (!kernels_.finite(gradients[h].values, handles[h]->num_samples, layout_.dim,
                             gradients[h].stride)) {
            refuse_nonfinite(h);
        }
    }
}

// Everything that can fail for lack of memory is done here, before any row changes.
uint32_t Table::prepare_push(Batch& batch) {
    const auto& handles = *batch.handles;
    uint64_t num_keys = 0;
    bool weighted = false;
    for (size_t h = 0; h < handles.size(); ++h) {
        num_keys += handles[h]->rows.size();
        weighted |= is_weighted(*handles[h]);
        const Gradient& gradient = (*batch.gradients)[h];
        const char* g = static_cast<const char*>(gradient.values);
        const auto n = static_cast<size_t>(handles[h]->num_samples);
        batch.gradient_of.reserve(batch.gradient_of.size() + n);
        for (size_t s = 0; s < n; ++s, g += gradient.stride) batch.gradient_of.push_back(g);
        if (!batch.clicks->empty()) {
            const float* c = (*batch.clicks)[h];
            batch.click_of.insert(batch.click_of.end(), c, c + n);
        }
    }
    if (num_keys >= UINT32_MAX || batch.gradient_of.size() >= UINT32_MAX) {
        throw std::invalid_argument("push: more than 2^32 keys in one batch; use smaller batches");
    }
    const bool alone = num_keys < static_cast<uint64_t>(kParallelMinKeys);
    const auto threads = alone ? 1u : static_cast<uint32_t>(config_.threads);
    for (uint32_t t = 0; t < threads; ++t) {
        Merge& m = *merges_[t];
        m.handles = &handles;
        m.gradients = batch.gradient_of.data();
        m.clicks = batch.click_of.empty() ? nullptr : batch.click_of.data();
        m.owner = t;
        m.threads = threads;
        m.weighted = weighted;
        m.reserve(num_keys, layout_);
    }
    for (size_t h = 0; !snapshots_.empty() && h < handles.size(); ++h) {
        for (const uint32_t row : handles[h]->rows) {
            if (row != kNoRow) before_write(row);
        }
    }
    return threads;
}

PushStats Table::push_merged(const std::vector<std::shared_ptr<Pulled>>& handles,
                             const std::vector<Gradient>& gradients, uint64_t step, double lr,
                             const std::vector<const float*>& clicks) {
    check_finite(handles, gradients);
    Batch batch{&handles, &gradients, &clicks, {}, {}};
    const uint32_t threads = prepare_push(batch);
    run_parallel(static_cast<int>(threads),
                 [&](int t) { merge_and_apply(*merges_[static_cast<size_t>(t)], lr, step); });
    PushStats result;
    for (uint32_t t = 0; t < threads; ++t) {
        result.rows += merges_[t]->num_unique;
        result.skipped += merges_[t]->skipped;
    }
    return result;
}

// The push of one plain pull, which has listed its rows: gradients are read once, and rows touched
// once. Sums are taken in key order, so the bits are those of push_merged().
PushStats Table::push_listed(const Pulled& h, const Gradient& gradient, double lr) {
    // Shared by the tables of a thread, so that it stays in the cache from one to the next.
    static thread_local std::vector<char> scratch;
    constexpr size_t kLine = 64;
    const size_t bytes = size_t{h.num_unique} * layout_.dim * layout_.value_bytes + kLine;
    if (scratch.size() < bytes) scratch.resize(bytes);
    const auto misplaced = reinterpret_cast<uintptr_t>(scratch.data()) % kLine;
    char* sums = scratch.data() + (kLine - misplaced) % kLine;
    const bool finite =
        kernels_.sum({h.member.data(), h.num_samples, static_cast<const char*>(gradient.values),
                      gradient.stride, sums, layout_.dim});
    if (!finite && !config_.skip_nonfinite) refuse_nonfinite(0);
    for (uint32_t u = 0; !snapshots_.empty() && u < h.num_unique; ++u) before_write(h.unique[u]);
    ApplyArgs a = apply_args(lr);
    a.unique = h.unique.data();
    a.num_unique = h.num_unique;
    a.merged = sums;
    kernels_.apply(a);
    return {h.num_unique, a.skipped, 0};
}

PushStats Table::push(const std::vector<std::shared_ptr<Pulled>>& handles,
                      const std::vector<Gradient>& gradients, uint64_t step, double lr,
                      const std::vector<const float*>& clicks) {
    const std::unique_lock lock(mutex_);
    check_push(handles, step);
    PushStats result = handles.size() == 1 && handles[0]->listed
                           ? push_listed(*handles[0], gradients[0], lr)
                           : push_merged(handles, gradients, step, lr, clicks);
    step_ = step;
    stats_.pushed_rows += result.rows;
    stats_.nonfinite_skipped += result.skipped;
    if (admission_.enabled()) count_sightings(handles);
    for (const auto& h : handles) close(*h);
    // Last, and by itself: an unreadable spill file can fail it, with the push already whole.
    result.evicted = sweep(step);
    return result;
}

void Table::close(Pulled& handle) {
    handle.open = false;
    open_handles_.erase(&handle);
    if (cold_) unpin(handle);
    // Memory of this size goes back to the system when freed, and costs page faults at each pull.
    if (spares_.size() < spares_.capacity()) {
        spares_.push_back(
            {std::move(handle.rows), std::move(handle.unique), std::move(handle.member)});
    }
}

void Table::discard(Pulled& handle) {
    const std::unique_lock lock(mutex_);
    if (handle.open) close(handle);
}

Pulled::~Pulled() {
    if (open) table->discard(*this);
}

}  // namespace hps
