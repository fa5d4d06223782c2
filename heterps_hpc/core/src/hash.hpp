// Every number that must not depend on arrival order or sharding is a hash of the key; all of
// them live here, so that Python, the tests and other implementations can reproduce them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hps {

// Finaliser of MurmurHash3: the index hash. A bijection, so equal hashes are equal keys.
constexpr uint64_t mix64(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdULL;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ULL;
    x ^= x >> 33;
    return x;
}

// The key of a hash.
constexpr uint64_t unmix64(uint64_t x) {
    x ^= x >> 33;
    x *= 0x9cb4b2f8129337dbULL;
    x ^= x >> 33;
    x *= 0x4f74430c22a54005ULL;
    x ^= x >> 33;
    return x;
}
static_assert(unmix64(mix64(0x0123456789abcdefULL)) == 0x0123456789abcdefULL);

// Finaliser of SplitMix64. Partitions use another hash than the index: were they the same, the
// keys of one shard would crowd into a fraction of its index.
inline uint64_t split64(uint64_t x) {
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

inline uint32_t partition_of(uint64_t key, uint32_t num_partitions) {
    return static_cast<uint32_t>(((split64(key) >> 32) * num_partitions) >> 32);
}

inline uint64_t hash_bytes(std::string_view text, uint64_t seed) {
    uint64_t h = split64(seed ^ text.size());
    for (const char c : text) h = mix64((h ^ static_cast<uint8_t>(c)) * 0x9e3779b97f4a7c15ULL);
    return h;
}

}  // namespace hps
