// A weight [E][N][K] is a stack of E matrices, one for each expert: each is quantized by itself,
// and codes, scales and amaxes are those of the matrices, one after the other along a new first
// dim.
#pragma once

#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"
#include "kernels/quantize/recipe/recipe.h"

namespace quantgate {

/// Whether a source in this role is quantized matrix by matrix: a weight of three dims.
bool IsStack(TensorRole role, const Shape& shape);

/// The number of matrices that codes and scales are of: parts of three dims whose scales have the
/// first of them too. Absent for other parts, which are of one matrix. Rowwise scales of blocks
/// within a row are the same either way, and without an amax of each matrix are taken for those of
/// [E N][K].
std::optional<int64_t> StackSize(const QuantizedCopy& parts, Usage usage, ScaleLayout layout);

/// Matrix `index` of a part, a view; an absent part stays absent. The scales of whole matrices may
/// be [E], [E][1] or [E][1][1].
absl::StatusOr<Tensor> MatrixOfStack(const Tensor& part, int64_t index);
absl::StatusOr<QuantizedCopy> MatrixOfStack(const QuantizedCopy& parts, int64_t index);

/// The stack of quantized matrices, which have one format and shape; at least one. Counts are
/// added.
absl::StatusOr<QuantizedTensor> Stacked(Engine& engine, std::span<const QuantizedTensor> matrices,
                                        const Cancellation* cancellation);

/// The parts one after the other along a new first dim.
absl::StatusOr<Tensor> StackedParts(Engine& engine, std::span<const Tensor> parts,
                                    const Cancellation* cancellation);

/// What a report says of a stack: counts and codes of scales are sums, and amaxes and scales, of
/// which each matrix has its own, are left out.
QuantizationSummary SummaryOfStack(std::span<const QuantizationSummary> matrices);

}  // namespace quantgate
