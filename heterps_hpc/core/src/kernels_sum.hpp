// Sums of gradients by place; a part of kernels_impl.hpp, and included only there.

// s += g * scale, where the first gradient of a place meets no sum yet but -0, which changes no
// number that is added to it. `first` is 0 or 1, without a branch on it: it would be guessed wrong
// half of the time.
template <class T, int DIM, bool SCALED>
inline void add_gradient(T* s, const T* g, T scale, uintptr_t first, const T* zeros,
                         Width<T, DIM> w) {
    if constexpr (DIM != 0) {
        const auto sum = reinterpret_cast<uintptr_t>(s);
        const auto other = sum ^ reinterpret_cast<uintptr_t>(zeros);
        const auto* before = reinterpret_cast<const T*>(sum ^ (other & (0 - first)));
        T local[DIM];
        for (int i = 0; i < DIM; ++i) local[i] = before[i] + (SCALED ? g[i] * scale : g[i]);
        for (int i = 0; i < DIM; ++i) s[i] = local[i];
    } else {
        for (int i = 0; first != 0 && i < w.size(); ++i) s[i] = -T(0);
        for (int i = 0; i < w.size(); ++i) s[i] += SCALED ? g[i] * scale : g[i];
    }
}

// 1 if this is the place that appears next, and then the one after it is next. What `first` and
// `next` are is hidden from the compiler, which would make branches of them.
inline uintptr_t appears(uint32_t place, uint32_t& next, uint32_t step) {
    uintptr_t first = place == next;
    asm("" : "+r"(first));
    next = next > place + step ? next : place + step;
    asm("" : "+r"(next));
    return first;
}

// All keys of a sample get its gradient, which is read and checked once.
template <class T, int DIM>
bool sum_samples(SumArgs& a) {
    constexpr int64_t kFar = far_ahead<T, DIM>;
    const Width<T, DIM> w(a.dim);
    const auto bytes = static_cast<uint32_t>(w.size() * sizeof(T));
    const int64_t num_keys = a.offsets[a.num_samples];
    auto* sums = static_cast<T*>(a.sums);
    T zeros[DIM == 0 ? 1 : DIM];
    for (T& z : zeros) z = -T(0);
    T bad[kLanes] = {};
    uint32_t next = a.next;
    const uint32_t step = a.step;
    const uint32_t* member = a.member;
    for (int64_t s = 0; s < a.num_samples; ++s) {
        const char* at = a.gradients + s * a.stride;
        if (s + kFar < a.num_samples) prefetch_lines(at + kFar * a.stride, bytes);
        const T* g = reinterpret_cast<const T*>(at);
        mark_bad(bad, g, w.size());
        T own[DIM == 0 ? 1 : DIM];  // known to lie apart from the sums
        for (int i = 0; i < DIM; ++i) own[i] = g[i];
        for (int64_t k = a.offsets[s]; k < a.offsets[s + 1]; ++k) {
            if (k + kFar < num_keys) {
                prefetch_line(sums + size_t{member[k + kFar]} * static_cast<size_t>(w.size()));
            }
            const uint32_t u = member[k];
            T* sum = sums + size_t{u} * static_cast<size_t>(w.size());
            const uintptr_t first = appears(u, next, step);
            add_gradient<T, DIM, false>(sum, DIM == 0 ? g : own, T(1), first, zeros, w);
        }
    }
    a.next = next;
    return none_bad(bad);
}

template <class T, int DIM, bool PLAIN, bool SCALED>
bool sum_sources(SumArgs& a) {
    constexpr int64_t kFar = far_ahead<T, DIM>;
    const Width<T, DIM> w(a.dim);
    const auto bytes = static_cast<uint32_t>(w.size() * sizeof(T));
    const auto* coefficient = static_cast<const T*>(a.coefficient);
    auto* sums = static_cast<T*>(a.sums);
    T zeros[DIM == 0 ? 1 : DIM];
    for (T& z : zeros) z = -T(0);
    T bad[kLanes] = {};
    uint32_t next = a.next;
    const uint32_t step = a.step;
    const uint32_t *member = a.member, *sample = a.sample;
    for (int64_t k = 0; k < a.num_sources; ++k) {
        const char* at = a.gradients + (PLAIN ? k : int64_t{sample[k]}) * a.stride;
        if (PLAIN && k + kFar < a.num_sources) prefetch_lines(at + kFar * a.stride, bytes);
        const T* g = reinterpret_cast<const T*>(at);
        if (PLAIN) mark_bad(bad, g, w.size());
        const uint32_t u = member[k];
        if (!PLAIN && k + kFar < a.num_sources) {
            prefetch_line(sums + size_t{member[k + kFar]} * static_cast<size_t>(w.size()));
            prefetch_line(a.gradients + int64_t{sample[k + kFar]} * a.stride);
        }
        T* s = sums + size_t{u} * static_cast<size_t>(w.size());
        const T scale = SCALED ? coefficient[k] : T(1);
        const uintptr_t first = appears(u, next, step);
        add_gradient<T, DIM, SCALED>(s, g, scale, first, zeros, w);
    }
    a.next = next;
    return none_bad(bad);
}

template <class T, int DIM>
bool sum(SumArgs& a) {
    if (a.offsets != nullptr) return sum_samples<T, DIM>(a);
    const bool plain = a.sample == nullptr;
    if (a.coefficient == nullptr) {
        return plain ? sum_sources<T, DIM, true, false>(a) : sum_sources<T, DIM, false, false>(a);
    }
    return plain ? sum_sources<T, DIM, true, true>(a) : sum_sources<T, DIM, false, true>(a);
}
