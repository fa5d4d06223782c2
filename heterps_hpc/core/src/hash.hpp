// Every number that must not depend on arrival order or sharding is a hash of the key; all of
// them live here, so that Python, the tests and other implementations can reproduce them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hps {

// Finaliser of MurmurHash3 (a bijection): the index hash.
inline uint64_t mix64(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdULL;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ULL;
    x ^= x >> 33;
    return x;
}

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

// 32 random bits for element i of a row whose hash is `base`. Only 32-bit operations, so that
// compilers can vectorise it.
inline uint32_t element_bits(uint64_t base, uint32_t i) {
    uint32_t x = static_cast<uint32_t>(base) + i * 0x9e3779b9u;
    x ^= x >> 16;
    x *= 0x85ebca6bu;
    x ^= x >> 13;
    x += static_cast<uint32_t>(base >> 32);
    x *= 0xc2b2ae35u;
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    return x;
}

}  // namespace hps
