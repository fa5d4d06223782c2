// Rows in memory: where a row's fields lie, and which rows of which partition are in use.
//
//   row   = vector | optimizer state | optional fields | key
//   block = some 16 KiB of rows of one partition: the unit of copy-on-write
//   chunk = a power of two of rows: the unit of allocation, so row -> address is one look-up in a
//           directory small enough for the first-level cache
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

#include "arena.hpp"
#include "config.hpp"

namespace hps {

constexpr uint32_t kNoRow = 0xffffffffu;   // no such row
constexpr uint32_t kUnsure = 0xfffffffeu;  // the index must be asked by find()
constexpr uint32_t kCold = 0x80000000u;    // with this bit: a slot of the cold file
constexpr uint32_t kMaxRow = kCold;

inline bool is_cold(uint32_t row) {
    return (row & kCold) != 0 && row < kUnsure;
}

// Byte offsets within a row; 0 = the table has no such field (the vector is always at 0).
struct RowLayout {
    explicit RowLayout(const Config& config);
    uint32_t dim, state_dim, value_bytes;  // value_bytes = size of one float
    uint32_t state, step = 0, show = 0, click = 0, heat = 0, key;
    uint32_t stride;
};

// The cheap part of RowStore, which kernels copy.
struct RowView {
    char* const* chunks;
    int shift;
    uint32_t mask;
    uint32_t stride;
    char* at(uint32_t row) const { return chunks[row >> shift] + size_t{row & mask} * stride; }
};

template <class T>
T& field(char* row, uint32_t offset) {
    return *reinterpret_cast<T*>(row + offset);
}
template <class T>
const T& field(const char* row, uint32_t offset) {
    return *reinterpret_cast<const T*>(row + offset);
}

struct Block {
    static constexpr uint32_t kMaxRows = 256;
    uint32_t partition;
    uint32_t live = 0;
    uint64_t used[kMaxRows / 64] = {};  // bit = row in use
    bool has(uint32_t i) const { return (used[i / 64] >> (i % 64)) & 1; }
};

class RowStore {
 public:
    RowStore(Arena& arena, const RowLayout& layout, uint32_t num_partitions);

    uint32_t allocate(uint32_t partition);  // contents undefined
    void release(uint32_t row);
    char* at(uint32_t row) const { return view().at(row); }
    RowView view() const { return {chunks_.data(), chunk_shift_, chunk_mask_, stride_}; }

    uint32_t block_of(uint32_t row) const { return row >> block_shift_; }
    uint32_t rows_per_block() const { return 1u << block_shift_; }
    uint32_t first_row(uint32_t block) const { return block << block_shift_; }
    const Block& block(uint32_t b) const { return blocks_[b]; }
    uint32_t num_blocks() const { return static_cast<uint32_t>(blocks_.size()); }
    const std::vector<uint32_t>& blocks_of(uint32_t partition) const {
        return partitions_[partition].blocks;
    }
    // The row that allocate() would give; a snapshot must see it before it is written.
    bool has_free(uint32_t partition) const { return !partitions_[partition].free.empty(); }
    uint64_t live(uint32_t partition) const { return partitions_[partition].live; }
    uint64_t size() const { return size_; }
    size_t bookkeeping_bytes() const;
    // What so many rows take up: whole chunks of blocks, of which the last of each partition is
    // half full.
    size_t bytes_for(uint64_t num_rows, uint64_t num_partitions) const;

 private:
    struct Partition {
        std::vector<uint32_t> blocks;
        std::vector<uint32_t> free;  // rows released, last in first out
        uint32_t next = 0, end = 0;  // unused rows at the end of the newest block
        uint64_t live = 0;
    };
    void add_block(uint32_t partition);

    Arena& arena_;
    uint32_t stride_;
    int block_shift_, chunk_shift_;
    uint32_t chunk_mask_;
    std::vector<char*> chunks_;
    std::vector<Block> blocks_;
    std::vector<Partition> partitions_;
    uint64_t size_ = 0;
};

}  // namespace hps
