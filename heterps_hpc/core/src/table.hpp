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

class Snapshot;
class Table;

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
};

// The rows that a training pull resolved, kept for the push of the same batch.
struct Pulled {
    explicit Pulled(std::shared_ptr<Table> owner) : table(std::move(owner)) {}
    ~Pulled();
    std::shared_ptr<Table> table;
    int64_t num_samples = 0;
    bool mean = false;
    bool open = false;           // pushed or discarded handles are closed
    std::vector<uint32_t> rows;  // per key; kNoRow = not in this table
    bool listed = false;         // the pull already told equal rows apart:
    uint32_t num_unique = 0;
    std::vector<uint32_t> unique;  // rows, in order of first appearance
    std::vector<uint32_t> member;  // per key: its row's place in `unique`, or kNoRow
    std::vector<int64_t> offsets;  // empty = one key per sample
    std::vector<char> weights;
    std::vector<uint64_t> absent;  // keys that were not admitted
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
    struct Chunk;
    struct Merge;
    struct Batch;

    uint64_t& key_at(char* row) const { return field<uint64_t>(row, layout_.key); }
    // The row of a key; if it is on disk, its bytes too.
    uint32_t find(uint64_t key, std::vector<char>& record) const;
    uint32_t create(uint64_t key, uint32_t partition);
    uint32_t new_row(uint64_t key, uint32_t partition);
    void initial_vector(uint64_t key, char* vector) const;
    void before_write(uint32_t row);

    void pull_range(const PullArgs& a, Pulled* handle, int64_t first, int64_t last,
                    std::vector<int64_t>* deferred);
    void pull_parallel(const PullArgs& a, Pulled* handle, int threads);
    void fetch_buckets(Chunk& chunk) const;
    void fetch_rows(Chunk& chunk) const;
    void verify(Chunk& chunk) const;
    void settle(Chunk& chunk, int i, Pulled* handle);
    void list_rows(const Chunk& chunk, int64_t key, Pulled& handle) const;
    bool may_list(const PullArgs& a, int threads) const;
    void settle_misses(Chunk& chunk, int64_t key, Pulled* handle, std::vector<int64_t>* deferred);

    void check_push(const std::vector<std::shared_ptr<Pulled>>& handles, uint64_t step) const;
    void check_finite(const std::vector<std::shared_ptr<Pulled>>& handles,
                      const std::vector<Gradient>& gradients) const;
    [[noreturn]] void refuse_nonfinite(size_t handle) const;
    PushStats push_listed(const Pulled& handle, const Gradient& gradient, double lr);
    PushStats push_merged(const std::vector<std::shared_ptr<Pulled>>& handles,
                          const std::vector<Gradient>& gradients, uint64_t step, double lr,
                          const std::vector<const float*>& clicks);
    ApplyArgs apply_args(double lr) const;
    uint32_t prepare_push(Batch& batch);  // returns the number of threads
    void merge_and_apply(Merge& merge, double lr, uint64_t step);
    void gather(Merge& merge) const;
    void count_shows(const Merge& merge, uint64_t step);
    void count_sightings(const std::vector<std::shared_ptr<Pulled>>& handles);
    void close(Pulled& handle);

    // Tiers: see tiers.cpp.
    void read_cold(uint32_t slot, char* row) const;
    uint32_t promote(uint32_t cold_row, const char* record, uint32_t partition);
    void make_room(uint32_t partition);
    uint32_t next_victim(uint32_t partition);
    void demote(uint32_t row, uint32_t partition);
    void compact();
    void release_slot(uint32_t slot);
    void pin(uint32_t row);
    void unpin(const Pulled& handle);
    uint64_t sweep_cold(uint32_t partition, uint64_t step);

    uint64_t sweep(uint64_t step);
    uint64_t sweep_partition(uint32_t partition, uint64_t step,
                             const std::vector<uint32_t>& pinned);
    std::vector<uint32_t> mark_pinned();
    bool expired(const char* row, uint64_t step) const;
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
        std::vector<uint32_t> rows, unique, member;
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
    std::unique_ptr<Fetcher> fetcher_;
    std::vector<std::unique_ptr<Merge>> merges_;  // scratch of one push, per thread
};

}  // namespace hps
