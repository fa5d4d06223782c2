// A consistent view of a table at one moment, read by another thread while training continues.
//
// Copy-on-write by block: the table preserves a block before it first writes to it, unless the
// reader has already passed it. Rows never move, so the table keeps its addresses and the snapshot
// gets the copy.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "table.hpp"

namespace hps {

class Snapshot {
 public:
    explicit Snapshot(std::shared_ptr<Table> table);  // with the table's lock held
    ~Snapshot();

    // Reads a partition from its start, some rows at a time. One cursor per partition and thread.
    struct Cursor {
        uint32_t partition;
        uint64_t since;         // only rows changed at this step or later
        size_t next_block = 0;  // into the partition's blocks, and then its segments on disk
        uint32_t next_row = 0;  // within `rows`
        uint32_t num_rows = 0;
        uint64_t num_read = 0;
        std::vector<char> rows;  // records of a block's rows in use
    };
    Cursor open(uint32_t partition, uint64_t since) const;
    int64_t read(Cursor& cursor, int64_t max_rows, const RowArrays& out);

    void preserve(uint32_t block);
    void release(uint32_t partition);  // it was read: preserve nothing more of it
    void close();

    std::shared_ptr<const Sightings> sightings(uint32_t partition) const;
    uint64_t num_rows(uint32_t partition) const;
    uint64_t step() const { return step_; }
    size_t preserved_bytes() const;
    const Table& table() const { return *table_; }

 private:
    enum class State : uint8_t { kPending, kPreserved, kReleased };
    struct ColdPart {
        uint32_t segment, used;
        std::vector<uint64_t> bits;
    };
    struct Part {
        std::vector<uint32_t> blocks;
        std::vector<ColdPart> cold;
        uint64_t num_rows = 0;
        std::shared_ptr<const Sightings> sightings;
    };
    bool load_more(Cursor& cursor);
    void load_block(Cursor& cursor, uint32_t block);
    void load_cold(Cursor& cursor, const ColdPart& part) const;
    RowParts parts_in(char* block) const;
    void keep_used(const uint64_t* used, uint32_t n, Cursor& cursor) const;
    void copy_out(const char* record, int64_t i, const RowArrays& out) const;

    std::shared_ptr<Table> table_;
    const RowLayout layout_;
    uint64_t step_;
    RowView view_;
    std::vector<char*> chunks_;  // the table's own directory may move as it grows
    std::vector<Block> blocks_;  // which rows were in use
    std::vector<Part> parts_;
    mutable std::mutex mutex_;
    std::unique_ptr<std::atomic<State>[]> state_;
    std::unordered_map<uint32_t, std::unique_ptr<char[]>> preserved_;
    std::atomic<bool> closed_{false};
};

}  // namespace hps
