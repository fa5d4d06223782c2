// A pull on several threads. Each lists the keys of its own samples, and the lists are joined in
// order: places are then in order of first appearance, whatever the number of threads.
#include <algorithm>
#include <atomic>

#include "lookup.hpp"
#include "phases.hpp"

namespace hps {
namespace {

constexpr uint32_t kAtOnce = 128;  // buckets in flight

// Hands out places, some at a time, to any thread that asks.
class Places {
 public:
    // Moves [first, last) to the next places below `end`; false = all are taken.
    bool take(uint32_t end, uint32_t& first, uint32_t& last) {
        constexpr uint32_t kSome = 1024;
        first = taken_.load(std::memory_order_relaxed);
        do {
            if (first >= end) return false;
            last = std::min(end - first, kSome) + first;
        } while (!taken_.compare_exchange_weak(first, last, std::memory_order_relaxed));
        return true;
    }

 private:
    std::atomic<uint32_t> taken_{0};
};

}  // namespace

struct Table::ParallelPull {
    Table& table;
    Lookup& l;
    const int threads;
    std::vector<int64_t> first_sample, first_key;  // of each thread, and the ends
    uint32_t num_first = 0;                        // distinct keys of the first thread
    Places places;

    ParallelPull(Table& t, Lookup& lookup, int n) : table(t), l(lookup), threads(n) {
        const PullArgs& a = l.args;
        for (int i = 0; i <= threads; ++i) {
            const int64_t key = i == threads ? a.num_keys : a.num_keys / threads * i;
            const auto* end = a.offsets + a.num_samples;
            const int64_t sample =
                a.offsets == nullptr ? key : std::lower_bound(a.offsets, end, key) - a.offsets;
            first_sample.push_back(i == threads ? a.num_samples : sample);
            first_key.push_back(a.offsets == nullptr ? key : a.offsets[first_sample.back()]);
        }
    }

    void list(size_t t) {
        Distinct& mine = l.scratch.distinct[t];
        const int64_t num_keys = first_key[t + 1] - first_key[t];
        mine.start(t == 0 ? l.args.num_keys : num_keys);
        mine.add(l.args.keys + first_key[t], num_keys, l.member + first_key[t],
                 [this](const uint64_t* keys, uint32_t n, uint64_t* hashes) {
                     table.kernels_.hash_keys(keys, n, nullptr, hashes);
                 });
        if (t == 0) num_first = mine.size();
    }

    // One thread joins the lists; the others look up the keys of the first, which stay as they are.
    void join(size_t t) {
        if (t > 0) {
            look_up(t, num_first);
            return;
        }
        for (size_t i = 1; i < static_cast<size_t>(threads); ++i) {
            const Distinct& other = l.scratch.distinct[i];
            auto& place = l.scratch.place[i];
            if (place.size() < other.size()) place.resize(other.size());
            l.scratch.distinct[0].add_hashes(other.hashes(), other.size(), place.data());
        }
    }

    void look_up(size_t t, uint32_t num_places) {
        uint32_t first = 0, last = 0;
        while (places.take(num_places, first, last)) {
            for (uint32_t at = first; at < last; at += kAtOnce) {
                const uint32_t end = std::min(at + kAtOnce, last);
                table.fetch_buckets(l.hashes(), at, end);
                table.look_up(l.hashes(), at, end, l.rows, l.scratch.vectors.data(),
                              l.scratch.misses[t]);
            }
        }
    }

    void look_up_rest(size_t t) {
        const uint32_t* place = l.scratch.place[t].data();
        for (int64_t k = first_key[t]; t > 0 && k < first_key[t + 1]; ++k) {
            l.member[k] = place[l.member[k]];
        }
        look_up(t, l.scratch.distinct[0].size());
    }

    // Rows are made by one thread, in the order of the places.
    void settle(size_t t) {
        if (t > 0) return;
        auto& all = l.scratch.misses[0];
        for (size_t i = 1; i < static_cast<size_t>(threads); ++i) {
            auto& some = l.scratch.misses[i];
            all.insert(all.end(), some.begin(), some.end());
            some.clear();
        }
        std::sort(all.begin(), all.end(),
                  [](const Miss& a, const Miss& b) { return a.place < b.place; });
        if (table.settle_all(l, 0, l.scratch.distinct[0].size(), all)) {
            table.note_absent(l, 0, l.args.num_keys);
        }
    }

    void pool(size_t t) {
        PoolArgs p = l.pool_args(table.layout_.dim);
        p.far = true;
        p.wide += t * table.layout_.wide_bytes;
        p.sample = first_sample[t];
        p.num_samples = first_sample[t + 1];
        p.key_begin = first_key[t];
        p.key_end = first_key[t + 1];
        if (p.sample < p.num_samples) table.kernels_.pool(p);
    }
};

void Table::pull_parallel(Lookup& l, int threads) {
    ParallelPull pull(*this, l, threads);
    const auto phase = [&pull](void (ParallelPull::*part)(size_t)) {
        return [&pull, part](int t) { (pull.*part)(static_cast<size_t>(t)); };
    };
    run_phases(threads, phase(&ParallelPull::list), phase(&ParallelPull::join),
               phase(&ParallelPull::look_up_rest), phase(&ParallelPull::settle),
               phase(&ParallelPull::pool));
}

}  // namespace hps
