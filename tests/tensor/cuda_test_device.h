// The GPU of a test program, and tensors moved there and back.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>

#include "kernels/tensor/device/cuda_device.h"
#include "kernels/tensor/files/tensor_file.h"
#include "tests/base/repository_file.h"

namespace quantgate {

/// A test that cannot have what it needs must not pass.
template <typename T>
T ValueOrAbort(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::cerr << value.status().ToString() << "\n";
  std::abort();
}

inline CudaDevice& TestDevice() {
  static CudaDevice& device = *ValueOrAbort(CudaDevice::Open(0)).release();
  return device;
}

inline Tensor OnDevice(const Tensor& tensor) { return ValueOrAbort(TestDevice().ToDevice(tensor)); }
inline Tensor OnHost(const Tensor& tensor) { return ValueOrAbort(TestDevice().ToHost(tensor)); }

/// The same elements at an address that is `elements` elements past an aligned one.
inline Tensor OnDeviceShifted(const Tensor& tensor, int64_t elements) {
  const int64_t bytes = DTypeBytes(tensor.dtype());
  const Tensor padded = ValueOrAbort(
      Tensor::Allocate(DType::kU8, {static_cast<int64_t>(tensor.byte_size()) + elements * bytes}));
  Tensor writable = padded;
  std::memset(writable.data(), 0xA5, padded.byte_size());
  if (tensor.byte_size() > 0) {
    std::memcpy(writable.data() + elements * bytes, tensor.data(), tensor.byte_size());
  }
  const Tensor on_device = OnDevice(padded);
  const auto buffer = Buffer::Wrap(const_cast<std::byte*>(on_device.data()), on_device.byte_size(),
                                   std::make_shared<Tensor>(on_device), MemorySpace::kDevice);
  return ValueOrAbort(
      Tensor::View(tensor.dtype(), tensor.shape(), buffer, static_cast<size_t>(elements * bytes)));
}

/// Dtype, shape and every byte.
inline testing::AssertionResult SameTensor(const Tensor& expected, const Tensor& on_device) {
  if (on_device.dtype() != expected.dtype() || on_device.shape() != expected.shape()) {
    return testing::AssertionFailure()
           << TensorText(on_device) << " instead of " << TensorText(expected);
  }
  const Tensor actual = OnHost(on_device);
  if (expected.byte_size() == 0 ||
      std::memcmp(expected.data(), actual.data(), expected.byte_size()) == 0) {
    return testing::AssertionSuccess();
  }
  size_t at = 0;
  while (expected.data()[at] == actual.data()[at]) ++at;
  const size_t element = at / DTypeBytes(expected.dtype());
  return testing::AssertionFailure()
         << TensorText(expected) << ": element " << element << " differs, byte " << at << " is "
         << static_cast<int>(actual.data()[at]) << " instead of "
         << static_cast<int>(expected.data()[at]);
}

/// A tensor of the real layer that the repository carries.
inline Tensor RealTensor(const std::string& name) {
  const TensorFile file =
      ValueOrAbort(ReadSafetensors(RepositoryFile("data/bytegpt_block1.safetensors")));
  return ValueOrAbort(file.Find(name));
}

}  // namespace quantgate
