// Python's view of the core. Checks every array before the core sees a pointer, and gives the GIL
// back while the core works.
#include "bindings.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <unordered_set>

#include "arrays.hpp"
#include "hash.hpp"
#include "table.hpp"

namespace py = pybind11;
using namespace hps;

namespace {

std::shared_ptr<Pulled> pull(Table& t, const py::array& keys, const py::object& offsets,
                             const py::object& weights, bool mean, const py::array& out, bool train,
                             const py::object& absent) {
    PullArgs a{};
    const bool float64 = t.config().float64;
    a.keys = flat<uint64_t>(keys, "keys");
    a.num_keys = keys.shape(0);
    a.num_samples = a.num_keys;
    if (!offsets.is_none()) {
        const py::array array = as_array(offsets, "offsets");
        a.offsets = check_offsets(array, a.num_keys);
        a.num_samples = array.shape(0) - 1;
    }
    if (!weights.is_none()) {
        const py::array w = as_array(weights, "weights");
        a.weights = float64 ? static_cast<const void*>(flat<double>(w, "weights", a.num_keys))
                            : static_cast<const void*>(flat<float>(w, "weights", a.num_keys));
    }
    a.mean = mean;
    a.out_stride = check_matrix(out, "out", a.num_samples, t.config().dim, float64);
    if (!out.writeable()) refuse("out must be writeable; copy it first");
    a.out = static_cast<char*>(const_cast<void*>(out.data()));
    a.train = train;
    std::unordered_set<uint64_t> refused;
    if (!absent.is_none()) {
        if (!train) refuse("absent is for a training pull that is made again; give None");
        const py::array array = as_array(absent, "absent");
        const auto* k = flat<uint64_t>(array, "absent");
        refused.insert(k, k + array.shape(0));
        a.absent = &refused;
    }
    const py::gil_scoped_release release;
    return t.pull(a);
}

py::array_t<uint64_t> absent_keys(const Pulled& pulled) {
    std::vector<uint64_t> keys = pulled.absent;
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    return py::array_t<uint64_t>(static_cast<py::ssize_t>(keys.size()), keys.data());
}

// Clicks of each handle's samples: one array that serves all handles, or one array per handle.
py::array clicks_of(const py::object& clicks, size_t handle, size_t num_handles) {
    if (py::isinstance<py::array>(clicks)) return as_array(clicks, "clicks");
    if (!py::isinstance<py::sequence>(clicks)) {
        refuse("clicks must be a float32 array, or a sequence of one per handle, got ",
               std::string(py::str(py::type::of(clicks))));
    }
    const auto each = clicks.cast<py::sequence>();
    if (each.size() != num_handles) {
        refuse("push got ", num_handles, " handles and ", each.size(),
               " arrays of clicks; give one per handle, or one array for all");
    }
    return as_array(each[handle], "clicks");
}

py::dict push(Table& t, const std::vector<std::shared_ptr<Pulled>>& handles,
              const py::sequence& gradients, int64_t step, const py::object& lr,
              const py::object& clicks) {
    if (handles.size() != gradients.size()) {
        refuse("push got ", handles.size(), " handles and ", gradients.size(),
               " gradients; give one gradient per handle");
    }
    if (step < 0) refuse("step must not be negative, got ", step);
    std::vector<Gradient> g;
    std::vector<const float*> c;
    for (size_t h = 0; h < handles.size(); ++h) {
        if (!handles[h])
            refuse("push: handle ", h, " is None; only a training pull gives a handle");
        const py::array a = as_array(gradients[h], "gradient");
        const auto rows = static_cast<py::ssize_t>(handles[h]->num_samples);
        g.push_back(
            {a.data(), check_matrix(a, "gradient", rows, t.config().dim, t.config().float64)});
        if (!clicks.is_none())
            c.push_back(flat<float>(clicks_of(clicks, h, handles.size()), "clicks", rows));
    }
    const double rate = lr.is_none() ? t.config().lr : lr.cast<double>();
    if (!(rate >= 0)) refuse("lr must be zero or more, got ", rate);
    PushStats s;
    {
        const py::gil_scoped_release release;
        s = t.push(handles, g, static_cast<uint64_t>(step), rate, c);
    }
    py::dict result;
    result["rows"] = s.rows;
    result["nonfinite_skipped"] = s.skipped;
    result["evicted"] = s.evicted;
    return result;
}

py::array_t<uint32_t> partitions_of(const py::array& keys, uint32_t num_partitions) {
    const auto* k = flat<uint64_t>(keys, "keys");
    if (num_partitions < 1) refuse("num_partitions must be at least 1, got 0");
    py::array_t<uint32_t> result(keys.shape(0));
    uint32_t* out = result.mutable_data();
    for (py::ssize_t i = 0; i < keys.shape(0); ++i) out[i] = partition_of(k[i], num_partitions);
    return result;
}

py::array_t<uint64_t> hash_array(const py::array& keys, uint64_t seed) {
    const auto* k = flat<uint64_t>(keys, "keys");
    py::array_t<uint64_t> result(keys.shape(0));
    uint64_t* out = result.mutable_data();
    const uint64_t salt = split64(seed);
    for (py::ssize_t i = 0; i < keys.shape(0); ++i) out[i] = mix64(k[i] ^ salt);
    return result;
}

py::dict stats(const Table& t) {
    const TableStats s = t.stats();
    py::dict d;
    d["rows"] = s.rows;
    d["created"] = s.created;
    d["loaded"] = s.loaded;
    d["evicted"] = s.evicted;
    d["rejected"] = s.rejected;
    d["nonfinite_skipped"] = s.nonfinite_skipped;
    d["pulled_keys"] = s.pulled_keys;
    d["pushed_rows"] = s.pushed_rows;
    d["hot"] = s.rows - s.cold;
    d["cold"] = s.cold;
    d["promoted"] = s.promoted;
    d["demoted"] = s.demoted;
    return d;
}

std::shared_ptr<Table> make_table(const Config& config, const std::vector<uint32_t>& partitions,
                                  const std::string& isa) {
    return std::make_shared<Table>(config, partitions, isa.c_str());
}

void bind_config(py::module_& m) {
    py::enum_<Optimizer>(m, "Optimizer")
        .value("sgd", Optimizer::kSgd)
        .value("adagrad_rowwise", Optimizer::kRowwiseAdagrad)
        .value("adagrad", Optimizer::kAdagrad)
        .value("adam", Optimizer::kAdam);
    py::enum_<Init>(m, "Init")
        .value("zeros", Init::kZeros)
        .value("uniform", Init::kUniform)
        .value("normal", Init::kNormal);
    py::enum_<Precision>(m, "Precision")
        .value("full", Precision::kFull)
        .value("float16", Precision::kFloat16)
        .value("bfloat16", Precision::kBfloat16);
    py::class_<Config> c(m, "Config");
    c.def(py::init<>());
#define HPS_FIELD(name) c.def_readwrite(#name, &Config::name)
    HPS_FIELD(name);
    HPS_FIELD(seed);
    HPS_FIELD(dim);
    HPS_FIELD(float64);
    HPS_FIELD(precision);
    HPS_FIELD(optimizer);
    HPS_FIELD(lr);
    HPS_FIELD(eps);
    HPS_FIELD(weight_decay);
    HPS_FIELD(beta1);
    HPS_FIELD(beta2);
    HPS_FIELD(clip_norm);
    HPS_FIELD(initial_accumulator);
    HPS_FIELD(init);
    HPS_FIELD(init_scale);
    HPS_FIELD(num_partitions);
    HPS_FIELD(threads);
    HPS_FIELD(admission);
    HPS_FIELD(sketch_bytes);
    HPS_FIELD(counters);
    HPS_FIELD(show_decay);
    HPS_FIELD(track_steps);
    HPS_FIELD(max_age);
    HPS_FIELD(evict_by_score);
    HPS_FIELD(min_score);
    HPS_FIELD(show_weight);
    HPS_FIELD(click_weight);
    HPS_FIELD(evict_every);
    HPS_FIELD(skip_nonfinite);
    HPS_FIELD(hot_bytes);
    HPS_FIELD(spill_path);
#undef HPS_FIELD
}

}  // namespace

PYBIND11_MODULE(_core, m) {
    m.doc() = "The C++ table; use heterps_hpc.core, which validates and documents it.";
    bind_config(m);
    py::register_exception<SpillError>(m, "SpillError", PyExc_OSError);
    py::class_<Pulled, std::shared_ptr<Pulled>>(m, "Pulled")
        .def_readonly("num_samples", &Pulled::num_samples)
        .def_readonly("open", &Pulled::open)
        .def_property_readonly("absent", &absent_keys);
    bind_snapshot(m);
    py::class_<Table, std::shared_ptr<Table>> table(m, "Table");
    table.def(py::init(&make_table), py::arg("config"), py::arg("partitions"), py::arg("isa"))
        .def("pull", &pull)
        .def("push", &push)
        .def("discard",
             [](Table& t, Pulled& h) {
                 const py::gil_scoped_release release;
                 t.discard(h);
             })
        .def("prefetch",
             [](Table& t, const py::array& keys) {
                 const auto* k = flat<uint64_t>(keys, "keys");
                 const py::ssize_t n = keys.shape(0);
                 const py::gil_scoped_release release;
                 t.prefetch(k, n);
             })
        .def("stats", &stats)
        .def("memory_bytes", &Table::memory_bytes)
        .def_property_readonly("isa", &Table::isa)
        .def_property_readonly("state_dim", [](const Table& t) { return t.layout().state_dim; })
        .def_property_readonly("row_bytes", [](const Table& t) { return t.layout().record_bytes; })
        .def_property_readonly("partitions", &Table::partitions);
    bind_rows(table);
    m.def("partitions_of", &partitions_of);
    m.def("hash_array", &hash_array);
    m.def("hash_bytes", [](const py::bytes& text, uint64_t seed) {
        return hash_bytes(std::string_view(text), seed);
    });
}
