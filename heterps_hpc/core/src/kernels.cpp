#include "kernels.hpp"

#include <cmath>
#include <stdexcept>
#include <string>

#include "kernels_prelude.hpp"

namespace hps {

double power(double base, double exponent) {
    return std::pow(base, exponent);
}

// Box-Muller.
double standard_normal(uint32_t bits, uint32_t angle_bits) {
    constexpr double kTwoPi = 6.283185307179586;
    const double u = (bits + 0.5) * 0x1p-32;
    return std::sqrt(-2.0 * std::log(u)) * std::cos(kTwoPi * angle_bits * 0x1p-32);
}

Kernels choose_kernels(const Config& config, const char* isa) {
    const std::string name = isa;
    if (name == "baseline") return baseline_kernels(config);
#if defined(__x86_64__)
    const bool avx2 = __builtin_cpu_supports("avx2");
    if (avx2 && (name == "avx2" || name == "auto")) {
        Kernels kernels = avx2_kernels(config);
        if (name == "auto" && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512vl"))
            kernels.hash_keys = avx512_hash_keys();
        return kernels;
    }
#endif
    if (name == "auto") return baseline_kernels(config);
    throw std::invalid_argument("isa is '" + name +
                                "'; this processor offers 'auto', 'baseline' and, if it has it, "
                                "'avx2'");
}

}  // namespace hps
