// One output of the exact GEMM in wide integers: for the few outputs that the fp64 interval cannot
// decide, and for NaN and infinities.
#pragma once

#include <cstdint>

#include "kernels/numerics/wide_accumulator.h"
#include "kernels/tensor/dtype.h"

namespace quantgate {

/// Holds any sum of fewer than 2^31 products of two f32 numbers: they are multiples of 2^-298 below
/// 2^256. fp64 significands, 53 bits long whatever the value, reach down to 2^-350.
using ExactDot = WideAccumulator<-384, 11>;

/// Everything but the dot product that makes one output. Absent parts hold their neutral value.
struct ExactTerms {
  float alpha = 1;
  float scale_a = 1;
  float scale_b = 1;
  float beta = 0;  ///< 0: c is not looked at.
  float c = 0;
  float bias = 0;
  float d_scale = 1;
};

struct ExactCode {
  uint32_t code = 0;
  uint32_t amax =
      0;  ///< f32 bits of |value| before d_scale, rounded once; NaN is canonical, above all.
};

/// RNE((alpha * scale_a * scale_b * dot + beta * c + bias) * d_scale), the dot product finite.
ExactCode RoundExactOutput(const ExactDot& dot, const ExactTerms& terms, DType out_dtype);

/// The same for a dot product that is NaN or infinite.
ExactCode RoundSpecialOutput(double dot, const ExactTerms& terms, DType out_dtype);

}  // namespace quantgate
