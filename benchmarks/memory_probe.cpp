// What memory costs on this host, on pages of 4 KiB and of 2 MiB: figures of two hosts can only be
// compared next to these.
#include <sys/mman.h>

#include <chrono>
#include <cstdint>

namespace {

double seconds() {
    using std::chrono::steady_clock;
    return std::chrono::duration<double>(steady_clock::now().time_since_epoch()).count();
}

uint64_t mix(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdULL;
    x ^= x >> 33;
    return x;
}

}  // namespace

struct Probe {
    double first_touch_gb_per_s;
    double dependent_line_ns;   // each read waits for the one before it
    double overlapped_line_ns;  // as many in flight as the processor can have
};

// 0 = done.
extern "C" int probe(int huge, uint64_t bytes, uint64_t reads, Probe* out) {
    constexpr uint64_t kHuge = uint64_t{2} << 20;
    void* mapped =
        mmap(nullptr, bytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return 1;
    auto* base = reinterpret_cast<volatile char*>((reinterpret_cast<uint64_t>(mapped) + kHuge - 1) /
                                                  kHuge * kHuge);
    madvise(const_cast<char*>(base), bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    double start = seconds();
    for (uint64_t at = 0; at < bytes; at += 4096) base[at] = 0;
    out->first_touch_gb_per_s = static_cast<double>(bytes) / (seconds() - start) / 1e9;

    const uint64_t lines = bytes / 64;
    uint64_t last = 0;
    start = seconds();
    for (uint64_t i = 0; i < reads; ++i) {
        last = static_cast<uint64_t>(base[(mix(i + last) % lines) * 64]);
    }
    out->dependent_line_ns = (seconds() - start) / static_cast<double>(reads) * 1e9;
    start = seconds();
    for (uint64_t i = 0; i < reads; ++i)
        last += static_cast<uint64_t>(base[(mix(i + reads) % lines) * 64]);
    out->overlapped_line_ns = (seconds() - start) / static_cast<double>(reads) * 1e9;
    munmap(mapped, bytes + kHuge);
    return 0;
}
