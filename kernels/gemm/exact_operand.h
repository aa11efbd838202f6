// Operands of a GEMM as matrices of fp64 values, whatever their type and layout. Every supported
// element is an fp64 number, and so is every product of two.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/base/execution.h"
#include "kernels/gemm/exact_kernels.h"
#include "kernels/gemm/gemm.h"

namespace quantgate {

/// Columns of k that are packed and multiplied at a time.
inline constexpr int64_t kExactDepth = 256;

const ExactKernels& ExactKernelsFor(Isa isa);

/// Views of a checked description's operands; they point into its tensors.
ExactSource ExactSourceA(const GemmDesc& desc);
ExactSource ExactSourceB(const GemmDesc& desc);

/// The k values of one row.
void DecodeExactRow(const ExactSource& source, int64_t row, double* values);

/// Every element of a tensor of an operand or output type, as f32 (exact for all of them).
std::vector<float> DecodeToFloats(const Tensor& tensor);

/// Scales of one side, one per row: the given ones, the same one, or 1.
std::vector<float> ScalesOf(const GemmOperand& operand, int64_t rows);

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
