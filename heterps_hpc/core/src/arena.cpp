#include "arena.hpp"

#include <algorithm>

namespace hps {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kFirstRegion = size_t{256} << 10;
constexpr size_t kLargeRegion = size_t{16} << 20;
constexpr size_t kLargestRegion = size_t{64} << 20;

// About so many bytes of equal pieces. Of a large region what is left behind the last piece costs
// memory without use, up to a huge page: take the number of pieces that leaves least.
size_t region_bytes(size_t piece, size_t about) {
    const size_t least = std::max(about / piece, size_t{1});
    if (about < kLargeRegion) return std::max(about, piece);
    const auto left = [piece](size_t n) { return (kHugePage - n * piece % kHugePage) % kHugePage; };
    size_t best = least;
    for (size_t n = least; n <= least + 8; ++n) best = left(n) < left(best) ? n : best;
    return best * piece;
}

}  // namespace

Arena::~Arena() {
    for (const MemoryRange& r : regions_) unmap_memory(r);
}

void Arena::add_region(size_t bytes) {
    regions_.reserve(regions_.size() + 1);
    regions_.push_back(map_memory(bytes));
    next_ = regions_.back().base;
    end_ = next_ + regions_.back().bytes;
}

void Arena::reserve(size_t bytes) {
    if (unused().bytes < bytes) add_region(bytes);
}

void* Arena::allocate(size_t bytes) {
    bytes = (bytes + kLine - 1) / kLine * kLine;
    if (unused().bytes < bytes) {
        const size_t last = regions_.empty() ? kFirstRegion / 2 : regions_.back().bytes;
        add_region(region_bytes(bytes, std::min(last * 2, kLargestRegion)));
    }
    char* p = next_;
    next_ += bytes;
    used_ += bytes;
    return p;
}

}  // namespace hps
