// Initial vectors; a part of kernels_impl.hpp, and included only there.

// 32 random bits for element i of a row whose hash is `base`. Only 32-bit operations, so that
// compilers can vectorise it.
template <class U>  // uint32_t, or a vector of them
inline U element_bits(uint64_t base, U i) {
    U x = static_cast<uint32_t>(base) + i * 0x9e3779b9u;
    x ^= x >> 16;
    x *= 0x85ebca6bu;
    x ^= x >> 13;
    x += static_cast<uint32_t>(base >> 32);
    x *= 0xc2b2ae35u;
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    return x;
}

template <class T, int DIM>
void draw(const DrawArgs& a) {
    const Width<T, DIM> w(a.dim);
    const auto n = static_cast<uint32_t>(w.size());
    const auto scale = static_cast<float>(a.scale);
    T* __restrict v = reinterpret_cast<T*>(a.vector);
    if (a.init == Init::kUniform) {
        const uint64_t base = a.base;
        for (uint32_t i = 0; i < n; ++i) {
            const auto bits = static_cast<int32_t>(element_bits(base, i) >> 8);
            v[i] = static_cast<T>((static_cast<float>(bits) * 0x1p-23f - 1.0f) * scale);
        }
        return;
    }
    for (uint32_t i = 0; i < n; ++i) {
        const double normal =
            a.init == Init::kZeros
                ? 0.0
                : standard_normal(element_bits(a.base, 2 * i), element_bits(a.base, 2 * i + 1));
        v[i] = static_cast<T>(static_cast<float>(normal * a.scale));
    }
}
