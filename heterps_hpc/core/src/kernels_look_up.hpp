// Looking up hashes in their home buckets; a part of kernels_impl.hpp, and included only there.

// Which of a bucket's hashes are the wanted one, as bits.
inline uint32_t matches(const Bucket& bucket, uint64_t hash) {
#if defined(HPS_HAS_AVX2)
    const __m256i four = _mm256_load_si256(reinterpret_cast<const __m256i*>(bucket.hash));
    const __m256i equal = _mm256_cmpeq_epi64(four, _mm256_set1_epi64x(static_cast<int64_t>(hash)));
    const int mask = _mm256_movemask_pd(_mm256_castsi256_pd(equal));
    return static_cast<uint32_t>(mask) | uint32_t{bucket.hash[4] == hash} << 4;
#else
    return matching(bucket, hash);
#endif
}

template <bool ONE_LINE>
inline void look_up_rows(LookUpArgs& a) {
    const Homes homes = a.homes;
    const RowView view = a.view;
    const uint64_t* hashes = a.hashes;
    Miss* miss = a.misses;
    for (uint32_t u = a.first; u < a.last; ++u) {
        const Bucket* home = homes.home(hashes[u]);
        const uint32_t row = Index::candidate(*home, matches(*home, hashes[u]));
        if (row < kCold) [[likely]] {
            const char* vector = view.vector(row);
            a.rows[u] = row;
            a.vectors[u] = vector;
            if (ONE_LINE) {
                prefetch_line(vector);
            } else {
                prefetch_lines(vector, view.vector_bytes);
            }
            continue;
        }
        // Where it lies, or where it will be put if it is new.
        if (row == kUnsure || home->full()) __builtin_prefetch(home + 1);
        a.rows[u] = kNoRow;
        a.vectors[u] = nullptr;
        *miss++ = {u, row};
    }
    a.num_misses = static_cast<size_t>(miss - a.misses);
}

void look_up(LookUpArgs& a) {
    if (a.view.vector_bytes == 64) {  // vectors begin on a line
        look_up_rows<true>(a);
    } else {
        look_up_rows<false>(a);
    }
}
