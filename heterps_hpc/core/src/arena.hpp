// Memory for rows and index segments: large regions, never moved and never returned before the
// table dies, so that an address handed out stays good while the table grows.
#pragma once
#include <cstddef>
#include <vector>

namespace hps {

class Arena {
 public:
    Arena() = default;
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    ~Arena();

    // Zeroed, aligned to a cache line. Throws std::bad_alloc.
    void* allocate(size_t bytes);
    size_t used_bytes() const { return used_; }

 private:
    struct Region {
        void* base;
        size_t bytes;
    };
    void add_region(size_t at_least);

    std::vector<Region> regions_;
    char* next_ = nullptr;
    char* end_ = nullptr;
    size_t used_ = 0;
};

}  // namespace hps
