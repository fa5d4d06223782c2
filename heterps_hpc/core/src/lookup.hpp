// One pull under way: its keys, the place of each in the list of distinct keys, and their rows.
#pragma once
#include <cstdint>

#include "scratch.hpp"
#include "table.hpp"

namespace hps {

struct Table::Lookup {
    const PullArgs& args;
    Pulled* handle;  // null in evaluation
    PullScratch& scratch;
    uint32_t* rows;    // per place
    uint32_t* member;  // per key

    const uint64_t* hashes() const { return scratch.distinct[0].hashes(); }
    PoolArgs pool_args(uint32_t dim) const {
        PoolArgs p{};
        p.vectors = scratch.vectors.data();
        p.member = member;
        p.offsets = args.offsets;
        p.num_samples = args.num_samples;
        p.weights = args.weights;
        p.mean = args.mean;
        p.out = args.out;
        p.out_stride = args.out_stride;
        p.wide = scratch.wide.data();
        p.dim = dim;
        return p;
    }
};

}  // namespace hps
