// The epilogue: what a GEMM does to its fp32 accumulators before it stores the output, namely
// scales, alpha and beta, bias and rounding (the epilogue table of docs/tensor-cores.md section
// 3.3). It is the same for every arithmetic that accumulates in fp32.
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
/// The constant factor of alpha', which no tensor holds: f32(1 / (6 * 6 * B_M * B_N)).
float Nvfp4Reciprocal(const GemmDesc& desc);

/// How the GEMM combines alpha, beta and c.
Combination CombinationOf(const GemmDesc& desc);
/// Whether a GEMM without c keeps a zero product of -0. It does after split-K and after sums of
/// scaled blocks, where the result is the plain product; otherwise the result is fma with an addend
/// of +0. Measured on an H200 (tests/data/golden_gemm_fp8_block, golden_gemm_splitk).
bool KeepsNegativeZero(const GemmDesc& desc);

/// The epilogue of one GEMM on the CPU.
class Epilogue {
 public:
  /// The most columns that one call of Apply may span.
  static constexpr int kColumnsMax = 64;

  /// `d` is the output [m][n] of desc.out_dtype, which may be absent where only ApplyTo is called;
  /// `d` and `desc` must outlive the Epilogue.
  Epilogue(const GemmDesc& desc, const GemmShape& shape, Tensor& d);

  /// Stores d[row][column .. column + columns) from their accumulators. For FP8 outputs returns the
  /// bits of max |value| in fp32 before d_scale, NaN if any value is; for others returns 0.
  /// Thread-safe for disjoint outputs.
  uint32_t Apply(int64_t row, int64_t column, int columns, const float* accumulators) const;
  /// As Apply, but writes the codes to `out` instead of d.
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
