// UpdateUsages: which direction of a quantized tensor may be dropped or made, by the table of
// docs/quantizers.md section 8.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/quantize/format_quantizers.h"
#include "kernels/tensor/transpose.h"

namespace quantgate {
namespace {

constexpr int64_t kGrainRows = 16;

bool IsIdentity(const QuantizedTensor& quantized) {
  const auto is_identity = [](const std::optional<QuantizedCopy>& copy) {
    return !copy.has_value() || TraitsOf(copy->format).scales == ScaleKind::kNone;
  };
  return !quantized.is_hybrid && is_identity(quantized.rowwise) &&
         is_identity(quantized.columnwise);
}

/// One buffer serves both directions, so there is nothing to drop or to make.
void ShareIdentity(QuantizedTensor& quantized) {
  if (!quantized.rowwise.has_value()) quantized.rowwise = quantized.columnwise;
  if (!quantized.columnwise.has_value()) quantized.columnwise = quantized.rowwise;
}

/// Turns rowwise codes, two to a byte along K, into columnwise ones, two to a byte along M.
absl::StatusOr<Tensor> TransposeNibbles(const Tensor& packed, const ExecutionContext& context) {
  const int64_t rows = packed.rows();
  const int64_t columns = packed.columns() * 2;
  QG_ASSIGN_OR_RETURN(Tensor turned, Tensor::Allocate(packed.dtype(), {columns, rows / 2}));
  const uint8_t* from = packed.as<uint8_t>();
  uint8_t* to = turned.as<uint8_t>();
  const auto code = [&](int64_t row, int64_t column) {
    const uint8_t byte = from[row * (columns / 2) + column / 2];
    return column % 2 == 0 ? byte & 0xF : byte >> 4;
  };
  ParallelFor(context, columns, kGrainRows, [&](int64_t begin, int64_t end) {
    for (int64_t column = begin; column < end; ++column) {
      for (int64_t pair = 0; pair < rows / 2; ++pair) {
        to[column * (rows / 2) + pair] =
            static_cast<uint8_t>(code(2 * pair, column) | code(2 * pair + 1, column) << 4);
      }
    }
  });
  return turned;
}

/// Turns the scales of `side` x `side` tiles, stored once for each row of a tile, into those stored
/// once for each column.
absl::StatusOr<Tensor> TransposeReplicated(const Tensor& scales, int64_t side) {
  const int64_t rows = scales.rows();
  const int64_t tiles = scales.columns();
  QG_ASSIGN_OR_RETURN(Tensor turned, Tensor::Allocate(scales.dtype(), {tiles * side, rows / side}));
  const uint8_t* from = scales.as<uint8_t>();
  uint8_t* to = turned.as<uint8_t>();
  for (int64_t column = 0; column < tiles * side; ++column) {
    for (int64_t tile = 0; tile < rows / side; ++tile) {
      to[column * (rows / side) + tile] = from[tile * side * tiles + column / side];
    }
  }
  return turned;
}

/// FAILED_PRECONDITION unless columnwise codes can be made exactly from rowwise ones.
absl::Status CheckDerivable(const QuantizedTensor& quantized) {
  const QuantizedCopy& rowwise = *quantized.rowwise;
  const std::string format(QuantizerFormatName(rowwise.format));
  if (quantized.is_hybrid) {
    return RefusePrecondition(
        "usages", "columnwise",
        absl::StrCat("a hybrid tensor has no columnwise codes, and its rowwise ones (", format,
                     ") are of another quantizer"));
  }
  const ScalingTraits& traits = TraitsOf(rowwise.format);
  const bool has_2d_exception = traits.has_blocks() && traits.turns_columnwise;
  if (!traits.has_many_scales() || (has_2d_exception && rowwise.block_dim == 2)) {
    return absl::OkStatus();
  }
  return RefusePrecondition(
      "usages", "columnwise",
      absl::StrCat("columnwise codes of ", format, has_2d_exception ? " 1-D" : "",
                   " cannot be made from rowwise ones, only from the source",
                   traits.scales == ScaleKind::kLine
                       ? ": they have a scale per column, and were rounded under one per row"
                       : ""));
}

absl::StatusOr<QuantizedCopy> MakeColumnwise(const QuantizedCopy& rowwise,
                                             const ExecutionContext& context) {
  QuantizedCopy columnwise = rowwise;
  if (rowwise.element == DType::kF4E2M1x2) {
    QG_ASSIGN_OR_RETURN(columnwise.data, TransposeNibbles(rowwise.data, context));
  } else {
    QG_ASSIGN_OR_RETURN(columnwise.data, Transpose2d(rowwise.data, context));
  }
  const ScalingTraits& traits = TraitsOf(rowwise.format);
  if (traits.is_micro) {
    QG_ASSIGN_OR_RETURN(columnwise.scale_inv,
                        TransposeReplicated(rowwise.scale_inv, traits.block_length));
  } else if (traits.has_blocks()) {
    QG_ASSIGN_OR_RETURN(columnwise.scale_inv, Transpose2d(rowwise.scale_inv, context));
  }
  // A cancelled loop leaves its output half written.
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return columnwise;
}

}  // namespace

absl::Status CheckUsages(const QuantizedTensor& quantized, Usages usages) {
  if (IsIdentity(quantized)) return absl::OkStatus();
  if (!usages.rowwise && !usages.columnwise) {
    return RefusePrecondition("usages", "none",
                              "a quantized tensor must keep rowwise or columnwise codes");
  }
  if (usages.rowwise && !quantized.rowwise.has_value()) {
    return RefusePrecondition("usages", "rowwise",
                              "rowwise codes cannot be made from columnwise ones");
  }
  if (usages.columnwise && !quantized.columnwise.has_value()) return CheckDerivable(quantized);
  return absl::OkStatus();
}

absl::Status UpdateUsages(QuantizedTensor& quantized, Usages usages,
                          ColumnwiseMaker make_columnwise) {
  if (IsIdentity(quantized)) {
    ShareIdentity(quantized);
    return absl::OkStatus();
  }
  QG_RETURN_IF_ERROR(CheckUsages(quantized, usages));
  if (usages.columnwise && !quantized.columnwise.has_value()) {
    QG_ASSIGN_OR_RETURN(quantized.columnwise, make_columnwise(*quantized.rowwise));
  }
  if (!usages.rowwise) quantized.rowwise.reset();
  if (!usages.columnwise) quantized.columnwise.reset();
  return absl::OkStatus();
}

absl::Status UpdateUsagesCpu(QuantizedTensor& quantized, Usages usages,
                             const ExecutionContext& context) {
  return UpdateUsages(quantized, usages, [&](const QuantizedCopy& rowwise) {
    return MakeColumnwise(rowwise, context);
  });
}

}  // namespace quantgate
