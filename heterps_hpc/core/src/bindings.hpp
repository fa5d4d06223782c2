// The parts of the Python module; bindings.cpp puts them together.
#pragma once
#include <pybind11/pybind11.h>

#include <memory>

#include "table.hpp"

namespace hps {

void bind_snapshot(pybind11::module_& m);
void bind_rows(pybind11::class_<Table, std::shared_ptr<Table>>& table);

}  // namespace hps
