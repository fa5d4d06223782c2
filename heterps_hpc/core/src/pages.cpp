#include "pages.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <system_error>

namespace hps {
namespace {

constexpr size_t kPage = 4096;
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers do not have

size_t round_up(size_t n, size_t unit) {
    return (n + unit - 1) / unit * unit;
}

char* map(size_t bytes, int protection) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (protection == PROT_NONE ? MAP_NORESERVE : 0);
    void* p = mmap(nullptr, bytes, protection, flags, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    return static_cast<char*>(p);
}

// At a huge-page boundary, by mapping more and giving the ends back.
char* map_aligned(size_t bytes, int protection) {
    char* p = map(bytes + kHugePage, protection);
    char* base = reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(p), kHugePage));
    if (base > p) munmap(p, static_cast<size_t>(base - p));
    char* end = base + bytes;
    char* mapped_end = p + bytes + kHugePage;
    if (mapped_end > end) munmap(end, static_cast<size_t>(mapped_end - end));
    return base;
}

void touch(MemoryRange range, const std::atomic<bool>& stop) {
    for (size_t at = 0; at < range.bytes && !stop; at += kHugePage) {
        // Fails where the system does not know it, or the range has moved meanwhile: then the
        // first write to a page touches it.
        if (madvise(range.base + at, std::min(kHugePage, range.bytes - at), kPopulateWrite) != 0)
            return;
    }
}

}  // namespace

MemoryRange map_memory(size_t bytes) {
    if (bytes < kHugePage) {
        bytes = round_up(bytes, kPage);
        return {map(bytes, PROT_READ | PROT_WRITE), bytes};
    }
    bytes = round_up(bytes, kHugePage);
    char* base = map_aligned(bytes, PROT_READ | PROT_WRITE);
    madvise(base, bytes, MADV_HUGEPAGE);  // advice only: the table works without it
    return {base, bytes};
}

void unmap_memory(MemoryRange range) {
    if (range.base != nullptr) munmap(range.base, range.bytes);
}

// Small arrays are copied, so that what is large lies on huge pages from its first byte.
void GrowableMemory::move_to(MemoryRange larger) {
    if (committed_ >= kHugePage) {
        void* moved = mremap(reserved_.base, committed_, committed_, MREMAP_MAYMOVE | MREMAP_FIXED,
                             larger.base);
        if (moved == MAP_FAILED) {
            unmap_memory(larger);
            throw std::bad_alloc();
        }
        unmap_memory({reserved_.base + committed_, reserved_.bytes - committed_});
    } else if (committed_ > 0) {
        std::memcpy(larger.base, reserved_.base, committed_);
        unmap_memory(reserved_);
    }
    reserved_ = larger;
}

void GrowableMemory::grow(size_t bytes) {
    if (bytes <= committed_) return;
    bytes = round_up(bytes, bytes < kHugePage ? kPage : kHugePage);
    const bool huge = bytes >= kHugePage;
    if (bytes > reserved_.bytes || (huge && committed_ < kHugePage)) {
        const size_t grown = round_up(std::max(bytes, 2 * committed_), kHugePage);
        const size_t capacity = std::max(grown, reserved_.bytes);
        const MemoryRange larger = {map_aligned(capacity, PROT_NONE), capacity};
        if (huge) madvise(larger.base, larger.bytes, MADV_HUGEPAGE);
        // writable before anything moves: a failure must leave what there is where it is
        if (mprotect(larger.base, bytes, PROT_READ | PROT_WRITE) != 0) {
            unmap_memory(larger);
            throw std::bad_alloc();
        }
        move_to(larger);
    } else if (mprotect(reserved_.base, bytes, PROT_READ | PROT_WRITE) != 0) {
        throw std::bad_alloc();
    }
    committed_ = bytes;
}

void PageToucher::start(std::vector<MemoryRange> ranges) {
    stop();
    const std::lock_guard lock(mutex_);
    stop_ = false;
    sigset_t all, before;  // signals are for the threads that Python knows
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        thread_ = std::thread([this, ranges = std::move(ranges)] {
            pthread_setname_np(pthread_self(), "heterps-touch");
            for (const MemoryRange& range : ranges) touch(range, stop_);
        });
    } catch (const std::system_error&) {
        // The system has no more threads: the first write to a page touches it.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void PageToucher::stop() {
    stop_ = true;
    wait();
}

void PageToucher::wait() {
    const std::lock_guard lock(mutex_);
    if (thread_.joinable()) thread_.join();
}

}  // namespace hps
