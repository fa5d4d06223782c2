// The arithmetic on vectors, compiled once per instruction set and chosen at run time, so that one
// build serves all nodes of a cluster. No fused multiply-add and a fixed order of summation: every
// instruction set gives the same bits.
#pragma once
#include <cstddef>
#include <cstdint>

#include "config.hpp"
#include "index.hpp"
#include "rows.hpp"

namespace hps {

// Looks up the hashes at places [first, last) in their home buckets, and fetches their vectors.
struct LookUpArgs {
    const uint64_t* hashes;
    uint32_t first, last;
    Homes homes;
    RowView view;
    uint32_t* rows;        // out, per place: kNoRow = not found, or not in memory
    const char** vectors;  // out, per place: null likewise
    Miss* misses;          // out: those; room for all
    size_t num_misses = 0;
};

// Pools the vectors of keys [key_begin, key_end) into rows of `out`. A sample cut by the range is
// continued by the next call.
struct PoolArgs {
    const char* const* vectors;  // per place; null = contributes nothing
    const uint32_t* member;      // per key: its place
    bool far;                    // whether the vectors have left the cache since their look-up
    int64_t key_begin, key_end;
    const int64_t* offsets;  // null = one key per sample
    int64_t sample;          // in: first sample to work on; out: the one to continue with
    int64_t num_samples;
    const void* weights;  // per key, or null
    bool mean;
    char* out;
    int64_t out_stride;  // bytes
    char* wide;          // scratch: a vector of the type that is computed in
    uint32_t dim;
};

// Sums gradients by place, in the order of the sources.
struct SumArgs {
    const uint32_t* member;   // per source: its place; in order of first appearance
    const uint32_t* sample;   // per source: the row of its gradient; null = source i has row i
    const int64_t* offsets;   // null, or the sources are all keys of samples, each once
    int64_t num_samples;      // with offsets
    const void* coefficient;  // per source, or null for all ones
    int64_t num_sources;
    const char* gradients;
    int64_t stride;  // bytes
    void* sums;      // out: one vector per place
    uint32_t next;   // in, out: the place that appears next; it is not set yet
    uint32_t step;   // from it to the one after it
    uint32_t dim;
};

// Updates the rows at places first, first + step, ... once.
struct ApplyArgs {
    RowView rows;
    const uint32_t* places;  // their rows; kNoRow = nothing to update
    const uint64_t* hashes;  // of their keys; only for rows of half precision
    uint32_t num_places;
    uint32_t first, step;
    void* sums;  // the gradients by place; used as scratch
    char* wide;  // scratch: a vector of the type that is computed in
    // A row is rounded by bits that depend on this and its key alone.
    uint64_t rounding_seed;
    uint32_t dim;
    double lr, eps, weight_decay, beta1, beta2, clip_norm;
    uint64_t skipped = 0;  // out: rows whose gradient was not finite
};

// Draws the initial vector of a row whose hash is `base`, in the type that is computed in.
struct DrawArgs {
    uint64_t base;
    char* vector;
    uint32_t dim;
    Init init;
    double scale;
};

constexpr uint32_t kHashesAtOnce = 64;
using HashKeys = void(const uint64_t* keys, uint32_t n, const Homes* homes, uint64_t* hashes);

struct Kernels {
    HashKeys* hash_keys;
    void (*look_up)(LookUpArgs&);
    void (*pool)(PoolArgs&);
    // False = some gradient is not finite; only known if `sample` is null.
    bool (*sum)(SumArgs&);
    void (*apply)(ApplyArgs&);
    void (*draw)(const DrawArgs&);
    bool (*finite)(const void* values, int64_t rows, int64_t cols, int64_t stride);
    // Between a vector as it is stored and the type that is computed in; rounds to the nearest.
    void (*widen)(const char* vector, char* wide, uint32_t dim);
    void (*narrow)(const char* wide, char* vector, uint32_t dim);
    const char* isa;
};

// isa: "auto", "avx2" or "baseline". Throws std::invalid_argument if this processor lacks it.
Kernels choose_kernels(const Config& config, const char* isa);

Kernels baseline_kernels(const Config& config);
#if defined(__x86_64__)
Kernels avx2_kernels(const Config& config);
HashKeys* avx512_hash_keys();
#endif

}  // namespace hps
