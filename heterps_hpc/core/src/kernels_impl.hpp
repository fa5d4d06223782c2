// Included once per instruction set, inside that translation unit's anonymous namespace, after a
// target pragma: nothing here may be shared with another unit, or the linker could give an old
// processor code that it cannot run. Loops over the constant DIM are for the compiler to vectorise.

constexpr int kLanes = 8;
constexpr uint32_t kAhead = 32;  // rows to prefetch ahead of the update
// Samples, keys or rows to prefetch ahead: more of them where each is one line.
template <class T, int DIM>
constexpr int64_t far_ahead = DIM != 0 && DIM * sizeof(T) <= 64 ? 64 : 32;

template <class T, int DIM>
struct Width {
    static constexpr int capacity = DIM;
    explicit Width(uint32_t) {}
    static constexpr int size() { return DIM; }
};
template <class T>
struct Width<T, 0> {
    explicit Width(uint32_t dim) : dim_(static_cast<int>(dim)) {}
    int size() const { return dim_; }
    int dim_;
};

// Eight numbers at once, wherever they lie: short loops over an array are not always vectorised.
template <class T>
struct Eight {
    typedef T type __attribute__((vector_size(kLanes * sizeof(T)), aligned(sizeof(T)), may_alias));
};
template <int DIM>
constexpr bool in_eights = DIM != 0 && DIM % kLanes == 0;

#include "kernels_draw.hpp"
#include "kernels_half.hpp"
#include "kernels_hash.hpp"
#include "kernels_look_up.hpp"

// out = a stored vector * scale
template <class S, int DIM>
inline void scale_into(ValueOf<S>* __restrict out, char* vector, ValueOf<S> scale, char* wide,
                       Width<ValueOf<S>, DIM> w) {
    if constexpr (in_eights<DIM>) {
        using V = typename Eight<ValueOf<S>>::type;
        for (int i = 0; i < DIM / kLanes; ++i) {
            reinterpret_cast<V*>(out)[i] = eight_of<S>(vector, i) * scale;
        }
    } else {
        const auto* __restrict v = values_of<S, DIM>(vector, wide, w);
        for (int i = 0; i < w.size(); ++i) out[i] = v[i] * scale;
    }
}

// v -= g * rate
template <class T, int DIM>
inline void descend(T* __restrict v, const T* __restrict g, T rate, Width<T, DIM> w) {
    if constexpr (in_eights<DIM>) {
        using V = typename Eight<T>::type;
        for (int i = 0; i < DIM / kLanes; ++i) {
            reinterpret_cast<V*>(v)[i] -= reinterpret_cast<const V*>(g)[i] * rate;
        }
    } else {
        for (int i = 0; i < w.size(); ++i) v[i] -= rate * g[i];
    }
}

// Sum of squares in eight interleaved partial sums, added as a tree: the same on every ISA.
template <class T, int DIM>
inline T sum_squares(const T* g, Width<T, DIM> w) {
    typename Eight<T>::type lane = {};
    int i = 0;
    for (; i + kLanes <= w.size(); i += kLanes) {
        const auto eight = *reinterpret_cast<const typename Eight<T>::type*>(g + i);
        lane += eight * eight;
    }
    for (int j = 0; i + j < w.size(); ++j) lane[j] += g[i + j] * g[i + j];
    typedef T Half __attribute__((vector_size(4 * sizeof(T))));
    typedef T Quarter __attribute__((vector_size(2 * sizeof(T))));
    Half halves[2];
    __builtin_memcpy(halves, &lane, sizeof lane);
    const Half half = halves[0] + halves[1];
    Quarter quarters[2];
    __builtin_memcpy(quarters, &half, sizeof half);
    const Quarter quarter = quarters[0] + quarters[1];
    return quarter[0] + quarter[1];
}

template <class T>
inline bool is_finite(T x) {
    return x - x == T(0);
}

template <class T, int DIM>
inline void add_scaled(T* acc, const T* v, T scale, Width<T, DIM> w) {
    for (int i = 0; i < w.size(); ++i) acc[i] += v[i] * scale;
}

inline void prefetch_out(const PoolArgs& a, int64_t sample, size_t bytes) {
    prefetch_lines(a.out + sample * a.out_stride, bytes);
}

// out += the vectors of keys [begin, end); their sum stays in registers.
template <class S, int DIM, bool WEIGHTED>
inline void add_keys(ValueOf<S>* __restrict out, const PoolArgs& a, int64_t begin, int64_t end,
                     Width<ValueOf<S>, DIM> w) {
    using T = ValueOf<S>;
    const auto* weights = static_cast<const T*>(a.weights);
    using V = typename Eight<T>::type;
    constexpr int kEights = in_eights<DIM> ? DIM / kLanes : 0;
    V sum[kEights == 0 ? 1 : kEights];
    for (int i = 0; i < kEights; ++i) sum[i] = reinterpret_cast<const V*>(out)[i];
    for (int64_t k = begin; k < end; ++k) {
        char* vector = const_cast<char*>(a.vectors[a.member[k]]);
        if (vector == nullptr) continue;
        const T scale = WEIGHTED ? weights[k] : T(1);
        if constexpr (in_eights<DIM>) {
            for (int i = 0; i < kEights; ++i) {
                const V more = eight_of<S>(vector, i);
                sum[i] += WEIGHTED ? more * scale : more;
            }
        } else {
            const T* v = values_of<S, DIM>(vector, a.wide, w);
            for (int i = 0; i < w.size(); ++i) out[i] += WEIGHTED ? v[i] * scale : v[i];
        }
    }
    for (int i = 0; i < kEights; ++i) reinterpret_cast<V*>(out)[i] = sum[i];
}

// By itself: within the loop that adds, it would cost the registers of the sums.
inline void prefetch_vectors(const PoolArgs& a, int64_t first, int64_t last) {
    for (int64_t k = first; k < last && k < a.key_end; ++k) {
        prefetch_line(a.vectors[a.member[k]]);
    }
}

template <class S, int DIM>
void pool(PoolArgs& a) {
    using T = ValueOf<S>;
    constexpr int64_t kFar = far_ahead<T, DIM>;
    const Width<T, DIM> w(a.dim);
    const auto* weights = static_cast<const T*>(a.weights);
    if (a.offsets == nullptr) {
        for (int64_t k = a.key_begin; k < a.key_end; ++k) {
            if (k + kFar < a.num_samples) prefetch_out(a, k + kFar, w.size() * sizeof(T));
            T* __restrict out = reinterpret_cast<T*>(a.out + k * a.out_stride);
            char* vector = const_cast<char*>(a.vectors[a.member[k]]);
            const T scale = weights == nullptr ? T(1) : weights[k];
            if (vector == nullptr) {
                for (int i = 0; i < w.size(); ++i) out[i] = T(0);
            } else {
                scale_into<S, DIM>(out, vector, scale, a.wide, w);
            }
        }
        a.sample = a.key_end;
        return;
    }
    for (; a.sample < a.num_samples; ++a.sample) {
        if (a.sample + kFar < a.num_samples) prefetch_out(a, a.sample + kFar, w.size() * sizeof(T));
        const int64_t first = a.offsets[a.sample];
        const int64_t last = a.offsets[a.sample + 1];
        const int64_t begin = first > a.key_begin ? first : a.key_begin;
        const int64_t end = last < a.key_end ? last : a.key_end;
        if (a.far) prefetch_vectors(a, begin + kFar, end + kFar);
        T* out = reinterpret_cast<T*>(a.out + a.sample * a.out_stride);
        for (int i = 0; begin == first && i < w.size(); ++i) out[i] = T(0);
        if (weights == nullptr) {
            add_keys<S, DIM, false>(out, a, begin, end, w);
        } else {
            add_keys<S, DIM, true>(out, a, begin, end, w);
        }
        const bool done = end == last;
        if (done && a.mean && last > first) {
            const T scale = T(1) / static_cast<T>(last - first);
            for (int i = 0; i < w.size(); ++i) out[i] *= scale;
        }
        if (!done) return;
    }
}

// Adds x - x to each lane: 0, or NaN for NaN and Inf.
template <class T>
inline void mark_bad(T* bad, const T* v, int n) {
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        for (int j = 0; j < kLanes; ++j) bad[j] += v[i + j] - v[i + j];
    }
    for (int j = 0; i + j < n; ++j) bad[j] += v[i + j] - v[i + j];
}
template <class T>
inline bool none_bad(const T* bad) {
    T sum = T(0);
    for (int j = 0; j < kLanes; ++j) sum += bad[j];
    return sum == T(0);
}

#include "kernels_apply.hpp"
#include "kernels_sum.hpp"

template <class T>
bool finite(const void* values, int64_t rows, int64_t cols, int64_t stride) {
    constexpr int64_t kFar = far_ahead<T, 0>;
    for (int64_t r = 0; r < rows; ++r) {
        const char* row = static_cast<const char*>(values) + r * stride;
        // Columns of a wide matrix: too far apart for the processor to see the pattern.
        if (r + kFar < rows)
            prefetch_lines(row + kFar * stride, static_cast<size_t>(cols) * sizeof(T));
        const T* v = reinterpret_cast<const T*>(row);
        T bad[kLanes] = {};
        mark_bad(bad, v, static_cast<int>(cols));
        if (!none_bad(bad)) return false;
    }
    return true;
}

template <class S, int DIM>
Kernels kernels_of(const Config& c, const char* isa) {
    using T = ValueOf<S>;
    return {hash_keys,    look_up,   pool<S, DIM>, sum<T, DIM>, apply_for<S, DIM>(c.optimizer),
            draw<T, DIM>, finite<T>, widen<S>,     narrow<S>,   isa};
}

template <class S>
Kernels half_kernels(const Config& c, const char* isa) {
    switch (c.dim) {
        case 16:
            return kernels_of<S, 16>(c, isa);
        case 32:
            return kernels_of<S, 32>(c, isa);
        case 64:
            return kernels_of<S, 64>(c, isa);
        default:
            return kernels_of<S, 0>(c, isa);
    }
}

Kernels kernels_for(const Config& c, const char* isa) {
    if (c.precision == Precision::kFloat16) return half_kernels<Float16>(c, isa);
    if (c.precision == Precision::kBfloat16) return half_kernels<Bfloat16>(c, isa);
    if (c.float64) return kernels_of<double, 0>(c, isa);
    switch (c.dim) {
        case 4:
            return kernels_of<float, 4>(c, isa);
        case 8:
            return kernels_of<float, 8>(c, isa);
        case 16:
            return kernels_of<float, 16>(c, isa);
        case 32:
            return kernels_of<float, 32>(c, isa);
        case 64:
            return kernels_of<float, 64>(c, isa);
        case 128:
            return kernels_of<float, 128>(c, isa);
        default:
            return kernels_of<float, 0>(c, isa);
    }
}
