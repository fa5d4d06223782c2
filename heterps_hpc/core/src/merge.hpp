// Scratch of a push on one thread: which rows it updates, and which gradients each row gets.
#pragma once
#include <cstdint>
#include <vector>

#include "table.hpp"

namespace hps {

struct Table::Merge {
    // What to work on: all keys of the handles, or those of one of `threads` owners.
    const std::vector<std::shared_ptr<Pulled>>* handles = nullptr;
    const void* const* gradients = nullptr;  // per sample, all handles one after the other
    const float* clicks = nullptr;           // per sample, or null
    uint32_t owner = 0, threads = 1;
    bool weighted = false;

    uint64_t num_sources = 0;
    uint32_t num_unique = 0;
    std::vector<uint32_t> unique;           // rows, in order of first appearance
    std::vector<uint32_t> start;            // sources of unique row u: [start[u], start[u + 1])
    std::vector<uint32_t> member;           // per source in key order: its unique row
    std::vector<uint32_t> sample;           // per source in key order: its gradient
    std::vector<uint32_t> source;           // `sample` sorted by unique row
    std::vector<char> factor, coefficient;  // the same two orders; empty unless weighted
    std::vector<char> vector;
    uint64_t skipped = 0;

    void reserve(uint64_t keys, const RowLayout& layout) {
        if (unique.size() <= keys) {
            for (auto* v : {&unique, &member, &sample, &source}) v->resize(keys + 1);
            start.resize(keys + 2);
        }
        if (weighted && factor.size() < keys * layout.value_bytes) {
            factor.resize(keys * layout.value_bytes);
            coefficient.resize(keys * layout.value_bytes);
        }
        vector.resize(size_t{layout.dim} * layout.value_bytes);
    }
    size_t bytes() const {
        return (unique.capacity() + start.capacity() + member.capacity() + sample.capacity() +
                source.capacity()) *
                   sizeof(uint32_t) +
               factor.capacity() + coefficient.capacity() + vector.capacity();
    }
};

}  // namespace hps
