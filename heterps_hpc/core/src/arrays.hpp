// Checks of numpy arrays: what the core gets is of the right type, shape and layout, or the caller
// gets a ValueError that says what was expected, what came, and what to do.
#pragma once
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>

namespace hps {

namespace py = pybind11;

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
    std::ostringstream text;
    (text << ... << parts);
    throw py::value_error(text.str());
}

inline std::string describe(const py::array& a) {
    std::ostringstream text;
    text << std::string(py::str(a.dtype())) << "[";
    for (py::ssize_t d = 0; d < a.ndim(); ++d) text << (d ? ", " : "") << a.shape(d);
    text << "]";
    return text.str();
}

inline py::array as_array(py::handle value, const char* what) {
    if (!py::isinstance<py::array>(value)) {
        refuse(what, " must be a numpy array, got ", std::string(py::str(py::type::of(value))),
               "; a torch tensor has .numpy()");
    }
    return py::reinterpret_borrow<py::array>(value);
}

template <class T>
const T* flat(const py::array& a, const char* what, py::ssize_t length = -1) {
    if (!py::isinstance<py::array_t<T>>(a) || a.ndim() != 1 || !(a.flags() & py::array::c_style)) {
        refuse(what, " must be a contiguous one-dimensional ",
               std::string(py::str(py::dtype::of<T>())), " array, got ", describe(a),
               "; use numpy.ascontiguousarray(x, dtype)");
    }
    if (length >= 0 && a.shape(0) != length) {
        refuse(what, " must have ", length, " entries, got ", a.shape(0));
    }
    return static_cast<const T*>(a.data());
}

inline bool has_float(const py::array& a, bool float64) {
    return float64 ? py::isinstance<py::array_t<double>>(a) : py::isinstance<py::array_t<float>>(a);
}

// A [rows, cols] matrix of the table's float type whose rows are contiguous; it may be some
// columns of a wider matrix. Returns the bytes between rows.
inline py::ssize_t check_matrix(const py::array& a, const char* what, py::ssize_t rows,
                                py::ssize_t cols, bool float64) {
    const py::ssize_t item = float64 ? 8 : 4;
    if (!has_float(a, float64) || a.ndim() != 2) {
        refuse(what, " must be a two-dimensional ", float64 ? "float64" : "float32", " array, got ",
               describe(a), "; convert it, or make the table with that dtype");
    }
    if (a.shape(0) != rows || a.shape(1) != cols) {
        refuse(what, " must have the shape [", rows, ", ", cols, "], got ", describe(a));
    }
    if (rows == 0 || cols == 0) return cols * item;
    const bool dense_rows = cols == 1 || a.strides(1) == item;
    const bool apart = rows == 1 || a.strides(0) >= cols * item;
    if (!dense_rows || !apart || a.strides(0) % item != 0) {
        refuse(what, " must have contiguous rows (it may be a slice of columns), got strides of ",
               a.strides(0), " and ", a.strides(1), " bytes; use numpy.ascontiguousarray");
    }
    return a.strides(0);
}

inline const int64_t* check_offsets(const py::array& a, py::ssize_t num_keys) {
    const auto* offsets = flat<int64_t>(a, "offsets");
    const py::ssize_t n = a.shape(0);
    if (n < 1 || offsets[0] != 0 || offsets[n - 1] != num_keys) {
        refuse("offsets must start with 0 and end with the number of keys, ", num_keys, ", got ",
               n < 1 ? std::string("none")
                     : std::to_string(offsets[0]) + " .. " + std::to_string(offsets[n - 1]));
    }
    if (!std::is_sorted(offsets, offsets + n)) {
        refuse("offsets must not decrease; each sample's keys end where the next one's begin");
    }
    return offsets;
}

}  // namespace hps
