// What a table is; the Python dataclass TableConfig validates it and documents each field.
#pragma once
#include <cstdint>
#include <string>

namespace hps {

enum class Optimizer { kSgd, kRowwiseAdagrad, kAdagrad, kAdam };
enum class Init { kZeros, kUniform, kNormal };
// Of vectors in memory; kFull = the type that the table computes in.
enum class Precision { kFull, kFloat16, kBfloat16 };

struct Config {
    std::string name;
    uint64_t seed = 0;
    uint32_t dim = 1;
    bool float64 = false;
    Precision precision = Precision::kFull;
    Optimizer optimizer = Optimizer::kSgd;
    double lr = 0, eps = 0, weight_decay = 0, beta1 = 0, beta2 = 0;
    double clip_norm = 0;  // 0 = no clipping
    double initial_accumulator = 0;
    Init init = Init::kUniform;
    double init_scale = 0;
    uint32_t num_partitions = 64;
    int threads = 1;
    uint32_t admission = 1;
    uint64_t sketch_bytes = 0;  // per partition; 0 = exact counts
    bool counters = false;
    double show_decay = 1;
    bool track_steps = false;
    uint64_t max_age = 0;  // 0 = rows do not age
    bool evict_by_score = false;
    double min_score = 0, show_weight = 0, click_weight = 0;
    uint64_t evict_every = 1;
    bool skip_nonfinite = false;  // else refuse
    uint64_t hot_bytes = 0;       // 0 = all rows in memory
    std::string spill_path;
};

inline uint32_t state_dim(const Config& c) {
    switch (c.optimizer) {
        case Optimizer::kSgd:
            return 0;
        case Optimizer::kRowwiseAdagrad:
            return 1;
        case Optimizer::kAdagrad:
            return c.dim;
        case Optimizer::kAdam:
            return 2 * c.dim + 1;  // first moments, second moments, updates so far
    }
    return 0;
}

}  // namespace hps
