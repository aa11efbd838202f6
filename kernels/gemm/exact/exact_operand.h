// Operands of a GEMM as matrices of fp64 values, whatever their type, block scales and layout.
// Every supported element is an fp64 number; so is every product of two, but for fp32 block scales.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/base/execution.h"
#include "kernels/gemm/exact/exact_kernels.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/operand_view.h"

namespace quantgate {

/// Columns of k that are packed and multiplied at a time.
inline constexpr int64_t kExactDepth = 256;
/// At most this many rows in a panel of any instruction set.
inline constexpr int kExactPanelRowsMax = 64;

const ExactKernels& ExactKernelsFor(Isa isa);

/// f32, bf16, f16 or FP8.
ExactOutput ExactOutputOf(DType dtype);

/// An operand and what its source points to.
struct ExactOperand {
  OperandView view;
  std::vector<double> scales;
  ExactSource source;

  explicit ExactOperand(OperandView operand);
  ExactOperand(ExactOperand&&) = default;  // Vectors keep their memory when moved.
  ExactOperand(const ExactOperand&) = delete;
  ExactOperand& operator=(const ExactOperand&) = delete;
};

/// The k values of one row, scales included.
void DecodeExactRow(const ExactSource& source, int64_t row, double* values);

/// Rows [row, row + panel_rows) as kernels.pack packs them, times their scales.
void PackExactPanel(const ExactSource& source, int64_t row, int panel_rows, int64_t k_begin,
                    int64_t count, const ExactKernels& kernels, double* panel);

/// Every element of a tensor of an operand or output type, as f32 (exact for all of them).
std::vector<float> DecodeToFloats(const Tensor& tensor);

/// Scales of one side that multiply whole sums, one per row: the given ones, the same one, or 1;
/// of nv16, the amaxes, whose divisor is GlobalDivisor.
std::vector<float> ScalesOf(const GemmOperand& operand, int64_t rows);

/// 6 * e4m3_max of each nv16 operand with an amax, multiplied: at most 6^2 * 448^2.
int64_t GlobalDivisor(const GemmDesc& desc);

/// What bounds need to know of each row.
struct ExactRowBounds {
  std::vector<double> norm;        ///< Upper bound of the 2-norm.
  std::vector<double> lowest_bit;  ///< All elements are multiples of it; +Inf for a zero row.
  /// The largest norm / lowest_bit of a finite row: log2 of it is the number of bits a row needs.
  double LargestRatio() const;
};

ExactRowBounds BoundRows(const ExactSource& source, int panel_rows, const ExactKernels& kernels,
                         const ExecutionContext& context);

}  // namespace quantgate
