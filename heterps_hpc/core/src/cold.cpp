#include "cold.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace hps {
namespace {
constexpr uint32_t kSegmentBytes = 64 << 10;
constexpr uint64_t kMaxSlots = (uint64_t{1} << 31) - 2;  // the last two numbers mean something else
}  // namespace

ColdFile::ColdFile(std::string path, uint32_t record_bytes, uint32_t num_partitions)
    : path_(std::move(path)),
      record_bytes_(record_bytes),
      open_(num_partitions, -1),
      live_(num_partitions) {
    shift_ = 31 - __builtin_clz(std::max(kSegmentBytes / record_bytes, 1u));
    words_ = (slots_per_segment() + 63) / 64;
    // A file of its own that has no name any more: whoever else is given the same path does not
    // disturb it, and it is gone when the process is, however that ends.
    std::string name = path_ + ".XXXXXX";
    fd_ = ::mkostemp(name.data(), O_CLOEXEC);
    if (fd_ < 0) fail("be opened", errno);
    ::unlink(name.c_str());
}

ColdFile::~ColdFile() {
    ::close(fd_);
}

void ColdFile::fail(const char* action, int error) const {
    throw SpillError("spill file '" + path_ + "', which holds " + std::to_string(size()) +
                     " rows, cannot " + action + ": " +
                     (error == 0 ? "it is shorter than it was written" : std::strerror(error)) +
                     "; free space there, or give another spill_path or more hot_bytes");
}

void ColdFile::write(const Segment& s, uint32_t number) const {
    const size_t bytes = size_t{s.used} * record_bytes_;
    const off_t at = static_cast<off_t>(size_t{first_slot(number)} * record_bytes_);
    for (size_t done = 0; done < bytes;) {
        const ssize_t n =
            pwrite(fd_, s.buffer.get() + done, bytes - done, at + static_cast<off_t>(done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) fail("be written", n < 0 ? errno : ENOSPC);
        done += static_cast<size_t>(n);
    }
}

void ColdFile::read_segment(uint32_t segment, uint32_t num_slots, char* rows) const {
    const size_t bytes = size_t{num_slots} * record_bytes_;
    const off_t at = static_cast<off_t>(size_t{first_slot(segment)} * record_bytes_);
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = pread(fd_, rows + done, bytes - done, at + static_cast<off_t>(done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) fail("be read", n < 0 ? errno : 0);
        done += static_cast<size_t>(n);
    }
}

void ColdFile::read(uint32_t slot, char* row) const {
    const Segment& s = segments_[slot >> shift_];
    const uint32_t i = slot & (slots_per_segment() - 1);
    if (s.buffer != nullptr) {
        std::memcpy(row, s.buffer.get() + size_t{i} * record_bytes_, record_bytes_);
        return;
    }
    read_written(slot, row);
}

void ColdFile::read_written(uint32_t slot, char* row) const {
    for (size_t done = 0; done < record_bytes_;) {
        const ssize_t n = pread(fd_, row + done, record_bytes_ - done,
                                static_cast<off_t>(size_t{slot} * record_bytes_ + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) fail("be read", n < 0 ? errno : 0);
        done += static_cast<size_t>(n);
    }
}

uint32_t ColdFile::take_segment(uint32_t partition) {
    uint32_t number;
    auto buffer = std::make_unique<char[]>(size_t{slots_per_segment()} * record_bytes_);
    if (!free_.empty()) {
        number = free_.back();
        free_.pop_back();
    } else {
        if ((segments_.size() + 1) << shift_ > kMaxSlots) {
            throw SpillError("spill file '" + path_ + "' holds 2^31 rows; use more shards");
        }
        number = static_cast<uint32_t>(segments_.size());
        bits_.resize((segments_.size() + 1) * words_);
        segments_.emplace_back();
    }
    std::fill_n(&bits_[size_t{number} * words_], words_, 0);
    segments_[number] = {partition, 0, 0, std::move(buffer)};
    open_[partition] = number;
    return number;
}

uint32_t ColdFile::append(uint32_t partition, const char* row) {
    if (open_[partition] >= 0) {
        const auto number = static_cast<uint32_t>(open_[partition]);
        Segment& full = segments_[number];
        if (full.used == slots_per_segment()) {
            if (full.live > 0) write(full, number);
            full.buffer.reset();
            open_[partition] = -1;
            if (full.live == 0) retire(number);
        }
    }
    const uint32_t number =
        open_[partition] >= 0 ? static_cast<uint32_t>(open_[partition]) : take_segment(partition);
    Segment& s = segments_[number];
    const uint32_t i = s.used++;
    std::memcpy(s.buffer.get() + size_t{i} * record_bytes_, row, record_bytes_);
    const uint32_t slot = first_slot(number) + i;
    word_of(slot) |= uint64_t{1} << (i % 64);
    ++s.live;
    ++live_[partition];
    size_.fetch_add(1, std::memory_order_relaxed);
    return slot;
}

void ColdFile::write_open() {
    for (const int64_t number : open_) {
        if (number >= 0)
            write(segments_[static_cast<size_t>(number)], static_cast<uint32_t>(number));
    }
}

void ColdFile::free(uint32_t slot) {
    const uint32_t number = slot >> shift_;
    const uint32_t i = slot & (slots_per_segment() - 1);
    Segment& s = segments_[number];
    word_of(slot) &= ~(uint64_t{1} << (i % 64));
    --s.live;
    --live_[s.partition];
    size_.fetch_sub(1, std::memory_order_relaxed);
    if (s.live == 0 && s.buffer == nullptr) retire(number);
}

void ColdFile::retire(uint32_t segment) {
    (holders_ > 0 ? limbo_ : free_).push_back(segment);
}

void ColdFile::unhold() {
    if (--holders_ > 0) return;
    free_.insert(free_.end(), limbo_.begin(), limbo_.end());
    limbo_.clear();
}

std::vector<uint32_t> ColdFile::segments_of(uint32_t partition) const {
    std::vector<uint32_t> result;
    for (uint32_t s = 0; s < segments_.size(); ++s) {
        if (segments_[s].live > 0 && segments_[s].partition == partition) result.push_back(s);
    }
    return result;
}

bool ColdFile::wasteful() const {
    const uint64_t written = (segments_.size() - free_.size() - limbo_.size()) << shift_;
    const uint64_t slack = uint64_t{2 * open_.size()} << shift_;
    return written > 2 * size() + slack;
}

int64_t ColdFile::wasteful_segment() const {
    int64_t best = -1;
    uint32_t least = slots_per_segment() / 2;
    for (uint32_t s = 0; s < segments_.size(); ++s) {
        if (segments_[s].buffer == nullptr && segments_[s].live > 0 && segments_[s].live < least) {
            least = segments_[s].live;
            best = s;
        }
    }
    return best;
}

size_t ColdFile::memory_bytes() const {
    size_t bytes = segments_.capacity() * sizeof(Segment) + bits_.capacity() * sizeof(uint64_t);
    for (const Segment& s : segments_) {
        if (s.buffer != nullptr) bytes += size_t{slots_per_segment()} * record_bytes_;
    }
    return bytes;
}

}  // namespace hps
