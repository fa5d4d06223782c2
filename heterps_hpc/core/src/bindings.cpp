// Python's view of the core. Checks every array before the core sees a pointer, and gives the GIL
// back while the core works.
#include <pybind11/stl.h>

#include <algorithm>

#include "arrays.hpp"
#include "hash.hpp"
#include "snapshot.hpp"
#include "table.hpp"

namespace py = pybind11;
using namespace hps;

namespace {

std::shared_ptr<Pulled> pull(Table& t, const py::array& keys, const py::object& offsets,
                             const py::object& weights, bool mean, const py::array& out,
                             bool train) {
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
    const py::gil_scoped_release release;
    return t.pull(a);
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

py::array empty_values(const Table& t, py::ssize_t rows, py::ssize_t cols) {
    if (t.config().float64) return py::array_t<double>({rows, cols});
    return py::array_t<float>({rows, cols});
}

py::tuple read_rows(Table& t, const py::array& keys) {
    const auto* k = flat<uint64_t>(keys, "keys");
    const py::ssize_t n = keys.shape(0);
    py::array_t<bool> found(n);
    py::array vectors = empty_values(t, n, t.layout().dim);
    py::array state = empty_values(t, n, t.layout().state_dim);
    bool* f = found.mutable_data();
    auto* v = static_cast<char*>(vectors.mutable_data());
    auto* s = static_cast<char*>(state.mutable_data());
    {
        const py::gil_scoped_release release;
        t.read(k, n, f, v, s);
    }
    return py::make_tuple(found, vectors, state);
}

void check_held(const Table& t, uint32_t partition) {
    if (partition >= t.config().num_partitions || !t.holds(partition)) {
        refuse("partition ", partition, " is not held by this shard of table '", t.config().name,
               "'; it holds ", t.partitions().size(), " of ", t.config().num_partitions);
    }
}

void load(Table& t, uint32_t partition, const py::array& keys, const py::array& vectors,
          const py::array& state, const py::dict& counters) {
    check_held(t, partition);
    const bool float64 = t.config().float64;
    const py::ssize_t n = keys.shape(0);
    RowArrays rows{};
    rows.keys = const_cast<uint64_t*>(flat<uint64_t>(keys, "keys"));
    const py::ssize_t item = float64 ? 8 : 4;
    const auto whole = [&](const py::array& a, const char* what, py::ssize_t cols) {
        const py::ssize_t stride = check_matrix(a, what, n, cols, float64);
        if (n > 1 && cols > 0 && stride != cols * item) refuse(what, " must be contiguous");
        return static_cast<char*>(const_cast<void*>(a.data()));
    };
    rows.vectors = whole(vectors, "vectors", t.layout().dim);
    rows.state = whole(state, "state", t.layout().state_dim);
    const auto counter = [&](const char* name) -> py::array {
        if (!counters.contains(name)) {
            refuse("rows have no counter '", name,
                   "', which this table keeps; load rows saved by a "
                   "table of the same configuration");
        }
        return as_array(counters[name], name);
    };
    py::array step, show, click;
    if (t.layout().step != 0) {
        step = counter("step");
        rows.step = const_cast<uint32_t*>(flat<uint32_t>(step, "step", n));
    }
    if (t.layout().show != 0) {
        show = counter("show");
        click = counter("click");
        rows.show = const_cast<float*>(flat<float>(show, "show", n));
        rows.click = const_cast<float*>(flat<float>(click, "click", n));
    }
    for (py::ssize_t i = 0; i < n; ++i) {
        const uint32_t p = partition_of(rows.keys[i], t.config().num_partitions);
        if (p != partition) {
            refuse("key ", rows.keys[i], " belongs to partition ", p, ", not to ", partition,
                   "; load each partition's rows under its own number");
        }
    }
    const py::gil_scoped_release release;
    t.load(partition, rows, n);
}

void load_extra(Table& t, uint32_t partition, const py::dict& extra) {
    check_held(t, partition);
    Sightings s;
    if (extra.contains("sketch")) {
        const py::array a = as_array(extra["sketch"], "sketch");
        const auto* cells = flat<uint16_t>(a, "sketch");
        s.sketch.assign(cells, cells + a.shape(0));
    }
    if (extra.contains("sighted_keys")) {
        const py::array keys = as_array(extra["sighted_keys"], "sighted_keys");
        const py::array counts = as_array(extra["sightings"], "sightings");
        const auto* k = flat<uint64_t>(keys, "sighted_keys");
        const auto* c = flat<uint32_t>(counts, "sightings", keys.shape(0));
        for (py::ssize_t i = 0; i < keys.shape(0); ++i) s.exact.emplace(k[i], c[i]);
    }
    if (extra.contains("clock")) {
        t.load_step(*flat<uint64_t>(as_array(extra["clock"], "clock"), "clock", 1));
    }
    t.load_admission(partition, std::move(s));
}

py::dict extra(const Snapshot& s, uint32_t partition) {
    check_held(s.table(), partition);
    py::dict result;
    py::array_t<uint64_t> clock(1);
    clock.mutable_at(0) = s.step();
    result["clock"] = clock;
    const auto sightings = s.sightings(partition);
    if (sightings == nullptr) return result;
    if (!sightings->sketch.empty()) {
        result["sketch"] = py::array_t<uint16_t>(static_cast<py::ssize_t>(sightings->sketch.size()),
                                                 sightings->sketch.data());
        return result;
    }
    std::vector<std::pair<uint64_t, uint32_t>> sorted(sightings->exact.begin(),
                                                      sightings->exact.end());
    std::sort(sorted.begin(), sorted.end());
    const auto n = static_cast<py::ssize_t>(sorted.size());
    py::array_t<uint64_t> keys(n);
    py::array_t<uint32_t> counts(n);
    for (py::ssize_t i = 0; i < n; ++i) {
        keys.mutable_at(i) = sorted[static_cast<size_t>(i)].first;
        counts.mutable_at(i) = sorted[static_cast<size_t>(i)].second;
    }
    result["sighted_keys"] = keys;
    result["sightings"] = counts;
    return result;
}

// Some rows of a snapshot as (keys, vectors, state, counters); None at the end.
py::object read_snapshot(Snapshot& s, Snapshot::Cursor& cursor, py::ssize_t max_rows) {
    if (max_rows < 1) refuse("max_rows must be at least 1, got ", max_rows);
    const Table& t = s.table();
    const auto left = static_cast<py::ssize_t>(s.num_rows(cursor.partition) - cursor.num_read);
    const py::ssize_t room = std::min(max_rows, left);
    py::array_t<uint64_t> keys(room);
    py::array vectors = empty_values(t, room, t.layout().dim);
    py::array state = empty_values(t, room, t.layout().state_dim);
    RowArrays out{};
    out.keys = keys.mutable_data();
    out.vectors = static_cast<char*>(vectors.mutable_data());
    out.state = static_cast<char*>(state.mutable_data());
    py::dict counters;
    if (t.layout().step != 0) {
        py::array_t<uint32_t> step(room);
        out.step = step.mutable_data();
        counters["step"] = step;
    }
    if (t.layout().show != 0) {
        py::array_t<float> show(room), click(room);
        out.show = show.mutable_data();
        out.click = click.mutable_data();
        counters["show"] = show;
        counters["click"] = click;
    }
    int64_t n;
    {
        const py::gil_scoped_release release;
        n = s.read(cursor, room, out);
    }
    if (n == 0) return py::none();
    return py::make_tuple(n, keys, vectors, state, counters);
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
    py::class_<Config> c(m, "Config");
    c.def(py::init<>());
#define HPS_FIELD(name) c.def_readwrite(#name, &Config::name)
    HPS_FIELD(name);
    HPS_FIELD(seed);
    HPS_FIELD(dim);
    HPS_FIELD(float64);
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
    HPS_FIELD(unknown_default);
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
        .def_readonly("open", &Pulled::open);
    py::class_<Snapshot::Cursor>(m, "Cursor");
    py::class_<Snapshot, std::shared_ptr<Snapshot>>(m, "Snapshot")
        .def("open",
             [](const Snapshot& s, uint32_t partition, uint64_t since) {
                 check_held(s.table(), partition);
                 return s.open(partition, since);
             })
        .def("read", &read_snapshot)
        .def("extra", &extra)
        .def("num_rows", &Snapshot::num_rows)
        .def("release", &Snapshot::release, py::call_guard<py::gil_scoped_release>())
        .def("close", &Snapshot::close, py::call_guard<py::gil_scoped_release>())
        .def("preserved_bytes", &Snapshot::preserved_bytes)
        .def_property_readonly("step", &Snapshot::step);
    py::class_<Table, std::shared_ptr<Table>>(m, "Table")
        .def(py::init(&make_table), py::arg("config"), py::arg("partitions"), py::arg("isa"))
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
        .def("read", &read_rows)
        .def("load", &load)
        .def("load_extra", &load_extra)
        .def("snapshot",
             [](Table& t) {
                 const py::gil_scoped_release release;
                 return t.snapshot();
             })
        .def("stats", &stats)
        .def("memory_bytes", &Table::memory_bytes)
        .def_property_readonly("isa", &Table::isa)
        .def_property_readonly("state_dim", [](const Table& t) { return t.layout().state_dim; })
        .def_property_readonly("row_bytes", [](const Table& t) { return t.layout().stride; })
        .def_property_readonly("partitions", &Table::partitions);
    m.def("partitions_of", &partitions_of);
    m.def("hash_array", &hash_array);
    m.def("hash_bytes", [](const py::bytes& text, uint64_t seed) {
        return hash_bytes(std::string_view(text), seed);
    });
}
