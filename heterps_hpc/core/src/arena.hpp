// Memory for rows and index segments: large regions, never moved and never returned before the
// table dies, so that an address handed out stays good while the table grows.
#pragma once
#include <atomic>
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

    struct Room {
        char* base = nullptr;
        size_t bytes = 0;
    };
    // Has room for so many bytes without asking the system again. Throws std::bad_alloc.
    void reserve(size_t bytes);
    Room reserved() const { return reserved_; }
    // Touches memory from the front, until all of it is there or `stop` says so. For another
    // thread, while this one allocates and writes: the system clears fresh memory when it is first
    // touched, which takes as long as filling it.
    static void touch(Room room, const std::atomic<bool>& stop);

 private:
    struct Region {
        void* base;
        size_t bytes;
    };
    void add_region(size_t at_least);

    std::vector<Region> regions_;
    Room reserved_;
    char* next_ = nullptr;
    char* end_ = nullptr;
    size_t used_ = 0;
};

}  // namespace hps
