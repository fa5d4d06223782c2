// Rows in memory: where a row's parts lie, and which rows of which partition are in use.
//
//   row    = vector, optimizer state, optional fields, key
//   chunk  = all vectors of a power of two of rows, then all their states, fields and keys. A pull
//            touches the vector's own cache lines only, a push those and the dense states; row ->
//            address is one look-up in a directory small enough for the first-level cache
//   block  = some 24 KiB of rows of one partition: the unit of copy-on-write
//   record = the same row in one piece: vector | state | fields | key
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
constexpr uint32_t kNoField = 0xffffffffu;

inline bool is_cold(uint32_t row) {
    return (row & kCold) != 0 && row < kUnsure;
}

template <class T>
T& field(char* at, uint32_t offset) {
    return *reinterpret_cast<T*>(at + offset);
}
template <class T>
const T& field(const char* at, uint32_t offset) {
    return *reinterpret_cast<const T*>(at + offset);
}

struct RowLayout {
    explicit RowLayout(const Config& config);
    bool has_steps() const { return step != kNoField; }
    bool has_counters() const { return show != kNoField; }

    uint32_t dim, state_dim, value_bytes;  // value_bytes = size of one float that is computed with
    uint32_t wide_bytes;                   // of a vector of such floats
    uint32_t vector_bytes, state_bytes, fields_bytes = 0;  // as they lie in memory
    // Byte offsets within the fields; kNoField = the table has no such field.
    uint32_t step = kNoField, show = kNoField, click = kNoField, heat = kNoField;
    uint32_t record_state, record_fields, record_key, record_bytes;  // offsets within a record
};

// Where the parts of some consecutive rows lie.
struct RowParts {
    char* vectors;
    char* states;
    char* fields;
    uint64_t* keys;
};

// The cheap part of RowStore, which kernels copy.
struct RowView {
    char* const* chunks;
    int shift;
    uint32_t mask;
    uint32_t vector_bytes, state_bytes, fields_bytes;
    uint32_t states_at, fields_at, keys_at;  // within a chunk

    char* chunk(uint32_t row) const { return chunks[row >> shift]; }
    char* vector(uint32_t row) const { return chunk(row) + size_t{row & mask} * vector_bytes; }
    char* state(uint32_t row) const {
        return chunk(row) + states_at + size_t{row & mask} * state_bytes;
    }
    char* fields(uint32_t row) const {
        return chunk(row) + fields_at + size_t{row & mask} * fields_bytes;
    }
    uint64_t& key(uint32_t row) const {
        return reinterpret_cast<uint64_t*>(chunk(row) + keys_at)[row & mask];
    }
    RowParts parts(uint32_t row) const { return {vector(row), state(row), fields(row), &key(row)}; }
};

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

    // State and fields of a row that was never used before are zero; all else is undefined.
    uint32_t allocate(uint32_t partition);
    bool has_released(uint32_t partition) const { return !partitions_[partition].free.empty(); }
    void clear(uint32_t row);  // state and fields
    void release(uint32_t row);
    const RowView& view() const { return view_; }
    void save(uint32_t row, char* record) const;
    void restore(uint32_t row, const char* record);

    uint32_t block_of(uint32_t row) const { return row >> block_shift_; }
    uint32_t rows_per_block() const { return 1u << block_shift_; }
    uint32_t first_row(uint32_t block) const { return block << block_shift_; }
    const Block& block(uint32_t b) const { return blocks_[b]; }
    uint32_t num_blocks() const { return static_cast<uint32_t>(blocks_.size()); }
    const std::vector<uint32_t>& blocks_of(uint32_t partition) const {
        return partitions_[partition].blocks;
    }
    uint64_t live(uint32_t partition) const { return partitions_[partition].live; }
    uint64_t size() const { return size_; }
    size_t bookkeeping_bytes() const;
    // Memory of so many rows: whole chunks of blocks, of which the last of each partition is half
    // full.
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
    const RowLayout layout_;
    int block_shift_;
    size_t chunk_bytes_;
    RowView view_;
    std::vector<char*> chunks_;
    std::vector<Block> blocks_;
    std::vector<Partition> partitions_;
    uint64_t size_ = 0;
};

// Copies one row's parts between a place among others and a record.
void to_record(const RowLayout& layout, const RowParts& parts, uint32_t i, char* record);
void from_record(const RowLayout& layout, const char* record, const RowParts& parts, uint32_t i);

}  // namespace hps
