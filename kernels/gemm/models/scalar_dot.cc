#include "kernels/gemm/models/scalar_dot.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/gemm/cublaslt/workspace.h"
#include "kernels/gemm/models/accumulate.h"
#include "kernels/gemm/operand_formats.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

constexpr int64_t kDotTileRows = 16;
constexpr int64_t kTileColumns = 64;

template <class Format>
FusedElement ElementOf(const OperandView& view, int64_t row, int64_t k, const FusedElement& scale) {
  constexpr int kBits = FormatConstants<Format>::kBits;
  auto code = *view.at<typename Format::Storage>(row, k);
  if constexpr (kBits == 32) code = RoundToTf32(code);
  // FP6 and FP4 codes fill the low bits of their bytes.
  if constexpr (kBits < 8) code = code & ((1 << kBits) - 1);
  if (scale.kind == FloatClass::kNan) return {0, 0, FloatClass::kNan, false};
  return UnpackElement<Format>(code, scale.exponent);
}

}  // namespace

bool ScalesSums(const FusedRule& rule) {
  return rule.promotion == Promotion::kScaled || rule.promotion == Promotion::kScaledTwice;
}

DecodedRow::DecodedRow(const OperandView& view, int64_t row, bool scales_sums) : elements_(view.k) {
  const BlockScaleView& scales = view.scales;
  const bool is_grouped = scales.has_value() && scales.dtype == DType::kF8E4M3;
  const bool scales_elements = scales.has_value() && !is_grouped && !scales_sums;
  for (int64_t k = 0; scales.has_value() && k < view.k; k += scales.k_block) {
    if (is_grouped) group_scales_.push_back(scales.ElementAt(row, k));
    if (scales_sums) block_scales_.push_back(scales.At(row, k));
  }
  VisitFormat<OperandFormats>(view.dtype, [&]<class Format>() {
    fraction_bits_ = Format::kMantissaBits;
    FusedElement scale{1, 0, FloatClass::kFinite, false};
    for (int64_t k = 0; k < view.k; ++k) {
      if (scales_elements && k % scales.k_block == 0) scale = scales.ElementAt(row, k);
      elements_[k] = ElementOf<Format>(view, row, k, scale);
    }
  });
}

FusedRow DecodedRow::row() const {
  FusedRow row;
  row.elements = elements_.data();
  row.fraction_bits = fraction_bits_;
  if (!group_scales_.empty()) row.group_scales = group_scales_.data();
  row.group_scale_fraction_bits = group_scales_.empty() ? 0 : E4M3::kMantissaBits;
  if (!block_scales_.empty()) row.block_scales = block_scales_.data();
  return row;
}

float ScalarDot(const OperandView& a, const OperandView& b, const FusedRule& rule, int64_t m,
                int64_t n) {
  const bool scales_sums = ScalesSums(rule);
  return DotUnder(rule, DecodedRow(a, m, scales_sums).row(), DecodedRow(b, n, scales_sums).row(),
                  a.k);
}

absl::Status AccumulateScalar(const OperandView& a, const OperandView& b, const FusedRule& rule,
                              const ExecutionContext& context, AccumulatorSink sink) {
  const int64_t row_tiles = (a.rows + kDotTileRows - 1) / kDotTileRows;
  const int64_t column_tiles = (b.rows + kTileColumns - 1) / kTileColumns;
  const bool scales_sums = ScalesSums(rule);
  ParallelFor(context, row_tiles * column_tiles, 1, [&](int64_t begin, int64_t end) {
    float values[kDotTileRows * kTileColumns];
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t row = tile % row_tiles * kDotTileRows;
      const int64_t column = tile / row_tiles * kTileColumns;
      const int64_t rows = std::min(kDotTileRows, a.rows - row);
      const int columns = static_cast<int>(std::min(kTileColumns, b.rows - column));
      std::vector<DecodedRow> decoded_a;
      for (int64_t r = 0; r < rows; ++r) decoded_a.emplace_back(a, row + r, scales_sums);
      for (int j = 0; j < columns; ++j) {
        const DecodedRow decoded_b(b, column + j, scales_sums);
        for (int64_t r = 0; r < rows; ++r) {
          values[r * kTileColumns + j] = DotUnder(rule, decoded_a[r].row(), decoded_b.row(), a.k);
        }
      }
      sink({row, rows, column, columns, values, kTileColumns});
    }
  });
  return context.CheckCancelled();
}

}  // namespace quantgate
