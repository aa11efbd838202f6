// What a GEMM does to its fp32 accumulator before the output is stored: scales, alpha and beta,
// bias, rounding (the epilogue table of tensor-cores.md section 3), the same for every arithmetic
// that accumulates in fp32.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/gemm/gemm.h"

namespace quantgate {

class Epilogue {
 public:
  /// Columns that one call of Apply may span.
  static constexpr int kColumnsMax = 64;

  /// `d` is the output [m][n] of desc.out_dtype; it and `desc` must outlive the Epilogue.
  Epilogue(const GemmDesc& desc, const GemmShape& shape, Tensor& d);

  /// Stores d[row][column .. column + columns) from the accumulators. Returns the bits of max
  /// |value| in fp32 before d_scale, NaN not counted, for FP8 outputs; 0 for others. Thread-safe
  /// for disjoint outputs.
  uint32_t Apply(int64_t row, int64_t column, int columns, const float* accumulators) const;

 private:
  void Combine(int64_t row, int64_t column, int columns, const float* accumulators,
               float* values) const;
  void AddInPlace(int64_t row, int64_t column, int columns, float* values) const;
  uint32_t Store(int64_t row, int64_t column, int columns, float* values) const;

  const DType out_dtype_;
  const int64_t n_;
  std::byte* const d_;
  const bool outer_;                     // Vector scales of both operands in place of coefficient_.
  float coefficient_ = 1;                // f32(f32(alpha * scale_N) * scale_M).
  const float* row_scale_ = nullptr;     // [m], outer_ only.
  const float* column_scale_ = nullptr;  // [n], outer_ only.
  const float alpha_;
  const float beta_;
  const Tensor& c_;
  const bool adds_in_place_;  // beta = 1 and c is the memory of d: the sum is rounded twice.
  std::vector<float> bias_;   // [n]; empty: none.
  float d_scale_ = 1;
};

}  // namespace quantgate
