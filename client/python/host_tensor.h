// HostTensor: a tensor of the engine as Python sees it, quantgate._engine.Tensor. It shares the
// memory of the array that it was made of, or is the memory of the array that it gives.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "kernels/tensor/tensor.h"

namespace quantgate::python {

struct HostTensor {
  Tensor tensor;
};

/// A tensor without value for None.
Tensor TensorOrNone(const nanobind::object& object);

/// The dtype of a name; INVALID_ARGUMENT naming `field`.
DType DTypeOf(const std::string& name, const char* field);

void BindTensors(nanobind::module_& module);

}  // namespace quantgate::python
