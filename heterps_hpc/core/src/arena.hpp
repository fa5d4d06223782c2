// Memory for rows: large regions, never moved and never returned before the table dies, so that an
// address stays good while the table grows.
#pragma once
#include <cstddef>
#include <vector>

#include "pages.hpp"

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

    // Gets memory for so many bytes from the system at once. Throws std::bad_alloc.
    void reserve(size_t bytes);
    MemoryRange unused() const { return {next_, static_cast<size_t>(end_ - next_)}; }

 private:
    void add_region(size_t bytes);

    std::vector<MemoryRange> regions_;
    char* next_ = nullptr;
    char* end_ = nullptr;
    size_t used_ = 0;
};

}  // namespace hps
