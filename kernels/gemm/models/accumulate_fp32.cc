// Arithmetic fp32: operands are decoded to fp32 once, then panels of columns of b are multiplied
// with all rows of a.
#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/gemm/models/accumulate.h"
#include "kernels/gemm/models/gather.h"
#include "kernels/gemm/models/panel.h"
#include "kernels/gemm/operand_formats.h"
#include "kernels/numerics/cast.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

constexpr int64_t kPanelDepth = 128;
constexpr int64_t kTileRows = 64;

void DecodeToFloat(DType dtype, const void* source, int64_t count, float* out) {
  VisitFormat<OperandFormats>(dtype, [&]<class Format>() {
    constexpr int kBits = FormatConstants<Format>::kBits;
    const auto* codes = static_cast<const typename Format::Storage*>(source);
    for (int64_t i = 0; i < count; ++i) {
      auto code = codes[i];
      if constexpr (kBits < 8) code = code & ((1 << kBits) - 1);  // The low bits of their bytes.
      out[i] = DecodeFloat<Format>(code);
    }
  });
}

/// Multiplies `count` rows of decoded values by their blocks' scales, rounded to fp32; rows beyond
/// the operand are zeros already.
void ApplyScales(const OperandView& view, int64_t row, int64_t count, int64_t stride_of_row,
                 int64_t stride_of_k, float* values) {
  if (!view.scales.has_value()) return;
  const int64_t rows = std::min(count, view.rows - row);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < view.k; k += view.scales.k_block) {
      const float scale = view.scales.At(row + r, k);
      const int64_t end = std::min<int64_t>(view.k, k + view.scales.k_block);
      for (int64_t i = k; i < end; ++i) values[r * stride_of_row + i * stride_of_k] *= scale;
    }
  }
}

/// Decodes rows [row, row + rows) of a view to fp32 [rows][k].
absl::StatusOr<std::shared_ptr<Buffer>> DecodedRows(const OperandView& view, int64_t row,
                                                    int64_t rows) {
  const int64_t count = rows * view.k;
  QG_ASSIGN_OR_RETURN(auto codes, Buffer::Allocate(count * DTypeBytes(view.dtype)));
  QG_ASSIGN_OR_RETURN(auto values, Buffer::Allocate(count * sizeof(float)));
  GatherByRow(view, row, rows, 0, view.k, view.k, codes->data());
  auto* decoded = reinterpret_cast<float*>(values->data());
  DecodeToFloat(view.dtype, codes->data(), count, decoded);
  ApplyScales(view, row, rows, view.k, 1, decoded);
  return values;
}

/// Decodes columns [column, column + kFp32Columns) of b to fp32 [k][kFp32Columns].
absl::StatusOr<std::shared_ptr<Buffer>> DecodedColumns(const OperandView& view, int64_t column) {
  const int64_t count = view.k * kFp32Columns;
  QG_ASSIGN_OR_RETURN(auto codes, Buffer::Allocate(count * DTypeBytes(view.dtype)));
  QG_ASSIGN_OR_RETURN(auto values, Buffer::Allocate(count * sizeof(float)));
  GatherByK(view, column, kFp32Columns, 0, view.k, codes->data());
  auto* decoded = reinterpret_cast<float*>(values->data());
  DecodeToFloat(view.dtype, codes->data(), count, decoded);
  ApplyScales(view, column, kFp32Columns, 1, kFp32Columns, decoded);
  return values;
}

void MultiplyTile(const float* a, int64_t rows, const float* b, int64_t k, Fp32Kernel kernel,
                  float* accumulators) {
  std::fill(accumulators, accumulators + rows * kFp32Columns, 0.0f);
  for (int64_t begin = 0; begin < k; begin += kPanelDepth) {
    const int depth = static_cast<int>(std::min(kPanelDepth, k - begin));
    kernel({a + begin, k, rows, b + begin * kFp32Columns, depth, accumulators});
  }
}

}  // namespace

absl::Status AccumulateFp32(const OperandView& a, const OperandView& b,
                            const ExecutionContext& context, AccumulatorSink sink) {
  if (a.rows == 0) return absl::OkStatus();
  const Fp32Kernel kernel = KernelsFor(context.isa).fp32;
  QG_ASSIGN_OR_RETURN(const auto a_values, DecodedRows(a, 0, a.rows));
  const auto* a_data = reinterpret_cast<const float*>(a_values->data());
  const int64_t column_tiles = (b.rows + kFp32Columns - 1) / kFp32Columns;
  std::vector<absl::Status> status(column_tiles);
  ParallelFor(context, column_tiles, 1, [&](int64_t begin, int64_t end) {
    alignas(64) float accumulators[kTileRows * kFp32Columns];
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t column = tile * kFp32Columns;
      const auto b_values = DecodedColumns(b, column);
      status[tile] = b_values.status();
      if (!b_values.ok()) continue;
      const int columns = static_cast<int>(std::min<int64_t>(kFp32Columns, b.rows - column));
      for (int64_t row = 0; row < a.rows; row += kTileRows) {
        const int64_t rows = std::min(kTileRows, a.rows - row);
        MultiplyTile(a_data + row * a.k, rows, reinterpret_cast<const float*>((*b_values)->data()),
                     a.k, kernel, accumulators);
        sink({row, rows, column, columns, accumulators, kFp32Columns});
      }
    }
  });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  for (const absl::Status& each : status) QG_RETURN_IF_ERROR(each);
  return absl::OkStatus();
}

}  // namespace quantgate
