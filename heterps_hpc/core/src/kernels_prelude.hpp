// What kernels_impl.hpp may call: included before any target pragma, so that library code is never
// compiled for one instruction set and linked into another. root() must inline to an instruction.
#pragma once
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "hash.hpp"
#include "kernels.hpp"
#include "prefetch.hpp"

namespace hps {
// Out of line on purpose: the same library call whatever the instruction set.
double power(double base, double exponent);
double standard_normal(uint32_t bits, uint32_t angle_bits);
}  // namespace hps

#define HPS_KERNEL_ROOT            \
    inline float root(float x) {   \
        return __builtin_sqrtf(x); \
    }                              \
    inline double root(double x) { \
        return __builtin_sqrt(x);  \
    }
