#include "kernels_prelude.hpp"

namespace hps {
namespace {
HPS_KERNEL_ROOT
#include "kernels_impl.hpp"
}  // namespace

Kernels baseline_kernels(const Config& config) {
    return kernels_for(config, "baseline");
}

}  // namespace hps
