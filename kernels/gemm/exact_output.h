// One output of the exact GEMM in wide integers: for the few outputs that the fp64 interval cannot
// decide, and for NaN and infinities.
#pragma once

#include <cstdint>

#include "kernels/numerics/wide_accumulator.h"
#include "kernels/tensor/dtype.h"

namespace quantgate {

/// Holds any sum of fewer than 2^30 products of two operands. f32 numbers: multiples of 2^-298
/// below 2^256, and fp64 significands, 53 bits long whatever the value, reach down to 2^-350. FP8
/// under fp32 scales: multiples of 2^-330 (e5m2) below 2^288, significands down to 2^-382.
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
  uint64_t divisor = 1;  ///< Of the dot product; below 2^32.
};

struct ExactCode {
  uint32_t code = 0;
  uint32_t amax =
      0;  ///< f32 bits of |value| before d_scale, rounded once; NaN is canonical, above all.
};

/// RNE((alpha * scale_a * scale_b * dot / divisor + beta * c + bias) * d_scale), the dot product
/// finite.
ExactCode RoundExactOutput(const ExactDot& dot, const ExactTerms& terms, DType out_dtype);

/// The same for a dot product that is NaN or infinite.
ExactCode RoundSpecialOutput(double dot, const ExactTerms& terms, DType out_dtype);

}  // namespace quantgate
