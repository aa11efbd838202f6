// Small tensors from literal values and codes.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "kernels/tensor/tensor.h"

namespace quantgate {

/// Codes of any type, cut to the type's width.
template <class Code = uint64_t>
Tensor TensorOfCodes(DType dtype, Shape shape, const std::vector<Code>& codes) {
  Tensor tensor = Tensor::Allocate(dtype, std::move(shape)).value();
  for (size_t i = 0; i < codes.size(); ++i) {
    switch (DTypeBytes(dtype)) {
      case 8:
        tensor.as<uint64_t>()[i] = codes[i];
        break;
      case 4:
        tensor.as<uint32_t>()[i] = static_cast<uint32_t>(codes[i]);
        break;
      case 2:
        tensor.as<uint16_t>()[i] = static_cast<uint16_t>(codes[i]);
        break;
      default:
        tensor.as<uint8_t>()[i] = static_cast<uint8_t>(codes[i]);
        break;
    }
  }
  return tensor;
}

inline Tensor TensorOfFloats(Shape shape, const std::vector<float>& values) {
  std::vector<uint64_t> codes;
  for (float value : values) codes.push_back(std::bit_cast<uint32_t>(value));
  return TensorOfCodes(DType::kF32, std::move(shape), codes);
}

}  // namespace quantgate
