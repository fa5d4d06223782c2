// Asking for memory ahead of its use.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace hps {

// The lines of some bytes, up to 512, as far as the second-level cache: more lines can be on their
// way there at once than to the first level, which a block of keys overflows anyway.
inline void prefetch_lines(const void* from, size_t bytes) {
    constexpr size_t kLine = 64;
    const auto* p = static_cast<const char*>(from);
    const size_t end = std::min<size_t>(bytes, 512) + reinterpret_cast<uintptr_t>(p) % kLine;
    for (size_t at = 0; at < end; at += kLine) __builtin_prefetch(p + at, 0, 2);
}

inline void prefetch_line(const void* p) {
    __builtin_prefetch(p, 0, 2);
}

}  // namespace hps
