#include "kernels/validate/quantized_stack.h"

#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/validate/run/described_copy.h"

namespace quantgate {
namespace {

/// Member `member` of one copy of every matrix, stacked; absent where the matrices have none.
absl::StatusOr<Tensor> StackedMember(Engine& engine, std::span<const QuantizedTensor> matrices,
                                     Usage usage, Tensor QuantizedCopy::*member,
                                     const Cancellation* cancellation) {
  std::vector<Tensor> parts;
  for (const QuantizedTensor& matrix : matrices) parts.push_back((*matrix.copy(usage)).*member);
  if (!parts.front().has_value()) return Tensor();
  return StackedParts(engine, parts, cancellation);
}

void AddCounts(const QuantizationCounts& part, QuantizationCounts& sum) {
  sum.normal += part.normal;
  sum.zero += part.zero;
  sum.subnormal += part.subnormal;
  sum.flushed_to_zero += part.flushed_to_zero;
  sum.saturated += part.saturated;
  sum.infinite += part.infinite;
  sum.nan += part.nan;
}

}  // namespace

bool IsStack(TensorRole role, const Shape& shape) {
  return role == TensorRole::kWeight && shape.size() == 3;
}

std::optional<int64_t> StackSize(const QuantizedCopy& parts, Usage usage, ScaleLayout layout) {
  if (!parts.data.has_value() || !parts.scale_inv.has_value()) return std::nullopt;
  const Shape& data = parts.data.shape();
  const Shape& scales = parts.scale_inv.shape();
  if (data.size() != 3 || scales.empty() || scales[0] != data[0]) return std::nullopt;
  if (usage == Usage::kColumnwise) return data[0];  // Columnwise codes of one matrix have two dims.
  // An amax of each matrix tells the matrices apart, whatever the scales do.
  if (parts.amax.has_value() && parts.amax.rank() > 1) return data[0];
  if (FlattenScales(scales, data, layout) != scales) return std::nullopt;
  const bool is_of_rows = scales.size() < 3 && scales[0] == parts.data.rows();
  const bool is_of_tensor = scales.size() == 1 && scales[0] == 1;
  return is_of_rows || is_of_tensor ? std::nullopt : std::optional<int64_t>(data[0]);
}

absl::StatusOr<Tensor> MatrixOfStack(const Tensor& part, int64_t index) {
  if (!part.has_value()) return part;
  QG_ASSIGN_OR_RETURN(const Tensor row, part.RowRange(index, 1));
  Shape shape(part.shape().begin() + 1, part.shape().end());
  if (row.element_count() == 1) shape = {1};
  return row.Reinterpret(row.dtype(), std::move(shape));
}

absl::StatusOr<QuantizedCopy> MatrixOfStack(const QuantizedCopy& parts, int64_t index) {
  QuantizedCopy matrix = parts;
  QG_ASSIGN_OR_RETURN(matrix.data, MatrixOfStack(parts.data, index));
  QG_ASSIGN_OR_RETURN(matrix.scale_inv, MatrixOfStack(parts.scale_inv, index));
  QG_ASSIGN_OR_RETURN(matrix.zero_point, MatrixOfStack(parts.zero_point, index));
  QG_ASSIGN_OR_RETURN(matrix.amax, MatrixOfStack(parts.amax, index));
  QG_ASSIGN_OR_RETURN(matrix.scale, MatrixOfStack(parts.scale, index));
  return matrix;
}

absl::StatusOr<Tensor> StackedParts(Engine& engine, std::span<const Tensor> parts,
                                    const Cancellation* cancellation) {
  Shape shape = parts.front().shape();
  QG_ASSIGN_OR_RETURN(const Tensor rows, engine.ConcatenateRows(parts, cancellation));
  shape.insert(shape.begin(), static_cast<int64_t>(parts.size()));
  return rows.Reinterpret(rows.dtype(), std::move(shape));
}

absl::StatusOr<QuantizedTensor> Stacked(Engine& engine, std::span<const QuantizedTensor> matrices,
                                        const Cancellation* cancellation) {
  QuantizedTensor stack = matrices.front();
  stack.shape.insert(stack.shape.begin(), static_cast<int64_t>(matrices.size()));
  stack.device_counts = stack.device_summary = Tensor();
  stack.counts = {};
  for (const QuantizedTensor& matrix : matrices) AddCounts(matrix.counts, stack.counts);
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    std::optional<QuantizedCopy>& copy = stack.copy(usage);
    if (!copy.has_value()) continue;
    for (Tensor QuantizedCopy::*const member :
         {&QuantizedCopy::data, &QuantizedCopy::scale_inv, &QuantizedCopy::zero_point,
          &QuantizedCopy::amax, &QuantizedCopy::scale}) {
      QG_ASSIGN_OR_RETURN((*copy).*member,
                          StackedMember(engine, matrices, usage, member, cancellation));
    }
  }
  return stack;
}

QuantizationSummary SummaryOfStack(std::span<const QuantizationSummary> matrices) {
  QuantizationSummary summary;
  for (const QuantizationSummary& matrix : matrices) {
    AddCounts(matrix.counts, summary.counts);
    for (const auto& [code, count] : matrix.scale_codes) summary.scale_codes[code] += count;
  }
  return summary;
}

}  // namespace quantgate
