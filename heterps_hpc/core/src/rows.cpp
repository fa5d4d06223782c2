#include "rows.hpp"

#include <algorithm>
#include <stdexcept>

namespace hps {
namespace {

constexpr uint32_t kBlockBytes = 24 << 10;
constexpr uint32_t kChunkBytes = 2 << 20;

int floor_log2(uint32_t n) {
    return 31 - __builtin_clz(n);
}

}  // namespace

RowLayout::RowLayout(const Config& c)
    : dim(c.dim), state_dim(hps::state_dim(c)), value_bytes(c.float64 ? 8 : 4) {
    uint32_t at = dim * value_bytes;
    const auto take = [&at](uint32_t bytes) { return at += bytes, at - bytes; };
    state = take(state_dim * value_bytes);
    if (c.counters || c.track_steps || c.max_age != 0) step = take(4);
    if (c.counters) {
        show = take(4);
        click = take(4);
    }
    if (c.hot_bytes != 0) heat = take(4);
    at = (at + 7) / 8 * 8;
    key = take(8);
    stride = at;
}

RowStore::RowStore(Arena& arena, const RowLayout& layout, uint32_t num_partitions)
    : arena_(arena), stride_(layout.stride), partitions_(num_partitions) {
    block_shift_ = floor_log2(std::clamp(kBlockBytes / stride_, 1u, Block::kMaxRows));
    chunk_shift_ = std::max(floor_log2(std::max(kChunkBytes / stride_, 1u)), block_shift_);
    chunk_mask_ = (1u << chunk_shift_) - 1;
}

void RowStore::add_block(uint32_t partition) {
    Partition& p = partitions_[partition];
    const uint32_t b = num_blocks();
    const uint32_t first = first_row(b);
    if (uint64_t{b} + 1 > (kMaxRow >> block_shift_)) {
        throw std::runtime_error("table: more than 2^31 rows in one shard; use more shards");
    }
    if ((first >> chunk_shift_) == chunks_.size()) {
        if (chunks_.size() == chunks_.capacity()) chunks_.reserve(2 * chunks_.size() + 1);
        chunks_.push_back(static_cast<char*>(arena_.allocate(size_t{stride_} << chunk_shift_)));
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

uint32_t RowStore::allocate(uint32_t partition) {
    Partition& p = partitions_[partition];
    uint32_t row;
    if (!p.free.empty()) {
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

size_t RowStore::bytes_for(uint64_t num_rows, uint64_t num_partitions) const {
    const uint64_t with_gaps = num_rows + num_partitions * rows_per_block() / 2;
    return (((with_gaps + chunk_mask_) >> chunk_shift_) * stride_) << chunk_shift_;
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
