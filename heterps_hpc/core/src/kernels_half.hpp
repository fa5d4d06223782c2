// Vectors stored as numbers of two bytes and computed with as floats; a part of kernels_impl.hpp,
// and included only there. Integer arithmetic only: the same bits on every instruction set.

struct Float16 {
    uint16_t bits;
};
struct Bfloat16 {  // the upper half of a float
    uint16_t bits;
};

template <class S>  // S = as it is stored
struct Stored {
    using Value = S;  // as it is computed with
    static constexpr bool kIsHalf = false;
};
template <>
struct Stored<Float16> {
    using Value = float;
    static constexpr bool kIsHalf = true;
};
template <>
struct Stored<Bfloat16> : Stored<Float16> {};
template <class S>
using ValueOf = typename Stored<S>::Value;

typedef uint16_t Shorts __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
typedef int32_t SignedWords __attribute__((vector_size(kLanes * 4)));
using Floats = Eight<float>::type;

constexpr uint32_t kSign = 0x80000000u;
constexpr uint32_t kInfinity = 0x7f800000u;

inline Floats as_floats(Words bits, Bfloat16) {
    return reinterpret_cast<Floats>(bits << 16);
}

inline Floats as_floats(Words bits, Float16) {
    const Words magnitude = bits & 0x7fffu;
    const Words bias = magnitude - magnitude + (112u << 23);        // of the exponents
    const Words twice = magnitude >= 0x7c00u ? bias : bias - bias;  // infinite or not a number
    const Words normal = (magnitude << 13) + bias + twice;
    // Below the smallest normal number they are multiples of 2^-24.
    const Floats small =
        __builtin_convertvector(reinterpret_cast<SignedWords>(magnitude), Floats) * 0x1p-24f;
    const Words found = magnitude < 0x400u ? reinterpret_cast<Words>(small) : normal;
    return reinterpret_cast<Floats>(found | (bits & 0x8000u) << 16);
}

inline Words min_of(Words a, uint32_t limit) {
    return a < limit ? a : a - a + limit;
}

// Rounded away from zero if the random bits say so, with the probability that makes it right on
// average: updates far smaller than the distance of two numbers are not lost. What is too large
// becomes the largest number.
inline Words rounded(Floats x, Words random, Bfloat16) {
    const Words bits = reinterpret_cast<Words>(x);
    const Words magnitude = bits & ~kSign;
    const Words found = (min_of(magnitude, 0x7f7f0000u) + (random >> 16)) >> 16;
    return (magnitude > kInfinity ? found - found + 0x7fc0u : found) | (bits & kSign) >> 16;
}

inline Words rounded(Floats x, Words random, Float16) {
    const Words bits = reinterpret_cast<Words>(x);
    const Words magnitude = bits & ~kSign;
    const Words up = random >> 19;
    const Words normal = ((min_of(magnitude, 0x477fe000u) + up) >> 13) - (112u << 10);
    constexpr uint32_t kSmallestNormal = 0x38800000u;  // 2^-14
    const Floats in_units = reinterpret_cast<Floats>(min_of(magnitude, kSmallestNormal)) * 0x1p37f;
    const Words whole = reinterpret_cast<Words>(__builtin_convertvector(in_units, SignedWords));
    const Words found = magnitude < kSmallestNormal ? (whole + up) >> 13 : normal;
    return (magnitude > kInfinity ? found - found + 0x7e00u : found) | (bits & kSign) >> 16;
}

template <class S>
inline void widen_vector(const S* from, float* to, int n) {
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        const Shorts bits = *reinterpret_cast<const Shorts*>(from + i);
        *reinterpret_cast<Floats*>(to + i) = as_floats(__builtin_convertvector(bits, Words), S{});
    }
    if (i == n) return;
    Words rest = {};
    for (int j = 0; i + j < n; ++j) rest[j] = from[i + j].bits;
    const Floats values = as_floats(rest, S{});
    for (int j = 0; i + j < n; ++j) to[i + j] = values[j];
}

// Random bits of the elements from i on. (No lambdas: they are not compiled for the unit's target.)
struct ToNearest {
    Words operator()(int) const { return Words{} + 0x80000000u; }  // up from one half on
};
struct ByElement {
    uint64_t base;
    Words operator()(int i) const {
        const Words lane = {0, 1, 2, 3, 4, 5, 6, 7};
        return element_bits(base, lane + static_cast<uint32_t>(i));
    }
};

template <class S, class RandomOf>
inline void narrow_vector(const float* from, S* to, int n, RandomOf random_of) {
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        const Words bits = rounded(*reinterpret_cast<const Floats*>(from + i), random_of(i), S{});
        *reinterpret_cast<Shorts*>(to + i) = __builtin_convertvector(bits, Shorts);
    }
    if (i == n) return;
    Floats rest = {};
    for (int j = 0; i + j < n; ++j) rest[j] = from[i + j];
    const Words bits = rounded(rest, random_of(i), S{});
    for (int j = 0; i + j < n; ++j) to[i + j].bits = static_cast<uint16_t>(bits[j]);
}

template <class S>
void widen(const char* vector, char* wide, uint32_t dim) {
    if constexpr (Stored<S>::kIsHalf) {
        widen_vector(reinterpret_cast<const S*>(vector), reinterpret_cast<float*>(wide),
                     static_cast<int>(dim));
    } else {
        __builtin_memcpy(wide, vector, dim * sizeof(S));
    }
}

template <class S>
void narrow(const char* wide, char* vector, uint32_t dim) {
    if constexpr (Stored<S>::kIsHalf) {
        narrow_vector(reinterpret_cast<const float*>(wide), reinterpret_cast<S*>(vector),
                      static_cast<int>(dim), ToNearest{});
    } else {
        __builtin_memcpy(vector, wide, dim * sizeof(S));
    }
}

// Numbers 8 * i to 8 * i + 7 of a stored vector, in registers.
template <class S>
inline typename Eight<ValueOf<S>>::type eight_of(const char* vector, int i) {
    if constexpr (Stored<S>::kIsHalf) {
        const Shorts bits = reinterpret_cast<const Shorts*>(vector)[i];
        return as_floats(__builtin_convertvector(bits, Words), S{});
    } else {
        return reinterpret_cast<const typename Eight<S>::type*>(vector)[i];
    }
}

// All numbers of a stored vector: where they lie, or in `wide`.
template <class S, int DIM>
inline ValueOf<S>* values_of(char* vector, char* wide, Width<ValueOf<S>, DIM> w) {
    if constexpr (Stored<S>::kIsHalf) {
        auto* values = reinterpret_cast<float*>(wide);
        widen_vector(reinterpret_cast<const S*>(vector), values, w.size());
        return values;
    } else {
        return reinterpret_cast<S*>(vector);
    }
}
