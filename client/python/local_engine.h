// quantgate._engine.LocalEngine, and the objects that it takes and gives.
#pragma once

#include <nanobind/nanobind.h>

namespace quantgate::python {

void BindLocalEngine(nanobind::module_& module);

}  // namespace quantgate::python
