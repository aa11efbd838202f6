// HostTensor: a tensor of the engine as Python, the host of the extension, sees it:
// quantgate._engine.Tensor. It shares the memory of the array that it was made of, or is the memory
// of the array that it gives, on the CPU or on a GPU.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "kernels/tensor/tensor.h"

namespace quantgate::python {

struct HostTensor {
  Tensor tensor;
  int ordinal = -1;  ///< Of the CUDA device whose memory it is; -1: host memory.

  bool is_on_device() const { return tensor.has_value() && tensor.space() == MemorySpace::kDevice; }
};

/// A tensor without value for None.
Tensor TensorOrNone(const nanobind::object& object);

/// The dtype of a name; INVALID_ARGUMENT naming `field`.
DType DTypeOf(const std::string& name, const char* field);

void BindTensors(nanobind::module_& module);

}  // namespace quantgate::python
