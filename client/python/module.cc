// quantgate._engine: the engine, its messages and its reports for Python. What people call is in
// client/python/quantgate; this is its private part.
#include <nanobind/nanobind.h>

#include "client/python/client.h"
#include "client/python/document.h"
#include "client/python/host_tensor.h"
#include "client/python/local_engine.h"
#include "client/python/messages.h"
#include "client/python/status.h"

NB_MODULE(_engine, module) {
  // Arrays that a program keeps to its end are no leaks.
  nanobind::set_leak_warnings(false);
  quantgate::python::RegisterErrors(module);
  quantgate::python::BindTensors(module);
  quantgate::python::BindMessages(module);
  quantgate::python::BindLocalEngine(module);
  quantgate::python::BindDocuments(module);
  quantgate::python::BindClient(module);
}
