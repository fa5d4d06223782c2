// Rows on disk. Log-structured: rows are appended to segments of one partition each, written as a
// whole when full and never changed; a row that leaves only clears its bit. So writes are large
// and sequential, a reader needs no lock against the writer, and a snapshot keeps old rows by
// keeping their segments.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rows.hpp"

namespace hps {

struct SpillError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class ColdFile {
 public:
    struct Segment {
        uint32_t partition = 0;
        uint32_t used = 0;  // slots appended so far
        uint32_t live = 0;
        std::unique_ptr<char[]> buffer;  // until the segment is full and written
    };

    ColdFile(std::string path, uint32_t record_bytes, uint32_t num_partitions);
    ColdFile(const ColdFile&) = delete;
    ColdFile& operator=(const ColdFile&) = delete;
    ~ColdFile();

    // All of these throw SpillError and then have changed nothing.
    uint32_t append(uint32_t partition, const char* row);  // returns the slot
    void read(uint32_t slot, char* row) const;
    void read_written(uint32_t slot, char* row) const;  // from any thread; the slot is in the file
    void read_segment(uint32_t segment, uint32_t num_slots, char* rows) const;
    void write_open();  // so that everything is in the file

    void free(uint32_t slot);
    bool in_memory(uint32_t slot) const { return segments_[slot >> shift_].buffer != nullptr; }
    uint32_t slots_per_segment() const { return 1u << shift_; }
    uint32_t first_slot(uint32_t segment) const { return segment << shift_; }
    const Segment& segment(uint32_t s) const { return segments_[s]; }
    // A bit for each slot of a segment: whether it is live.
    const uint64_t* bits(uint32_t segment) const { return &bits_[size_t{segment} * words_]; }
    size_t words_per_segment() const { return words_; }
    bool has(uint32_t segment, uint32_t i) const { return (bits(segment)[i / 64] >> (i % 64)) & 1; }
    // Brings what free() needs into the cache, if this candidate of the index is a slot.
    void expect(uint32_t candidate) const {
        if (!is_cold(candidate)) return;
        const uint32_t slot = candidate & ~kCold;
        __builtin_prefetch(&segments_[slot >> shift_], 1);
        __builtin_prefetch(&word_of(slot), 1);
    }
    std::vector<uint32_t> segments_of(uint32_t partition) const;  // those with live rows
    uint64_t size() const { return size_.load(std::memory_order_relaxed); }
    uint64_t live(uint32_t partition) const { return live_[partition]; }
    bool wasteful() const;             // more than half of the file is dead
    int64_t wasteful_segment() const;  // the written segment with the fewest live rows, or -1
    // While held (by snapshots), segments without live rows are not reused.
    void hold() { ++holders_; }
    void unhold();
    size_t memory_bytes() const;

 private:
    void write(const Segment& segment, uint32_t number) const;
    uint32_t take_segment(uint32_t partition);
    void retire(uint32_t segment);
    const uint64_t& word_of(uint32_t slot) const {
        return bits_[size_t{slot >> shift_} * words_ + (slot & (slots_per_segment() - 1)) / 64];
    }
    uint64_t& word_of(uint32_t slot) {
        return const_cast<uint64_t&>(std::as_const(*this).word_of(slot));
    }
    [[noreturn]] void fail(const char* action, int error) const;

    const std::string path_;
    const uint32_t record_bytes_;
    int shift_;
    size_t words_;  // of bits, per segment
    int fd_ = -1;
    std::vector<Segment> segments_;
    std::vector<uint64_t> bits_;
    std::vector<int64_t> open_;  // per partition, or -1
    std::vector<uint64_t> live_;
    std::vector<uint32_t> free_, limbo_;
    std::atomic<uint64_t> size_{0};
    int holders_ = 0;
};

}  // namespace hps
