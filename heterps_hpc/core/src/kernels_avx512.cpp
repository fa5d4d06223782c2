// What gains by AVX-512: its instruction for products of 64 bits.
#include "kernels_prelude.hpp"

#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512dq,avx512vl")

namespace hps {
namespace {
#include "kernels_hash.hpp"
}  // namespace

HashKeys* avx512_hash_keys() {
    return hash_keys;
}

}  // namespace hps
#endif
