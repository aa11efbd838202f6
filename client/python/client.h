// quantgate._engine.Client: the verbs over a Connection, in this process or over a transport of
// Python.
#pragma once

#include <nanobind/nanobind.h>

namespace quantgate::python {

void BindClient(nanobind::module_& module);

}  // namespace quantgate::python
