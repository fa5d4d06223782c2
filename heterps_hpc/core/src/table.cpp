#include "table.hpp"

#include <algorithm>
#include <cstring>

#include "snapshot.hpp"

namespace hps {
namespace {

std::vector<char> held_flags(const std::vector<uint32_t>& list, uint32_t num_partitions) {
    std::vector<char> flags(num_partitions, 0);
    for (const uint32_t p : list) flags[p] = 1;
    return flags;
}

}  // namespace

Table::Table(const Config& config, std::vector<uint32_t> partitions, const char* isa)
    : config_(config),
      layout_(config),
      kernels_(choose_kernels(config, isa)),
      init_seed_(hash_bytes(config.name, config.seed)),
      held_(held_flags(partitions, config.num_partitions)),
      held_list_(std::move(partitions)),
      holds_all_(held_list_.size() == config.num_partitions),
      rows_(arena_, layout_, config.num_partitions),
      admission_(config.admission, config.sketch_bytes, config.num_partitions) {
    if (config.hot_bytes == 0) return;
    const uint64_t rows = config.hot_bytes / layout_.record_bytes;
    hot_limit_ = std::max<uint64_t>(rows / std::max<size_t>(held_list_.size(), 1), 1);
    clocks_.assign(config.num_partitions, Clock{0, 0, hot_limit_});
    cold_ =
        std::make_unique<ColdFile>(config.spill_path, layout_.record_bytes, config.num_partitions);
    fetcher_ = std::make_unique<Fetcher>(*cold_, layout_.record_bytes);
}

Table::~Table() = default;

void Table::before_write(uint32_t row) {
    for (Snapshot* snapshot : snapshots_) snapshot->preserve(rows_.block_of(row));
}

// A row for a key that has none; state and fields are zero, its vector is undefined.
uint32_t Table::new_row(uint64_t key, uint64_t hash, uint32_t partition) {
    if (cold_) keep_budget(partition);
    const bool reused = rows_.has_released(partition);
    const uint32_t row = rows_.allocate(partition);
    try {
        before_write(row);
        index_.insert(hash, row);
    } catch (...) {
        rows_.release(row);
        throw;
    }
    if (reused) rows_.clear(row);
    rows_.view().key(row) = key;
    if (cold_) heat(row) = 1;
    return row;
}

void Table::set_initial(uint32_t row, uint64_t key) {
    const uint64_t base = mix64(key ^ init_seed_);
    char* vector = rows_.view().vector(row);
    __builtin_prefetch(vector + layout_.vector_bytes, 1);  // where the partition's next row begins
    if (config_.precision == Precision::kFull) {
        kernels_.draw({base, vector, layout_.dim, config_.init, config_.init_scale});
    } else {
        initial_.resize(layout_.wide_bytes);
        kernels_.draw({base, initial_.data(), layout_.dim, config_.init, config_.init_scale});
        kernels_.narrow(initial_.data(), vector, layout_.dim);
    }
    const bool adagrad =
        config_.optimizer == Optimizer::kAdagrad || config_.optimizer == Optimizer::kRowwiseAdagrad;
    if (!adagrad || config_.initial_accumulator == 0) return;
    char* state = rows_.view().state(row);
    for (uint32_t i = 0; i < layout_.state_dim; ++i) {
        if (config_.float64) {
            reinterpret_cast<double*>(state)[i] = config_.initial_accumulator;
        } else {
            reinterpret_cast<float*>(state)[i] = static_cast<float>(config_.initial_accumulator);
        }
    }
}

uint32_t Table::create(uint64_t key, uint64_t hash, uint32_t partition) {
    const uint32_t row = new_row(key, hash, partition);
    set_initial(row, key);
    if (layout_.has_steps()) {
        field<uint32_t>(rows_.view().fields(row), layout_.step) = static_cast<uint32_t>(step_);
    }
    admission_.forget(partition, key);
    ++stats_.created;
    return row;
}

void Table::read(const uint64_t* keys, int64_t n, bool* found, char* vectors, char* state) {
    const std::shared_lock lock(mutex_);
    std::vector<char> record(layout_.record_bytes);
    for (int64_t i = 0; i < n; ++i) {
        const uint32_t row = index_.find(Index::hash_of(keys[i]));
        found[i] = row != kNoRow;
        if (row == kNoRow) {
            std::fill(record.begin(), record.end(), 0);
        } else if (is_cold(row)) {
            read_cold(row, record.data());
        } else {
            rows_.save(row, record.data());
        }
        kernels_.widen(record.data(), vectors + static_cast<size_t>(i) * layout_.wide_bytes,
                       layout_.dim);
        std::memcpy(state + static_cast<size_t>(i) * layout_.state_bytes,
                    record.data() + layout_.record_state, layout_.state_bytes);
    }
}

void Table::reserve(uint64_t num_rows) {
    const std::unique_lock lock(mutex_);
    const size_t held = held_list_.size();
    const uint64_t in_memory = cold_ ? std::min(num_rows, hot_limit_ * held) : num_rows;
    if (in_memory > kMaxRow) {
        throw std::invalid_argument("table '" + config_.name + "': memory for " +
                                    std::to_string(in_memory) +
                                    " rows, but a shard has at most 2^31; use more shards");
    }
    if (rows_.size() != 0 || (cold_ && cold_->size() != 0)) return;
    toucher_.stop();
    arena_.reserve(rows_.bytes_for(in_memory, held));
    index_.reserve(num_rows);
    toucher_.start({index_.memory(), arena_.unused()});
}

void Table::load_admission(uint32_t partition, Sightings sightings) {
    const std::unique_lock lock(mutex_);
    admission_.load(partition, std::move(sightings));
}

void Table::load_step(uint64_t step) {
    const std::unique_lock lock(mutex_);
    step_ = std::max(step_, step);
}

std::shared_ptr<Snapshot> Table::snapshot() {
    const std::unique_lock lock(mutex_);
    if (cold_) cold_->write_open();
    snapshots_.reserve(snapshots_.size() + 1);
    auto snapshot = std::make_shared<Snapshot>(shared_from_this());
    snapshots_.push_back(snapshot.get());
    if (cold_) cold_->hold();
    return snapshot;
}

void Table::forget_snapshot(Snapshot* snapshot) {
    const std::unique_lock lock(mutex_);
    if (std::erase(snapshots_, snapshot) > 0 && cold_) cold_->unhold();
}

TableStats Table::stats() const {
    const std::shared_lock lock(mutex_);
    TableStats s = stats_;
    s.cold = cold_ ? cold_->size() : 0;
    s.rows = rows_.size() + s.cold;
    s.pulled_keys += eval_keys_.load(std::memory_order_relaxed);
    return s;
}

size_t Table::memory_bytes() const {
    const std::shared_lock lock(mutex_);
    size_t bytes =
        arena_.used_bytes() + index_.bytes() + rows_.bookkeeping_bytes() + admission_.bytes();
    if (cold_) bytes += cold_->memory_bytes();
    return bytes;
}

}  // namespace hps
