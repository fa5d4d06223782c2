#include "admission.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "hash.hpp"

namespace hps {

Admission::Admission(uint32_t threshold, uint64_t sketch_bytes, uint32_t num_partitions)
    : threshold_(threshold), width_(sketch_bytes / (kDepth * sizeof(uint16_t))) {
    if (!enabled()) return;
    for (uint32_t p = 0; p < num_partitions; ++p) {
        parts_.push_back(std::make_shared<Sightings>());
        parts_.back()->sketch.resize(width_ * kDepth);
    }
}

size_t Admission::cell(uint64_t key, uint64_t row) const {
    const uint64_t h = mix64(key + (row + 1) * 0x9e3779b97f4a7c15ULL);
    return row * width_ + static_cast<size_t>(((h >> 32) * width_) >> 32);
}

uint32_t Admission::count(const Sightings& s, uint64_t key) const {
    if (width_ == 0) {
        const auto it = s.exact.find(key);
        return it == s.exact.end() ? 0 : it->second;
    }
    uint32_t least = UINT16_MAX;
    for (uint64_t r = 0; r < kDepth; ++r) least = std::min<uint32_t>(least, s.sketch[cell(key, r)]);
    return least;
}

bool Admission::admits(uint32_t partition, uint64_t key) const {
    return !enabled() || count(*parts_[partition], key) + 1 >= threshold_;
}

Sightings& Admission::writable(uint32_t partition) {
    auto& part = parts_[partition];
    if (part.use_count() > 1) part = std::make_shared<Sightings>(*part);
    return *part;
}

void Admission::sight(uint32_t partition, uint64_t key) {
    Sightings& s = writable(partition);
    if (width_ == 0) {
        ++s.exact[key];
        return;
    }
    // Conservative update: only the smallest cells grow, which keeps the overcount small.
    const uint32_t least = count(s, key);
    if (least == UINT16_MAX) return;
    for (uint64_t r = 0; r < kDepth; ++r) {
        uint16_t& c = s.sketch[cell(key, r)];
        c = std::max<uint16_t>(c, static_cast<uint16_t>(least + 1));
    }
}

void Admission::forget(uint32_t partition, uint64_t key) {
    if (enabled() && width_ == 0) writable(partition).exact.erase(key);
}

void Admission::load(uint32_t partition, Sightings sightings) {
    if (!enabled()) return;
    if (sightings.sketch.size() != width_ * kDepth) {
        throw std::invalid_argument("admission sketch of partition " + std::to_string(partition) +
                                    " has " + std::to_string(sightings.sketch.size()) +
                                    " cells, this table's have " + std::to_string(width_ * kDepth) +
                                    "; load it with the sketch_bytes that it was saved with");
    }
    parts_[partition] = std::make_shared<Sightings>(std::move(sightings));
}

size_t Admission::bytes() const {
    size_t n = 0;
    for (const auto& p : parts_) {
        n += p->sketch.size() * sizeof(uint16_t);
        n += p->exact.size() * 40 + p->exact.bucket_count() * 8;  // node and bucket of libstdc++
    }
    return n;
}

}  // namespace hps
