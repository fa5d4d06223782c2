// The push: gradients per sample -> one sum per row -> one update per row.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "phases.hpp"
#include "scratch.hpp"
#include "table.hpp"

namespace hps {
namespace {

// What a key's gradient is multiplied with.
template <class T>
T factor_of(const Pulled& h, int64_t key, int64_t num_keys) {
    T f = h.weights.empty() ? T(1) : reinterpret_cast<const T*>(h.weights.data())[key];
    if (h.mean && num_keys > 0) f *= T(1) / static_cast<T>(num_keys);
    return f;
}

bool is_weighted(const Pulled& h) {
    return !h.weights.empty() || (h.mean && !h.offsets.empty());
}

// u % divisor without a division.
class Remainder {
 public:
    explicit Remainder(uint32_t divisor)
        : divisor_(divisor), inverse_(~uint64_t{0} / divisor + 1) {}
    uint32_t operator()(uint32_t u) const {
        if (divisor_ == 1) return 0;
        const auto quotient = static_cast<uint32_t>((Wide{inverse_} * u) >> 64);
        return u - quotient * divisor_;
    }

 private:
    __extension__ using Wide = unsigned __int128;
    uint32_t divisor_;
    uint64_t inverse_;
};

// Lists the sources of the places that `owner` works on, in the order of the keys.
template <class T>
int64_t list_sources(const Pulled& h, const uint32_t* member, uint32_t owner, uint32_t owners,
                     Sources& out) {
    const Remainder owner_of(owners);
    const bool weighted = is_weighted(h);
    out.member.resize(std::max(out.member.size(), h.num_keys + 1));
    out.sample.resize(std::max(out.sample.size(), h.num_keys + 1));
    if (weighted) {
        out.coefficient.resize(std::max(out.coefficient.size(), (h.num_keys + 1) * sizeof(T)));
    }
    auto* coefficient = reinterpret_cast<T*>(out.coefficient.data());
    int64_t n = 0;
    for (int64_t s = 0; s < h.num_samples; ++s) {
        const int64_t begin = h.offsets.empty() ? s : h.offsets[static_cast<size_t>(s)];
        const int64_t end = h.offsets.empty() ? s + 1 : h.offsets[static_cast<size_t>(s) + 1];
        for (int64_t k = begin; k < end; ++k) {  // no branch: whose a key is cannot be guessed
            out.member[static_cast<size_t>(n)] = member[k];
            out.sample[static_cast<size_t>(n)] = static_cast<uint32_t>(s);
            if (weighted) coefficient[n] = factor_of<T>(h, k, end - begin);
            n += owner_of(member[k]) == owner;
        }
    }
    return n;
}

}  // namespace

// One push under way.
struct Table::Batch {
    const std::vector<std::shared_ptr<Pulled>>& handles;
    const std::vector<Gradient>& gradients;
    const std::vector<const float*>& clicks;   // empty = none
    std::vector<const uint32_t*> member = {};  // of each handle: the place of every key
    const uint32_t* rows = nullptr;            // per place
    const uint64_t* hashes = nullptr;          // per place, of half precision rows
    uint32_t num_places = 0;
    uint32_t threads = 1;
    char* sums = nullptr;  // per place; and one vector more for each thread
};

// Gives the rows of all handles one list of places: rows of several pulls may be the same.
void Table::join_handles(Batch& b, PushScratch& s) const {
    if (b.handles.size() == 1) {
        b.member = {b.handles[0]->member.data()};
        b.rows = b.handles[0]->rows.data();
        b.hashes = b.handles[0]->hashes.data();
        b.num_places = b.handles[0]->num_distinct;
        return;
    }
    size_t num_rows = 0, num_keys = 0;
    for (const auto& h : b.handles) {
        num_rows += h->num_distinct;
        num_keys += h->num_keys;
    }
    if (num_keys >= UINT32_MAX) {
        throw std::invalid_argument("push: more than 2^32 keys in one batch; use smaller batches");
    }
    for (auto* v : {&s.rows, &s.place}) v->resize(std::max(v->size(), num_rows));
    for (auto* v : {&s.keys, &s.hashes}) v->resize(std::max(v->size(), num_rows));
    s.member.resize(std::max(s.member.size(), num_keys));
    s.distinct.start(static_cast<int64_t>(num_rows));
    uint32_t* member = s.member.data();
    for (const auto& h : b.handles) {
        std::copy_n(h->rows.begin(), h->num_distinct, s.keys.begin());
        s.distinct.add(s.keys.data(), h->num_distinct, s.place.data(),
                       [this](const uint64_t* keys, uint32_t n, uint64_t* hashes) {
                           kernels_.hash_keys(keys, n, nullptr, hashes);
                       });
        for (size_t k = 0; k < h->num_keys; ++k) member[k] = s.place[h->member[k]];
        for (size_t u = 0; u < h->hashes.size(); ++u) s.hashes[s.place[u]] = h->hashes[u];
        b.member.push_back(member);
        member += h->num_keys;
    }
    b.num_places = s.distinct.size();
    for (uint32_t u = 0; u < b.num_places; ++u) {
        s.rows[u] = static_cast<uint32_t>(unmix64(s.distinct.hashes()[u]));
    }
    b.rows = s.rows.data();
    b.hashes = s.hashes.data();
}

// Whether one thread adds the gradients as they are; it checks them on the way.
bool Table::is_whole(const Batch& b, const Pulled& h) {
    return b.threads == 1 && !is_weighted(h);
}

// Sums the gradients of the places that are `owner`'s.
void Table::add_gradients(Batch& b, Sources& sources, uint32_t owner) const {
    SumArgs a{};
    a.sums = b.sums;
    a.next = owner;
    a.step = b.threads;
    a.dim = layout_.dim;
    for (size_t i = 0; i < b.handles.size(); ++i) {
        const Pulled& h = *b.handles[i];
        a.gradients = static_cast<const char*>(b.gradients[i].values);
        a.stride = b.gradients[i].stride;
        a.member = b.member[i];
        a.sample = nullptr;
        a.coefficient = nullptr;
        a.num_sources = static_cast<int64_t>(h.num_keys);
        a.offsets = nullptr;
        a.num_samples = h.num_samples;
        if (is_whole(b, h)) {
            if (!h.offsets.empty()) a.offsets = h.offsets.data();
        } else {
            a.num_sources = config_.float64
                                ? list_sources<double>(h, b.member[i], owner, b.threads, sources)
                                : list_sources<float>(h, b.member[i], owner, b.threads, sources);
            a.member = sources.member.data();
            a.sample = sources.sample.data();
            if (is_weighted(h)) a.coefficient = sources.coefficient.data();
        }
        if (!kernels_.sum(a) && !config_.skip_nonfinite) refuse_nonfinite(i);
    }
}

uint64_t Table::apply(const Batch& b, uint32_t owner, uint64_t step, double lr) const {
    ApplyArgs a{};
    a.rows = rows_.view();
    a.places = b.rows;
    a.hashes = b.hashes;
    a.num_places = b.num_places;
    a.first = owner;
    a.step = b.threads;
    a.sums = b.sums;
    a.wide = b.sums + size_t{b.num_places + owner} * layout_.wide_bytes;
    a.rounding_seed = mix64(init_seed_ ^ split64(step));
    a.dim = layout_.dim;
    a.lr = lr;
    a.eps = config_.eps;
    a.weight_decay = config_.weight_decay;
    a.beta1 = config_.beta1;
    a.beta2 = config_.beta2;
    a.clip_norm = config_.clip_norm;
    kernels_.apply(a);
    return a.skipped;
}

void Table::count_shows(const Batch& b, PushScratch& s, uint64_t step) {
    if (layout_.has_counters()) {
        s.shows.assign(b.num_places, 0);
        s.clicks.assign(b.num_places, 0.0f);
    }
    for (size_t i = 0; layout_.has_counters() && i < b.handles.size(); ++i) {
        const Pulled& h = *b.handles[i];
        for (int64_t sample = 0; sample < h.num_samples; ++sample) {
            const auto at = static_cast<size_t>(sample);
            const int64_t begin = h.offsets.empty() ? sample : h.offsets[at];
            const int64_t end = h.offsets.empty() ? sample + 1 : h.offsets[at + 1];
            const float click = b.clicks.empty() ? 0.0f : b.clicks[i][sample];
            for (int64_t k = begin; k < end; ++k) {
                ++s.shows[b.member[i][k]];
                s.clicks[b.member[i][k]] += click;
            }
        }
    }
    for (uint32_t u = 0; u < b.num_places; ++u) {
        if (b.rows[u] == kNoRow) continue;
        char* fields = rows_.view().fields(b.rows[u]);
        uint32_t& last = field<uint32_t>(fields, layout_.step);
        if (layout_.has_counters()) {
            const float kept = decay(step - last);
            float& show = field<float>(fields, layout_.show);
            float& click = field<float>(fields, layout_.click);
            show = show * kept + static_cast<float>(s.shows[u]);
            click = click * kept + s.clicks[u];
        }
        last = static_cast<uint32_t>(step);
    }
}

void Table::count_sightings(const std::vector<std::shared_ptr<Pulled>>& handles) {
    for (const auto& h : handles) {
        for (const uint64_t key : h->absent) {
            // Another batch may have brought the key over the threshold since.
            if (index_.find(Index::hash_of(key)) == kNoRow)
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

// Each owner checks some of the samples; of several bad gradients any may be the one that is
// named. A gradient that one thread adds as it is is checked on the way, by add_gradients().
void Table::check_finite(const Batch& b, uint32_t owner) const {
    for (size_t i = 0; !config_.skip_nonfinite && i < b.handles.size(); ++i) {
        const Pulled& h = *b.handles[i];
        if (is_whole(b, h)) continue;
        const int64_t first = h.num_samples * owner / b.threads;
        const int64_t last = h.num_samples * (owner + 1) / b.threads;
        const auto* values = static_cast<const char*>(b.gradients[i].values);
        const int64_t stride = b.gradients[i].stride;
        if (!kernels_.finite(values + first * stride, last - first, layout_.dim, stride)) {
            refuse_nonfinite(i);
        }
    }
}

// All sums are made before any row changes: whatever can fail has then failed.
PushStats Table::push_batch(Batch& b, uint64_t step, double lr) {
    PushScratch& scratch = PushScratch::mine();
    join_handles(b, scratch);
    uint64_t num_keys = 0;
    for (const auto& h : b.handles) num_keys += h->num_keys;
    if (num_keys >= static_cast<uint64_t>(kParallelMinKeys)) {
        b.threads = static_cast<uint32_t>(config_.threads);
    }
    b.sums = scratch.aligned_sums(size_t{b.num_places + b.threads} * layout_.wide_bytes);
    if (scratch.sources.size() < b.threads) scratch.sources.resize(b.threads);
    std::vector<uint64_t> skipped(b.threads);
    const auto sum = [&](int t) {
        check_finite(b, static_cast<uint32_t>(t));
        add_gradients(b, scratch.sources[static_cast<size_t>(t)], static_cast<uint32_t>(t));
    };
    const auto preserve = [&](int share) {
        for (uint32_t u = 0; share == 0 && !snapshots_.empty() && u < b.num_places; ++u) {
            if (b.rows[u] != kNoRow) before_write(b.rows[u]);
        }
    };
    const auto update = [&](int t) {
        skipped[static_cast<size_t>(t)] = apply(b, static_cast<uint32_t>(t), step, lr);
    };
    if (b.threads == 1) {
        sum(0);
        preserve(0);
        update(0);
    } else {
        run_phases(static_cast<int>(b.threads), sum, preserve, update);
    }
    if (layout_.has_steps()) count_shows(b, scratch, step);
    PushStats result;
    result.rows =
        b.num_places - static_cast<uint64_t>(std::count(b.rows, b.rows + b.num_places, kNoRow));
    for (const uint64_t n : skipped) result.skipped += n;
    return result;
}

PushStats Table::push(const std::vector<std::shared_ptr<Pulled>>& handles,
                      const std::vector<Gradient>& gradients, uint64_t step, double lr,
                      const std::vector<const float*>& clicks) {
    const std::unique_lock lock(mutex_);
    check_push(handles, step);
    Batch batch{handles, gradients, clicks};
    PushStats result = push_batch(batch, step, lr);
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
            {std::move(handle.rows), std::move(handle.member), std::move(handle.hashes)});
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
