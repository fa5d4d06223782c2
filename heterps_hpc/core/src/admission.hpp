// How often a key without a row was seen: exactly, or in a count-min sketch of bounded memory.
// Per partition, so that what a key's count is never depends on the number of shards.
#pragma once
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace hps {

struct Sightings {
    std::unordered_map<uint64_t, uint32_t> exact;
    std::vector<uint16_t> sketch;  // empty = exact; else kDepth rows of width cells
};

class Admission {
 public:
    Admission(uint32_t threshold, uint64_t sketch_bytes, uint32_t num_partitions);

    bool enabled() const { return threshold_ > 1; }
    // The sighting that asks counts too: a key with threshold - 1 earlier ones is admitted.
    bool admits(uint32_t partition, uint64_t key) const;
    void sight(uint32_t partition, uint64_t key);
    void forget(uint32_t partition, uint64_t key);  // the key has a row now

    // A snapshot shares the counts; the table copies a shared partition before it changes it.
    std::shared_ptr<const Sightings> share(uint32_t partition) const { return parts_[partition]; }
    void load(uint32_t partition, Sightings sightings);
    size_t bytes() const;

 private:
    static constexpr uint64_t kDepth = 4;
    Sightings& writable(uint32_t partition);
    uint32_t count(const Sightings& s, uint64_t key) const;
    size_t cell(uint64_t key, uint64_t row) const;

    uint32_t threshold_;
    uint64_t width_;
    std::vector<std::shared_ptr<Sightings>> parts_;
};

}  // namespace hps
