#include "table.hpp"

#include <cmath>
#include <numeric>

#include "snapshot.hpp"

namespace hps {
namespace {

std::vector<char> held_flags(const std::vector<uint32_t>& list, uint32_t num_partitions) {
    std::vector<char> flags(num_partitions, 0);
    for (const uint32_t p : list) flags[p] = 1;
    return flags;
}

template <class T>
void draw(const Config& c, uint64_t base, T* v) {
    constexpr double kTwoPi = 6.283185307179586;
    switch (c.init) {
        case Init::kZeros:
            for (uint32_t i = 0; i < c.dim; ++i) v[i] = T(0);
            return;
        case Init::kUniform: {
            const auto scale = static_cast<float>(c.init_scale);
            for (uint32_t i = 0; i < c.dim; ++i) {
                const auto bits = static_cast<int32_t>(element_bits(base, i) >> 8);
                v[i] = static_cast<T>((static_cast<float>(bits) * 0x1p-23f - 1.0f) * scale);
            }
            return;
        }
        case Init::kNormal:
            for (uint32_t i = 0; i < c.dim; ++i) {  // Box-Muller
                const double u = (element_bits(base, 2 * i) + 0.5) * 0x1p-32;
                const double angle = kTwoPi * element_bits(base, 2 * i + 1) * 0x1p-32;
                const double normal = std::sqrt(-2.0 * std::log(u)) * std::cos(angle);
                v[i] = static_cast<T>(static_cast<float>(normal * c.init_scale));
            }
    }
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
      index_(arena_),
      rows_(arena_, layout_, config.num_partitions),
      admission_(config.admission, config.sketch_bytes, config.num_partitions) {
    if (config.hot_bytes == 0) return;
    const uint64_t rows = config.hot_bytes / layout_.stride;
    hot_limit_ = std::max<uint64_t>(rows / std::max<size_t>(held_list_.size(), 1), 1);
    clocks_.assign(config.num_partitions, Clock{0, 0, hot_limit_});
    cold_ = std::make_unique<ColdFile>(config.spill_path, layout_.stride, config.num_partitions);
    fetcher_ = std::make_unique<Fetcher>(*cold_, layout_.stride);
}

Table::~Table() = default;

void Table::initial_vector(uint64_t key, char* vector) const {
    const uint64_t base = mix64(key ^ init_seed_);
    if (config_.float64) {
        draw(config_, base, reinterpret_cast<double*>(vector));
    } else {
        draw(config_, base, reinterpret_cast<float*>(vector));
    }
}

uint32_t Table::find(uint64_t key, std::vector<char>& record) const {
    return index_.find(Index::tag_of(key), [&](uint32_t row) {
        if ((row & kCold) == 0) return key_at(rows_.at(row)) == key;
        record.resize(layout_.stride);
        read_cold(row & ~kCold, record.data());
        return key_at(record.data()) == key;
    });
}

void Table::before_write(uint32_t row) {
    for (Snapshot* snapshot : snapshots_) snapshot->preserve(rows_.block_of(row));
}

// A row for a key that has none; its vector, state and counters are still undefined.
uint32_t Table::new_row(uint64_t key, uint32_t partition) {
    if (cold_) make_room(partition);
    const uint32_t row = rows_.allocate(partition);
    try {
        before_write(row);
        index_.insert(Index::tag_of(key), row);
    } catch (...) {
        rows_.release(row);
        throw;
    }
    char* p = rows_.at(row);
    std::memset(p + layout_.state, 0, layout_.stride - layout_.state);
    key_at(p) = key;
    if (cold_) field<uint32_t>(p, layout_.heat) = 1;
    return row;
}

uint32_t Table::create(uint64_t key, uint32_t partition) {
    const uint32_t row = new_row(key, partition);
    char* p = rows_.at(row);
    initial_vector(key, p);
    const bool adagrad =
        config_.optimizer == Optimizer::kAdagrad || config_.optimizer == Optimizer::kRowwiseAdagrad;
    for (uint32_t i = 0; adagrad && i < layout_.state_dim; ++i) {
        if (config_.float64) {
            reinterpret_cast<double*>(p + layout_.state)[i] = config_.initial_accumulator;
        } else {
            reinterpret_cast<float*>(p + layout_.state)[i] =
                static_cast<float>(config_.initial_accumulator);
        }
    }
    if (layout_.step != 0) field<uint32_t>(p, layout_.step) = static_cast<uint32_t>(step_);
    admission_.forget(partition, key);
    ++stats_.created;
    return row;
}

void Table::read(const uint64_t* keys, int64_t n, bool* found, char* vectors, char* state) {
    const std::shared_lock lock(mutex_);
    const size_t vector_bytes = size_t{layout_.dim} * layout_.value_bytes;
    const size_t state_bytes = size_t{layout_.state_dim} * layout_.value_bytes;
    std::vector<char> record;
    for (int64_t i = 0; i < n; ++i) {
        const uint32_t row = find(keys[i], record);
        found[i] = row != kNoRow;
        if (row == kNoRow) {
            std::memset(vectors + static_cast<size_t>(i) * vector_bytes, 0, vector_bytes);
            std::memset(state + static_cast<size_t>(i) * state_bytes, 0, state_bytes);
            continue;
        }
        const char* p = (row & kCold) != 0 ? record.data() : rows_.at(row);
        std::memcpy(vectors + static_cast<size_t>(i) * vector_bytes, p, vector_bytes);
        std::memcpy(state + static_cast<size_t>(i) * state_bytes, p + layout_.state, state_bytes);
    }
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
    size_t bytes = arena_.used_bytes() + index_.directory_bytes() + rows_.bookkeeping_bytes() +
                   admission_.bytes();
    if (cold_) bytes += cold_->memory_bytes();
    return bytes;
}

}  // namespace hps
