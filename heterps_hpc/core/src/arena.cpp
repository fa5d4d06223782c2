#include "arena.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <new>

namespace hps {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kFirstRegion = size_t{256} << 10;
constexpr size_t kLargestRegion = size_t{64} << 20;
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers do not have

size_t round_up(size_t n, size_t unit) {
    return (n + unit - 1) / unit * unit;
}

void* map_pages(size_t bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    return p;
}

// Maps `bytes` at a huge-page boundary by mapping more and giving the ends back.
void* map_aligned(size_t bytes) {
    char* p = static_cast<char*>(map_pages(bytes + kHugePage));
    char* base = reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(p), kHugePage));
    if (base > p) munmap(p, static_cast<size_t>(base - p));
    char* end = base + bytes;
    char* mapped_end = p + bytes + kHugePage;
    if (mapped_end > end) munmap(end, static_cast<size_t>(mapped_end - end));
    // A random row costs a TLB miss on 4 KiB pages. Advice only: the table works without it.
    madvise(base, bytes, MADV_HUGEPAGE);
    return base;
}

}  // namespace

Arena::~Arena() {
    for (const Region& r : regions_) munmap(r.base, r.bytes);
}

void Arena::add_region(size_t at_least) {
    const size_t last = regions_.empty() ? kFirstRegion / 2 : regions_.back().bytes;
    const size_t wanted = std::max(at_least, std::min(last * 2, kLargestRegion));
    const bool huge = wanted >= kHugePage;
    const size_t bytes = round_up(wanted, huge ? kHugePage : size_t{4096});
    regions_.reserve(regions_.size() + 1);
    void* base = huge ? map_aligned(bytes) : map_pages(bytes);
    regions_.push_back({base, bytes});
    next_ = static_cast<char*>(base);
    end_ = next_ + bytes;
}

void Arena::reserve(size_t bytes) {
    if (next_ != nullptr && static_cast<size_t>(end_ - next_) >= bytes) return;
    add_region(bytes);
    reserved_ = {next_, static_cast<size_t>(end_ - next_)};
}

void Arena::touch(Room room, const std::atomic<bool>& stop) {
    for (size_t at = 0; at < room.bytes && !stop; at += kHugePage) {
        // Fails where the system does not know it: then whoever writes first touches.
        if (madvise(room.base + at, std::min(kHugePage, room.bytes - at), kPopulateWrite) != 0)
            return;
    }
}

void* Arena::allocate(size_t bytes) {
    bytes = round_up(bytes, kLine);
    if (next_ == nullptr || static_cast<size_t>(end_ - next_) < bytes) add_region(bytes);
    char* p = next_;
    next_ += bytes;
    used_ += bytes;
    return p;
}

}  // namespace hps
