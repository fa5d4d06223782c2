#include "kernels_prelude.hpp"

#if defined(__x86_64__)
#pragma GCC target("avx2")
#define HPS_HAS_AVX2  // the pragma defines no macro in time

namespace hps {
namespace {
HPS_KERNEL_ROOT
#include "kernels_impl.hpp"
}  // namespace

Kernels avx2_kernels(const Config& config) {
    return kernels_for(config, "avx2");
}

}  // namespace hps
#endif
