#include "rows.hpp"

#include <algorithm>
#include <stdexcept>

namespace hps {
namespace {

constexpr uint32_t kLine = 64;
constexpr uint32_t kBlockBytes = 24 << 10;
constexpr uint32_t kChunkBytes = 2 << 20;

int floor_log2(uint32_t n) {
    return 31 - __builtin_clz(n);
}

uint32_t to_lines(uint32_t bytes) {
    return (bytes + kLine - 1) / kLine * kLine;
}

}  // namespace

RowLayout::RowLayout(const Config& c)
    : dim(c.dim),
      state_dim(hps::state_dim(c)),
      value_bytes(c.float64 ? 8 : 4),
      wide_bytes(dim * value_bytes),
      vector_bytes(c.precision == Precision::kFull ? wide_bytes : 2 * dim),
      state_bytes(state_dim * value_bytes) {
    const auto take = [this] { return fields_bytes += 4, fields_bytes - 4; };
    if (c.counters || c.track_steps || c.max_age != 0) step = take();
    if (c.counters) {
        show = take();
        click = take();
    }
    if (c.hot_bytes != 0) heat = take();
    record_state = (vector_bytes + 3) / 4 * 4;
    record_fields = record_state + state_bytes;
    record_key = (record_fields + fields_bytes + 7) / 8 * 8;
    record_bytes = record_key + 8;
}

void to_record(const RowLayout& layout, const RowParts& p, uint32_t i, char* record) {
    std::memcpy(record, p.vectors + size_t{i} * layout.vector_bytes, layout.vector_bytes);
    std::memcpy(record + layout.record_state, p.states + size_t{i} * layout.state_bytes,
                layout.state_bytes);
    std::memcpy(record + layout.record_fields, p.fields + size_t{i} * layout.fields_bytes,
                layout.fields_bytes);
    field<uint64_t>(record, layout.record_key) = p.keys[i];
}

void from_record(const RowLayout& layout, const char* record, const RowParts& p, uint32_t i) {
    std::memcpy(p.vectors + size_t{i} * layout.vector_bytes, record, layout.vector_bytes);
    std::memcpy(p.states + size_t{i} * layout.state_bytes, record + layout.record_state,
                layout.state_bytes);
    std::memcpy(p.fields + size_t{i} * layout.fields_bytes, record + layout.record_fields,
                layout.fields_bytes);
    p.keys[i] = field<uint64_t>(record, layout.record_key);
}

RowStore::RowStore(Arena& arena, const RowLayout& layout, uint32_t num_partitions)
    : arena_(arena), layout_(layout), partitions_(num_partitions) {
    const uint32_t bytes = layout.record_bytes;
    block_shift_ = floor_log2(std::clamp(kBlockBytes / bytes, 1u, Block::kMaxRows));
    view_.shift = std::max(floor_log2(std::max(kChunkBytes / bytes, 1u)), block_shift_);
    const uint32_t rows = 1u << view_.shift;
    view_.chunks = chunks_.data();
    view_.mask = rows - 1;
    view_.vector_bytes = layout.vector_bytes;
    view_.state_bytes = layout.state_bytes;
    view_.fields_bytes = layout.fields_bytes;
    view_.states_at = to_lines(rows * layout.vector_bytes);
    view_.fields_at = view_.states_at + to_lines(rows * layout.state_bytes);
    view_.keys_at = view_.fields_at + to_lines(rows * layout.fields_bytes);
    chunk_bytes_ = size_t{view_.keys_at} + to_lines(rows * 8);
}

void RowStore::add_block(uint32_t partition) {
    Partition& p = partitions_[partition];
    const uint32_t b = num_blocks();
    const uint32_t first = first_row(b);
    if (uint64_t{b} + 1 > (kMaxRow >> block_shift_)) {
        throw std::runtime_error("table: more than 2^31 rows in one shard; use more shards");
    }
    if ((first >> view_.shift) == chunks_.size()) {
        if (chunks_.size() == chunks_.capacity()) chunks_.reserve(2 * chunks_.size() + 1);
        view_.chunks = chunks_.data();
        chunks_.push_back(static_cast<char*>(arena_.allocate(chunk_bytes_)));
    }
    p.blocks.push_back(b);
    try {
        blocks_.push_back({partition});
    } catch (...) {
        p.blocks.pop_back();
        throw;
    }
    p.next = first;
    p.end = first + rows_per_block();
}

void RowStore::clear(uint32_t row) {
    std::memset(view_.state(row), 0, layout_.state_bytes);
    std::memset(view_.fields(row), 0, layout_.fields_bytes);
}

uint32_t RowStore::allocate(uint32_t partition) {
    Partition& p = partitions_[partition];
    uint32_t row;
    if (!p.free.empty()) [[unlikely]] {
        row = p.free.back();
        p.free.pop_back();
    } else {
        if (p.next == p.end) add_block(partition);
        row = p.next++;
    }
    Block& block = blocks_[block_of(row)];
    const uint32_t i = row & (rows_per_block() - 1);
    block.used[i / 64] |= uint64_t{1} << (i % 64);
    ++block.live;
    ++p.live;
    ++size_;
    return row;
}

void RowStore::release(uint32_t row) {
    Block& block = blocks_[block_of(row)];
    Partition& p = partitions_[block.partition];
    p.free.push_back(row);
    const uint32_t i = row & (rows_per_block() - 1);
    block.used[i / 64] &= ~(uint64_t{1} << (i % 64));
    --block.live;
    --p.live;
    --size_;
}

void RowStore::save(uint32_t row, char* record) const {
    to_record(layout_, view_.parts(row), 0, record);
}

void RowStore::restore(uint32_t row, const char* record) {
    from_record(layout_, record, view_.parts(row), 0);
}

size_t RowStore::bytes_for(uint64_t num_rows, uint64_t num_partitions) const {
    const uint64_t with_gaps = num_rows + num_partitions * rows_per_block() / 2;
    return ((with_gaps + view_.mask) >> view_.shift) * chunk_bytes_;
}

size_t RowStore::bookkeeping_bytes() const {
    size_t bytes = chunks_.capacity() * sizeof(char*) + blocks_.capacity() * sizeof(Block) +
                   partitions_.capacity() * sizeof(Partition);
    for (const Partition& p : partitions_) {
        bytes += (p.blocks.capacity() + p.free.capacity()) * sizeof(uint32_t);
    }
    return bytes;
}

}  // namespace hps
