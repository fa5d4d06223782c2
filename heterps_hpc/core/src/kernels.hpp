// The arithmetic on vectors, compiled once per instruction set and chosen at run time, so that one
// build serves all nodes of a cluster. No fused multiply-add and a fixed order of summation: every
// instruction set gives the same bits.
#pragma once
#include <cstddef>
#include <cstdint>

#include "config.hpp"
#include "rows.hpp"

namespace hps {

// Pools the vectors of keys [key_begin, key_end) into rows of `out`. A sample cut by the range is
// continued by the next call.
struct PoolArgs {
    const char* const* vectors;  // of key_begin, ...; null = contributes nothing
    int64_t key_begin, key_end;
    const int64_t* offsets;  // null = one key per sample
    int64_t sample;          // in: first sample to work on; out: the one to go on with
    int64_t num_samples;
    const void* weights;  // per key, or null
    bool mean;
    char* out;
    int64_t out_stride;  // bytes
    uint32_t dim;
};

// Sums the gradients of samples with one key each by row, in the order of the samples.
struct SumArgs {
    const uint32_t* member;  // per sample: the number of its row, in order of first appearance
    int64_t num_samples;
    const char* gradients;
    int64_t stride;  // bytes
    void* sums;      // out: one vector per row
    uint32_t dim;
};

// Merges gradients per row and updates every row once.
struct ApplyArgs {
    RowView rows;
    const uint32_t* unique;  // rows to update
    const uint32_t* start;   // row u owns sources [start[u], start[u + 1])
    uint32_t num_unique;
    void* merged;                  // the rows' gradients, if already summed; else from sources:
    const uint32_t* source;        // numbers into gradients
    const void* coefficient;       // per source, or null for all ones
    const void* const* gradients;  // one vector per sample
    uint32_t dim;
    uint32_t state;  // byte offset of the optimizer state
    double lr, eps, weight_decay, beta1, beta2, clip_norm;
    void* scratch;         // room for one vector
    uint64_t skipped = 0;  // out: rows whose merged gradient was not finite
};

struct Kernels {
    void (*pool)(PoolArgs&);
    bool (*sum)(const SumArgs&);  // false = some gradient is not finite
    void (*apply)(ApplyArgs&);
    bool (*finite)(const void* values, int64_t rows, int64_t cols, int64_t stride);
    const char* isa;
};

// isa: "auto", "avx2" or "baseline". Throws std::invalid_argument if this processor lacks it.
Kernels choose_kernels(const Config& config, const char* isa);

Kernels baseline_kernels(const Config& config);
#if defined(__x86_64__)
Kernels avx2_kernels(const Config& config);
#endif

}  // namespace hps
