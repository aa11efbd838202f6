// Exact dot products computed elsewhere, in rational arithmetic (tests/vectors/exact_reference.py).
#pragma once

#include <string>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "tests/tensor/tensor_of.h"

namespace quantgate {

struct ExactVector {
  std::string text;   ///< The line of the file.
  GemmDesc desc;      ///< A GEMM of 1 x 1 x k.
  uint32_t d = 0;     ///< The expected code.
  uint32_t amax = 0;  ///< The expected f32 bits; FP8 outputs only.
};

/// The code of an element of any floating type.
uint32_t CodeAt(const Tensor& tensor, int64_t index);

/// Every case of tests/data/exact_dots.txt.
std::vector<ExactVector> ReadExactVectors();

}  // namespace quantgate
