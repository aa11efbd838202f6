// Operands of a GEMM as matrices of fp64 values, whatever their type, block scales and layout.
// Every supported element is an fp64 number, and so is the product of any two, except under fp32
// block scales.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/base/execution.h"
#include "kernels/gemm/exact/exact_kernels.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/operand_view.h"

namespace quantgate {

/// How much of k is packed and multiplied at a time.
inline constexpr int64_t kExactDepth = 256;
/// The most rows in a panel of any instruction set.
inline constexpr int kExactPanelRowsMax = 64;

const ExactKernels& ExactKernelsFor(Isa isa);

/// The output format of a dtype: f32, bf16, f16 or FP8.
ExactOutput ExactOutputOf(DType dtype);

/// An operand as an ExactSource, with the memory that the source points to.
struct ExactOperand {
  OperandView view;
  std::vector<double> scales;
  ExactSource source;

  explicit ExactOperand(OperandView operand);
  ExactOperand(ExactOperand&&) = default;  // Vectors keep their memory when moved.
  ExactOperand(const ExactOperand&) = delete;
  ExactOperand& operator=(const ExactOperand&) = delete;
};

/// Decodes the k values of one row, scales included.
void DecodeExactRow(const ExactSource& source, int64_t row, double* values);

/// Packs rows [row, row + panel_rows) as kernels.pack does, and multiplies them by their block
/// scales.
void PackExactPanel(const ExactSource& source, int64_t row, int panel_rows, int64_t k_begin,
                    int64_t count, const ExactKernels& kernels, double* panel);

/// Every element of a tensor as f32, which is exact for all types of operands and outputs.
std::vector<float> DecodeToFloats(const Tensor& tensor);

/// The scales of one side that multiply whole sums, one for each row: the operand's own, one
/// repeated, or 1; under nv16 the amaxes, whose divisor is GlobalDivisor.
std::vector<float> ScalesOf(const GemmOperand& operand, int64_t rows);

/// The product of 6 * e4m3_max over the nv16 operands that have an amax: at most 6^2 * 448^2.
int64_t GlobalDivisor(const GemmDesc& desc);

/// What bounds the dot products of each row.
struct ExactRowBounds {
  std::vector<double> norm;        ///< Upper bound of the 2-norm.
  std::vector<double> lowest_bit;  ///< All elements are multiples of it; +Inf for a zero row.
  /// The largest norm / lowest_bit of a finite row. Its log2 is the number of bits a row needs.
  double LargestRatio() const;
};

ExactRowBounds BoundRows(const ExactSource& source, int panel_rows, const ExactKernels& kernels,
                         const ExecutionContext& context);

}  // namespace quantgate
