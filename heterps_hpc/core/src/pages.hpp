// Memory straight from the system: on huge pages where there is enough of it, because a random row
// costs a TLB miss on 4 KiB pages; and touched in advance where it is known to be needed.
#pragma once
#include <atomic>
#include <cstddef>
#include <mutex>
#include <thread>
#include <vector>

namespace hps {

constexpr size_t kHugePage = size_t{2} << 20;

struct MemoryRange {
    char* base = nullptr;
    size_t bytes = 0;
};

// Zeroed memory of at least so many bytes. Throws std::bad_alloc.
MemoryRange map_memory(size_t bytes);
void unmap_memory(MemoryRange range);

// One array that grows in place, as far as its address range goes, and moves by moving pages, not
// bytes, where it does not.
class GrowableMemory {
 public:
    GrowableMemory() = default;
    GrowableMemory(const GrowableMemory&) = delete;
    GrowableMemory& operator=(const GrowableMemory&) = delete;
    ~GrowableMemory() { unmap_memory(reserved_); }

    // Has at least so many bytes; the new ones are zero. Throws std::bad_alloc, and then nothing
    // has changed.
    void grow(size_t bytes);
    char* data() const { return reserved_.base; }
    MemoryRange range() const { return {reserved_.base, committed_}; }

 private:
    void move_to(MemoryRange larger);

    MemoryRange reserved_;
    size_t committed_ = 0;
};

// Touches memory on a thread of its own: the system clears a page when it is first touched, which
// takes as long as filling it.
class PageToucher {
 public:
    PageToucher() = default;
    PageToucher(const PageToucher&) = delete;
    PageToucher& operator=(const PageToucher&) = delete;
    ~PageToucher() { stop(); }

    void start(
        std::vector<MemoryRange> ranges);  // in order, after it has stopped with those before
    void stop();
    void wait();  // until all is touched

 private:
    std::mutex mutex_;
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

}  // namespace hps
