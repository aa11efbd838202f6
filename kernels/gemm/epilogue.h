// What a GEMM does to its fp32 accumulator before the output is stored: scales, alpha and beta,
// bias, rounding (the epilogue table of docs/tensor-cores.md section 3.3), the same for every
// arithmetic that accumulates in fp32.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/gemm/epilogue_step.h"
#include "kernels/gemm/gemm.h"

namespace quantgate {

/// alpha' of an nv16 GEMM: alpha with the global scales of both operands, or, where a is
/// row-scaled, with the constant alone (docs/tensor-cores.md section 3.5).
float Nvfp4Coefficient(const GemmDesc& desc);
/// The part of it that no tensor holds: f32(1 / (6 * 6 * B_M * B_N)).
float Nvfp4Reciprocal(const GemmDesc& desc);

/// How alpha, beta and c meet in the GEMM.
Combination CombinationOf(const GemmDesc& desc);
/// Whether, without c, the product alone is the result, rather than fma with an addend of +0: after
/// split-K and after sums of scaled blocks. Measured on an H200
/// (tests/data/golden_gemm_fp8_block, golden_gemm_splitk).
bool KeepsNegativeZero(const GemmDesc& desc);

class Epilogue {
 public:
  /// Columns that one call of Apply may span.
  static constexpr int kColumnsMax = 64;

  /// `d` is the output [m][n] of desc.out_dtype, absent for ApplyTo alone; it and `desc` must
  /// outlive the Epilogue.
  Epilogue(const GemmDesc& desc, const GemmShape& shape, Tensor& d);

  /// Stores d[row][column .. column + columns) from the accumulators. Returns the bits of max
  /// |value| in fp32 before d_scale, NaN if any is, for FP8 outputs; 0 for others. Thread-safe
  /// for disjoint outputs.
  uint32_t Apply(int64_t row, int64_t column, int columns, const float* accumulators) const;
  /// The same, but the codes go to `out` instead of d.
  uint32_t ApplyTo(int64_t row, int64_t column, int columns, const float* accumulators,
                   std::byte* out) const;

 private:
  void SetRowFactors(const GemmDesc& desc);
  void ScaleByVectors(int64_t row, int64_t column, int columns, float* values) const;
  void Combine(int64_t row, int64_t column, int columns, float* values) const;
  void AddBias(int64_t column, int columns, float* values) const;
  uint32_t Store(int columns, float* values, std::byte* destination) const;

  const DType out_dtype_;
  const int64_t n_;
  std::byte* const d_;
  const Combination combination_;
  const bool keeps_negative_zero_;
  float coefficient_ = 1;  // f32(f32(alpha * scale_N) * scale_M), or alpha beside vector scales.
  const float* row_scale_ = nullptr;     // [m]; vector scales only.
  const float* column_scale_ = nullptr;  // [n]; vector scales only.
  std::vector<float> row_factor_;        // [m]; row-scaled NVFP4 only: multiplies the fp32 result.
  const float beta_;
  const Tensor& c_;
  std::vector<float> bias_;  // [n]; empty: none.
  float d_scale_ = 1;
};

}  // namespace quantgate
