#include "arena.hpp"

#include <algorithm>

namespace hps {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kFirstRegion = size_t{256} << 10;
constexpr size_t kLargestRegion = size_t{64} << 20;

}  // namespace

Arena::~Arena() {
    for (const MemoryRange& r : regions_) unmap_memory(r);
}

void Arena::add_region(size_t at_least) {
    const size_t last = regions_.empty() ? kFirstRegion / 2 : regions_.back().bytes;
    regions_.reserve(regions_.size() + 1);
    regions_.push_back(map_memory(std::max(at_least, std::min(last * 2, kLargestRegion))));
    next_ = regions_.back().base;
    end_ = next_ + regions_.back().bytes;
}

void Arena::reserve(size_t bytes) {
    if (unused().bytes < bytes) add_region(bytes);
}

void* Arena::allocate(size_t bytes) {
    bytes = (bytes + kLine - 1) / kLine * kLine;
    if (unused().bytes < bytes) add_region(bytes);
    char* p = next_;
    next_ += bytes;
    used_ += bytes;
    return p;
}

}  // namespace hps
