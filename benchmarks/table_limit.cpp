// The limit that a table is held against: fetch the same rows into the same places and write the
// same rows back, with prefetching, but without keys, hashing, merging or an optimizer.
#include <cstdint>
#include <cstring>

namespace {
constexpr int64_t kAhead = 16;

void prefetch(const char* row, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 1);
    __builtin_prefetch(row + bytes - 1, 1);
}
}  // namespace

// out[s] = sum of the rows of sample s; `per_sample` rows each.
extern "C" void gather(const char* rows, int64_t stride, const uint32_t* index, int64_t samples,
                       int64_t per_sample, int64_t dim, char* out, int64_t out_stride) {
    const int64_t n = samples * per_sample;
    for (int64_t s = 0, k = 0; s < samples; ++s) {
        auto* o = reinterpret_cast<float*>(out + s * out_stride);
        __builtin_prefetch(reinterpret_cast<char*>(o) + kAhead * out_stride, 1);
        std::memset(o, 0, sizeof(float) * dim);
        for (const int64_t end = k + per_sample; k < end; ++k) {
            if (k + kAhead < n) prefetch(rows + index[k + kAhead] * stride, stride);
            const auto* v = reinterpret_cast<const float*>(rows + index[k] * stride);
            for (int64_t i = 0; i < dim; ++i) o[i] += v[i];
        }
    }
}

// row += gradient of its sample, and its state grows, for every key by itself.
extern "C" void scatter(char* rows, int64_t stride, const uint32_t* index, int64_t samples,
                        int64_t per_sample, int64_t dim, const char* grad, int64_t grad_stride) {
    const int64_t n = samples * per_sample;
    for (int64_t s = 0, k = 0; s < samples; ++s) {
        const auto* g = reinterpret_cast<const float*>(grad + s * grad_stride);
        __builtin_prefetch(reinterpret_cast<const char*>(g) + kAhead * grad_stride);
        for (const int64_t end = k + per_sample; k < end; ++k) {
            if (k + kAhead < n) prefetch(rows + index[k + kAhead] * stride, stride);
            auto* v = reinterpret_cast<float*>(rows + index[k] * stride);
            for (int64_t i = 0; i < dim; ++i) v[i] -= 1e-3f * g[i];
            v[dim] += 1e-3f;
        }
    }
}
