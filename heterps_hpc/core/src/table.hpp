// The table: key -> row, with pooling, merging and updating fused. Knows nothing of Python or MPI.
//
// A call that changes the table holds its lock alone; evaluation pulls share it.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_set>
#include <vector>

#include "admission.hpp"
#include "arena.hpp"
#include "cold.hpp"
#include "config.hpp"
#include "fetcher.hpp"
#include "index.hpp"
#include "kernels.hpp"
#include "rows.hpp"

namespace hps {

class Distinct;
class Snapshot;
class Table;
struct Miss;
struct PullScratch;
struct PushScratch;
struct Sources;

struct PullArgs {
    const uint64_t* keys;
    int64_t num_keys;
    const int64_t* offsets;  // null = one key per sample
    int64_t num_samples;
    const void* weights;  // of the table's float type, per key, or null
    bool mean;
    char* out;
    int64_t out_stride;  // bytes
    bool train;
    // Keys that have no row in this pull, whatever the table says: it is made again, and they were
    // not admitted when it was made first. Or null.
    const std::unordered_set<uint64_t>* absent;
};

// The rows that a training pull resolved, kept for the push of the same batch.
struct Pulled {
    explicit Pulled(std::shared_ptr<Table> owner) : table(std::move(owner)) {}
    ~Pulled();
    std::shared_ptr<Table> table;
    int64_t num_samples = 0;
    bool mean = false;
    bool open = false;  // pushed or discarded handles are closed
    size_t num_keys = 0;
    uint32_t num_distinct = 0;
    std::vector<uint32_t> rows;    // per distinct key, by first appearance; kNoRow = not in here
    std::vector<uint32_t> member;  // per key: its place in `rows`
    std::vector<uint64_t> hashes;  // per distinct key; empty where no row needs them for rounding
    std::vector<int64_t> offsets;  // empty = one key per sample
    std::vector<char> weights;
    std::vector<uint64_t> absent;  // keys that were not admitted, once per sighting
};

struct Gradient {
    const void* values;
    int64_t stride;  // bytes between samples
};

struct PushStats {
    uint64_t rows = 0, skipped = 0, evicted = 0;
};

struct TableStats {
    uint64_t rows = 0, created = 0, loaded = 0, evicted = 0, rejected = 0, nonfinite_skipped = 0;
    uint64_t pulled_keys = 0, pushed_rows = 0;
    uint64_t cold = 0, promoted = 0, demoted = 0;
};

// Rows as flat arrays, in and out; null pointers for fields that the table does not have.
struct RowArrays {
    uint64_t* keys;
    char* vectors;
    char* state;
    uint32_t* step;
    float* show;
    float* click;
};

class Table : public std::enable_shared_from_this<Table> {
 public:
    Table(const Config& config, std::vector<uint32_t> partitions, const char* isa);
    ~Table();

    std::shared_ptr<Pulled> pull(const PullArgs& args);
    PushStats push(const std::vector<std::shared_ptr<Pulled>>& handles,
                   const std::vector<Gradient>& gradients, uint64_t step, double lr,
                   const std::vector<const float*>& clicks);
    void discard(Pulled& handle);
    void prefetch(const uint64_t* keys, int64_t n);

    // Fills vectors and state of keys that have a row, zeros for the others.
    void read(const uint64_t* keys, int64_t n, bool* found, char* vectors, char* state);
    void load(uint32_t partition, const RowArrays& rows, int64_t n);
    // Gets memory for so many rows, as far as they stay in memory, and starts to touch it on a
    // thread of its own; a table that has rows already stays as it is.
    void reserve(uint64_t num_rows);
    void wait_until_reserved() { toucher_.wait(); }
    void load_admission(uint32_t partition, Sightings sightings);
    void load_step(uint64_t step);
    std::shared_ptr<Snapshot> snapshot();
    void forget_snapshot(Snapshot* snapshot);

    TableStats stats() const;
    size_t memory_bytes() const;
    const Config& config() const { return config_; }
    const RowLayout& layout() const { return layout_; }
    const char* isa() const { return kernels_.isa; }
    const std::vector<uint32_t>& partitions() const { return held_list_; }
    bool holds(uint32_t partition) const { return held_[partition]; }
    uint64_t step() const { return step_; }

 private:
    friend class Snapshot;
    struct Lookup;
    struct ParallelPull;
    struct Batch;

    uint32_t create(uint64_t key, uint64_t hash, uint32_t partition);
    uint32_t new_row(uint64_t key, uint64_t hash, uint32_t partition);
    void set_initial(uint32_t row, uint64_t key);
    uint32_t row_to_load(uint64_t key, uint64_t hash, uint32_t partition);
    void write_row(uint32_t row, const RowArrays& in, size_t i);
    void before_write(uint32_t row);

    // See lookup.cpp.
    void fetch_buckets(const uint64_t* hashes, uint32_t first, uint32_t last) const;
    void look_up(const uint64_t* hashes, uint32_t first, uint32_t last, uint32_t* rows,
                 const char** vectors, std::vector<Miss>& misses) const;
    void look_further(const uint64_t* hashes, uint32_t* rows, const char** vectors,
                      std::vector<Miss>& misses, size_t first_miss) const;
    void read_loose(Lookup& lookup, uint32_t place, uint32_t cold_row) const;
    bool settle(Lookup& lookup, const Miss& miss);
    bool settle_all(Lookup& lookup, uint32_t first, uint32_t last, std::vector<Miss>& misses);
    void note_absent(const Lookup& lookup, int64_t first, int64_t last);

    std::shared_ptr<Pulled> new_handle(const PullArgs& a);
    void pull_rows(Lookup& lookup);
    void pull_alone(Lookup& lookup);
    void pull_parallel(Lookup& lookup, int threads);
    void evaluate(const PullArgs& a);

    void check_push(const std::vector<std::shared_ptr<Pulled>>& handles, uint64_t step) const;
    void check_finite(const Batch& batch, uint32_t owner) const;
    [[noreturn]] void refuse_nonfinite(size_t handle) const;
    void join_handles(Batch& batch, PushScratch& scratch) const;
    static bool is_whole(const Batch& batch, const Pulled& handle);
    void add_gradients(Batch& batch, Sources& sources, uint32_t owner) const;
    uint64_t apply(const Batch& batch, uint32_t owner, uint64_t step, double lr) const;
    void count_shows(const Batch& batch, PushScratch& scratch, uint64_t step);
    PushStats push_batch(Batch& batch, uint64_t step, double lr);
    void count_sightings(const std::vector<std::shared_ptr<Pulled>>& handles);
    void close(Pulled& handle);

    // Tiers: see tiers.cpp.
    void read_cold(uint32_t cold_row, char* record) const;
    uint32_t promote(uint64_t hash, uint32_t cold_row, uint32_t partition);
    void keep_budget(uint32_t partition);
    uint32_t next_victim(uint32_t partition);
    void demote(uint32_t row, uint32_t partition);
    uint32_t& heat(uint32_t row) const {
        return field<uint32_t>(rows_.view().fields(row), layout_.heat);
    }
    bool demote_some(uint32_t partition);
    void compact();
    void release_slot(uint32_t slot);
    void pin(uint32_t row);
    void unpin(const Pulled& handle);
    uint64_t sweep_cold(uint32_t partition, uint64_t step);

    uint64_t sweep(uint64_t step);
    uint64_t sweep_partition(uint32_t partition, uint64_t step, const std::vector<bool>& pinned);
    std::vector<bool> pinned_rows() const;
    bool expired(const char* fields, uint64_t step) const;
    float decay(uint64_t steps) const;

    const Config config_;
    const RowLayout layout_;
    const Kernels kernels_;
    const uint64_t init_seed_;
    std::vector<char> held_;
    std::vector<uint32_t> held_list_;
    bool holds_all_;

    mutable std::shared_mutex mutex_;
    Arena arena_;
    Index index_;
    RowStore rows_;
    Admission admission_;
    TableStats stats_;
    std::atomic<uint64_t> eval_keys_{0};
    uint64_t step_ = 0;
    std::unordered_set<Pulled*> open_handles_;
    struct Spare {
        std::vector<uint32_t> rows, member;
        std::vector<uint64_t> hashes;
    };
    std::vector<Spare> spares_;  // memory of closed handles, for the next ones
    std::vector<Snapshot*> snapshots_;
    struct Clock {
        size_t block = 0;
        uint32_t row = 0;
        uint64_t limit = 0;  // rows in memory; above the budget only while all are pinned
    };
    uint64_t hot_limit_ = 0;  // rows in memory per partition
    std::vector<Clock> clocks_;
    std::unique_ptr<ColdFile> cold_;
    std::vector<char> record_;   // on its way between memory and disk
    std::vector<char> initial_;  // a vector before it is rounded to the table's precision
    std::unique_ptr<Fetcher> fetcher_;
    PageToucher toucher_;  // last: it must end before the memory that it touches
};

}  // namespace hps
