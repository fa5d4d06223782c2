// Hashing keys and asking for their buckets; included once per instruction set, like
// kernels_impl.hpp.

// The hashes of some keys, up to kHashesAtOnce; with homes their buckets are on their way.
inline void hash_keys(const uint64_t* keys, uint32_t n, const Homes* homes, uint64_t* hashes) {
    for (uint32_t i = 0; i < n; ++i) hashes[i] = mix64(keys[i]);
    if (homes == nullptr) return;
    const Homes h = *homes;
    uint64_t number[kHashesAtOnce];
    for (uint32_t i = 0; i < n; ++i) number[i] = h.number(hashes[i]);
    for (uint32_t i = 0; i < n; ++i) prefetch_line(h.buckets + number[i]);
}
