// Tensors from values and back, for tests above the engine.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/tensor/convert.h"
#include "kernels/tensor/generate/generate.h"

namespace quantgate {

/// Values that `dtype` holds exactly, or their RNE cast.
inline Tensor FromValues(DType dtype, Shape shape, const std::vector<float>& values) {
  Tensor tensor = *Tensor::Allocate(DType::kF32, std::move(shape));
  EXPECT_EQ(tensor.element_count(), static_cast<int64_t>(values.size()));
  std::copy(values.begin(), values.end(), tensor.as<float>());
  return dtype == DType::kF32 ? tensor : *CastTensor(tensor, dtype, ExecutionContext());
}

inline std::vector<float> ToValues(const Tensor& tensor) {
  const Tensor f32 =
      tensor.dtype() == DType::kF32 ? tensor : *CastTensor(tensor, DType::kF32, ExecutionContext());
  return {f32.as<float>(), f32.as<float>() + f32.element_count()};
}

inline Tensor Generated(Distribution distribution, uint64_t seed, DType dtype, Shape shape) {
  GeneratorSpec spec;
  spec.distribution = distribution;
  spec.seed = seed;
  spec.dtype = dtype;
  spec.shape = std::move(shape);
  return *Generate(spec, ExecutionContext());
}

inline ::testing::AssertionResult SameBits(const Tensor& subject, const Tensor& reference) {
  if (!subject.has_value() || !reference.has_value()) {
    return ::testing::AssertionFailure() << "a tensor is absent";
  }
  if (subject.dtype() != reference.dtype() || subject.shape() != reference.shape()) {
    return ::testing::AssertionFailure()
           << TensorText(subject) << " against " << TensorText(reference);
  }
  const size_t width = DTypeBytes(subject.dtype());
  for (size_t at = 0; at < subject.byte_size(); at += width) {
    if (std::memcmp(subject.data() + at, reference.data() + at, width) != 0) {
      return ::testing::AssertionFailure()
             << TensorText(subject) << " differs at element " << at / width;
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace quantgate
