// Python's view of whole rows: read, saved by snapshots, and loaded again.
#include <pybind11/stl.h>

#include <algorithm>

#include "arrays.hpp"
#include "bindings.hpp"
#include "hash.hpp"
#include "snapshot.hpp"
#include "table.hpp"

namespace hps {
namespace {

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
    if (t.layout().has_steps()) {
        step = counter("step");
        rows.step = const_cast<uint32_t*>(flat<uint32_t>(step, "step", n));
    }
    if (t.layout().has_counters()) {
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
    const py::ssize_t capacity = std::min(max_rows, left);
    py::array_t<uint64_t> keys(capacity);
    py::array vectors = empty_values(t, capacity, t.layout().dim);
    py::array state = empty_values(t, capacity, t.layout().state_dim);
    RowArrays out{};
    out.keys = keys.mutable_data();
    out.vectors = static_cast<char*>(vectors.mutable_data());
    out.state = static_cast<char*>(state.mutable_data());
    py::dict counters;
    if (t.layout().has_steps()) {
        py::array_t<uint32_t> step(capacity);
        out.step = step.mutable_data();
        counters["step"] = step;
    }
    if (t.layout().has_counters()) {
        py::array_t<float> show(capacity), click(capacity);
        out.show = show.mutable_data();
        out.click = click.mutable_data();
        counters["show"] = show;
        counters["click"] = click;
    }
    int64_t n;
    {
        const py::gil_scoped_release release;
        n = s.read(cursor, capacity, out);
    }
    if (n == 0) return py::none();
    return py::make_tuple(n, keys, vectors, state, counters);
}

}  // namespace

void bind_snapshot(py::module_& m) {
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
}

void bind_rows(py::class_<Table, std::shared_ptr<Table>>& table) {
    table.def("read", &read_rows)
        .def("reserve", &Table::reserve, py::call_guard<py::gil_scoped_release>())
        .def("wait_until_reserved", &Table::wait_until_reserved,
             py::call_guard<py::gil_scoped_release>())
        .def("load", &load)
        .def("load_extra", &load_extra)
        .def("snapshot", [](Table& t) {
            const py::gil_scoped_release release;
            return t.snapshot();
        });
}

}  // namespace hps
