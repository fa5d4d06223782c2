// Optimizer updates, one per row; a part of kernels_impl.hpp, and included only there.

template <class T, int DIM, Optimizer OPT>
inline void update(const ApplyArgs& a, T* __restrict v, T* __restrict state, const T* __restrict g,
                   T squares, Width<T, DIM> w) {
    const int n = w.size();
    const T lr = static_cast<T>(a.lr);
    const T eps = static_cast<T>(a.eps);
    if constexpr (OPT == Optimizer::kSgd) {
        descend<T, DIM>(v, g, lr, w);
    } else if constexpr (OPT == Optimizer::kRowwiseAdagrad) {
        state[0] += squares / static_cast<T>(n);
        const T rate = lr / (root(state[0]) + eps);
        descend<T, DIM>(v, g, rate, w);
    } else if constexpr (OPT == Optimizer::kAdagrad) {
        for (int i = 0; i < n; ++i) {
            state[i] += g[i] * g[i];
            v[i] -= lr * (g[i] / (root(state[i]) + eps));
        }
    } else {
        T* m = state;
        T* s = state + n;
        T& t = state[2 * n];
        t += T(1);
        const T b1 = static_cast<T>(a.beta1);
        const T b2 = static_cast<T>(a.beta2);
        const T rate = static_cast<T>(a.lr / (1.0 - power(a.beta1, t)));
        const T correction = static_cast<T>(root(1.0 - power(a.beta2, t)));
        for (int i = 0; i < n; ++i) {
            m[i] = b1 * m[i] + (T(1) - b1) * g[i];
            s[i] = b2 * s[i] + (T(1) - b2) * (g[i] * g[i]);
            v[i] -= rate * (m[i] / (root(s[i]) / correction + eps));
        }
    }
}

// One row: clip, decay, update. `g` is its merged gradient, and scratch.
template <class S, int DIM, Optimizer OPT>
inline bool apply_row(const ApplyArgs& a, uint32_t u, ValueOf<S>* g, Width<ValueOf<S>, DIM> w) {
    using T = ValueOf<S>;
    T squares = sum_squares<T, DIM>(g, w);
    if (!is_finite(squares)) return false;
    const uint32_t row = a.places[u];
    char* vector = a.rows.vector(row);
    alignas(64) T local[DIM == 0 ? 1 : DIM];
    T* v = values_of<S, DIM>(vector, DIM == 0 ? a.wide : reinterpret_cast<char*>(local), w);
    bool changed = false;
    if (a.clip_norm > 0) {
        const T norm = root(squares);
        if (norm > static_cast<T>(a.clip_norm)) {
            const T scale = static_cast<T>(a.clip_norm) / norm;
            for (int i = 0; i < w.size(); ++i) g[i] *= scale;
            changed = true;
        }
    }
    if (a.weight_decay != 0) {
        add_scaled<T, DIM>(g, v, static_cast<T>(a.weight_decay), w);
        changed = true;
    }
    if (OPT == Optimizer::kRowwiseAdagrad && changed) squares = sum_squares<T, DIM>(g, w);
    update<T, DIM, OPT>(a, v, reinterpret_cast<T*>(a.rows.state(row)), g, squares, w);
    if constexpr (Stored<S>::kIsHalf) {
        const uint64_t base = mix64(unmix64(a.hashes[u]) ^ a.rounding_seed);
        narrow_vector(v, reinterpret_cast<S*>(vector), w.size(), ByElement{base});
    }
    return true;
}

// Row-wise Adagrad and nothing else, on some rows at once: their rates are worked out together,
// and the loops are short enough for the processor to have many rows in work.
template <class T, int DIM>
void apply_rates(ApplyArgs& a) {
    constexpr int kSome = 16;
    const Width<T, DIM> w(a.dim);
    const RowView rows = a.rows;
    const uint32_t* places = a.places;
    const uint64_t num_places = a.num_places, step = a.step, ahead = far_ahead<T, DIM> * step;
    const T* sums = static_cast<const T*>(a.sums);
    const T lr = static_cast<T>(a.lr);
    const T eps = static_cast<T>(a.eps);
    const T* gradient[kSome];
    T* vector[kSome];
    T rate[kSome] = {};
    for (uint64_t u = a.first; u < num_places;) {
        int n = 0;
        for (; n < kSome && u < num_places; u += step) {
            if (u + ahead < num_places && places[u + ahead] != kNoRow) {
                const char* next = rows.vector(places[u + ahead]);
                for (size_t at = 0; at < DIM * sizeof(T); at += 64) prefetch_line(next + at);
                prefetch_line(rows.state(places[u + ahead]));
            }
            const uint32_t row = places[u];
            if (row == kNoRow) continue;
            const T* g = sums + u * DIM;
            const T squares = sum_squares<T, DIM>(g, w);
            if (!is_finite(squares)) {
                ++a.skipped;
                continue;
            }
            gradient[n] = g;
            vector[n] = reinterpret_cast<T*>(rows.vector(row));
            rate[n] = *reinterpret_cast<T*>(rows.state(row)) += squares / static_cast<T>(DIM);
            ++n;
        }
        for (T& r : rate) r = lr / (root(r) + eps);
        for (int i = 0; i < n; ++i) descend<T, DIM>(vector[i], gradient[i], rate[i], w);
    }
}

template <class S, int DIM, Optimizer OPT>
void apply(ApplyArgs& a) {
    using T = ValueOf<S>;
    if constexpr (OPT == Optimizer::kRowwiseAdagrad && in_eights<DIM> && !Stored<S>::kIsHalf) {
        if (a.clip_norm <= 0 && a.weight_decay == 0) return apply_rates<T, DIM>(a);
    }
    const Width<T, DIM> w(a.dim);
    const uint64_t ahead = uint64_t{kAhead} * a.step;
    for (uint64_t u = a.first; u < a.num_places; u += a.step) {
        if (u + ahead < a.num_places && a.places[u + ahead] != kNoRow) {
            prefetch_lines(a.rows.vector(a.places[u + ahead]), a.rows.vector_bytes);
            if (OPT != Optimizer::kSgd)
                prefetch_lines(a.rows.state(a.places[u + ahead]), a.rows.state_bytes);
        }
        if (a.places[u] == kNoRow) continue;
        T* g = static_cast<T*>(a.sums) + u * static_cast<size_t>(w.size());
        if (!apply_row<S, DIM, OPT>(a, static_cast<uint32_t>(u), g, w)) ++a.skipped;
    }
}

template <class S, int DIM>
auto apply_for(Optimizer optimizer) -> void (*)(ApplyArgs&) {
    switch (optimizer) {
        case Optimizer::kSgd:
            return apply<S, DIM, Optimizer::kSgd>;
        case Optimizer::kRowwiseAdagrad:
            return apply<S, DIM, Optimizer::kRowwiseAdagrad>;
        case Optimizer::kAdagrad:
            return apply<S, DIM, Optimizer::kAdagrad>;
        case Optimizer::kAdam:
            return apply<S, DIM, Optimizer::kAdam>;
    }
    return nullptr;
}
