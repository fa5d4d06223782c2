#include "snapshot.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace hps {

Snapshot::Snapshot(std::shared_ptr<Table> table)
    : table_(std::move(table)),
      layout_(table_->layout_),
      step_(table_->step_),
      view_(table_->rows_.view()),
      parts_(table_->config_.num_partitions) {
    const RowStore& rows = table_->rows_;
    const uint32_t n = rows.num_blocks();
    const size_t num_chunks = n == 0 ? 0 : (size_t{rows.first_row(n - 1)} >> view_.shift) + 1;
    chunks_.assign(view_.chunks, view_.chunks + num_chunks);
    view_.chunks = chunks_.data();
    blocks_.reserve(n);
    for (uint32_t b = 0; b < n; ++b) blocks_.push_back(rows.block(b));
    state_ = std::make_unique<std::atomic<State>[]>(n);
    for (const uint32_t p : table_->held_list_) {
        parts_[p].blocks = rows.blocks_of(p);
        parts_[p].num_rows = rows.live(p);
        if (table_->cold_) {
            parts_[p].num_rows += table_->cold_->live(p);
            for (const uint32_t number : table_->cold_->segments_of(p)) {
                const ColdFile::Segment& s = table_->cold_->segment(number);
                const uint64_t* bits = table_->cold_->bits(number);
                parts_[p].cold.push_back(
                    {number, s.used, {bits, bits + table_->cold_->words_per_segment()}});
            }
        }
        if (table_->admission_.enabled()) parts_[p].sightings = table_->admission_.share(p);
    }
}

void Snapshot::preserve(uint32_t block) {
    if (block >= blocks_.size() ||
        state_[block].load(std::memory_order_acquire) != State::kPending) {
        return;
    }
    const std::lock_guard lock(mutex_);
    if (state_[block].load(std::memory_order_relaxed) != State::kPending) return;
    const size_t n = table_->rows_.rows_per_block();
    auto copy = std::make_unique<char[]>(n * layout_.record_bytes);
    const RowParts from = view_.parts(table_->rows_.first_row(block));
    const RowParts to = parts_in(copy.get());
    std::memcpy(to.vectors, from.vectors, n * layout_.vector_bytes);
    std::memcpy(to.states, from.states, n * layout_.state_bytes);
    std::memcpy(to.fields, from.fields, n * layout_.fields_bytes);
    std::memcpy(to.keys, from.keys, n * sizeof(uint64_t));
    preserved_.emplace(block, std::move(copy));
    state_[block].store(State::kPreserved, std::memory_order_release);
}

Snapshot::Cursor Snapshot::open(uint32_t partition, uint64_t since) const {
    if (since > 0 && !layout_.has_steps()) {
        throw std::invalid_argument(
            "snapshot: this table does not know when its rows changed; make it with "
            "track_steps=True to read changed rows");
    }
    Cursor cursor;
    cursor.partition = partition;
    cursor.since = since;
    return cursor;
}

// Where the parts lie in a block's copy: keys first, which must be aligned.
RowParts Snapshot::parts_in(char* block) const {
    const size_t n = table_->rows_.rows_per_block();
    char* vectors = block + n * sizeof(uint64_t);
    char* states = vectors + n * layout_.vector_bytes;
    return {vectors, states, states + n * layout_.state_bytes, reinterpret_cast<uint64_t*>(block)};
}

// Drops the records of a cursor that were not in use, or are older than it wants.
void Snapshot::keep_used(const uint64_t* used, uint32_t n, Cursor& cursor) const {
    const size_t bytes = layout_.record_bytes;
    cursor.num_rows = cursor.next_row = 0;
    for (uint32_t i = 0; i < n; ++i) {
        if (((used[i / 64] >> (i % 64)) & 1) == 0) continue;
        const char* record = cursor.rows.data() + i * bytes;
        const char* fields = record + layout_.record_fields;
        if (cursor.since > 0 && field<uint32_t>(fields, layout_.step) < cursor.since) continue;
        if (i != cursor.num_rows) {
            std::memcpy(cursor.rows.data() + cursor.num_rows * bytes, record, bytes);
        }
        ++cursor.num_rows;
    }
}

bool Snapshot::load_more(Cursor& cursor) {
    const Part& part = parts_[cursor.partition];
    const size_t i = cursor.next_block++;
    if (i < part.blocks.size()) {
        load_block(cursor, part.blocks[i]);
        return true;
    }
    if (i - part.blocks.size() >= part.cold.size()) return false;
    load_cold(cursor, part.cold[i - part.blocks.size()]);
    return true;
}

void Snapshot::load_block(Cursor& cursor, uint32_t b) {
    const std::lock_guard lock(mutex_);
    if (closed_ || state_[b].load(std::memory_order_relaxed) == State::kReleased) {
        throw std::runtime_error("snapshot: read after close() or release(); take a new snapshot");
    }
    const auto it = preserved_.find(b);
    const RowParts parts = it != preserved_.end() ? parts_in(it->second.get())
                                                  : view_.parts(table_->rows_.first_row(b));
    const uint32_t n = table_->rows_.rows_per_block();
    cursor.rows.resize(size_t{n} * layout_.record_bytes);
    for (uint32_t i = 0; i < n; ++i) {
        if (blocks_[b].has(i)) {
            to_record(layout_, parts, i, cursor.rows.data() + size_t{i} * layout_.record_bytes);
        }
    }
    keep_used(blocks_[b].used, n, cursor);
}

void Snapshot::load_cold(Cursor& cursor, const ColdPart& part) const {
    if (closed_) throw std::runtime_error("snapshot: read after close(); take a new snapshot");
    cursor.rows.resize(size_t{part.used} * layout_.record_bytes);
    table_->cold_->read_segment(part.segment, part.used, cursor.rows.data());
    keep_used(part.bits.data(), part.used, cursor);
}

void Snapshot::copy_out(const char* record, int64_t i, const RowArrays& out) const {
    const auto n = static_cast<size_t>(i);
    const char* fields = record + layout_.record_fields;
    out.keys[n] = field<uint64_t>(record, layout_.record_key);
    table_->kernels_.widen(record, out.vectors + n * layout_.wide_bytes, layout_.dim);
    std::memcpy(out.state + n * layout_.state_bytes, record + layout_.record_state,
                layout_.state_bytes);
    if (layout_.has_steps()) out.step[n] = field<uint32_t>(fields, layout_.step);
    if (layout_.has_counters()) {
        out.show[n] = field<float>(fields, layout_.show);
        out.click[n] = field<float>(fields, layout_.click);
    }
}

int64_t Snapshot::read(Cursor& cursor, int64_t max_rows, const RowArrays& out) {
    int64_t n = 0;
    while (n < max_rows) {
        if (cursor.next_row == cursor.num_rows && !load_more(cursor)) break;
        for (; cursor.next_row < cursor.num_rows && n < max_rows; ++cursor.next_row, ++n) {
            copy_out(cursor.rows.data() + size_t{cursor.next_row} * layout_.record_bytes, n, out);
        }
    }
    cursor.num_read += static_cast<uint64_t>(n);
    return n;
}

void Snapshot::release(uint32_t partition) {
    const std::lock_guard lock(mutex_);
    for (const uint32_t b : parts_[partition].blocks) {
        state_[b].store(State::kReleased, std::memory_order_release);
        preserved_.erase(b);
    }
}

// Leaves the table first, whose lock comes before this one's.
void Snapshot::close() {
    table_->forget_snapshot(this);
    const std::lock_guard lock(mutex_);
    closed_ = true;
    preserved_.clear();
}

Snapshot::~Snapshot() {
    close();
}

std::shared_ptr<const Sightings> Snapshot::sightings(uint32_t partition) const {
    return parts_[partition].sightings;
}

uint64_t Snapshot::num_rows(uint32_t partition) const {
    return parts_[partition].num_rows;
}

size_t Snapshot::preserved_bytes() const {
    const std::lock_guard lock(mutex_);
    return preserved_.size() * table_->rows_.rows_per_block() * layout_.record_bytes;
}

}  // namespace hps
