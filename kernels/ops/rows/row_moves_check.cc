#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/ops/operand_checks.h"
#include "kernels/ops/rows/row_moves.h"

namespace quantgate {
namespace {

absl::Status CheckRowNumbers(std::span<const int64_t> rows, int64_t count, std::string_view field) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] >= kNoRow && rows[i] < count) continue;
    return Refuse(absl::StrCat(std::string(field), "[", i, "]"), absl::StrCat(rows[i]),
                  absl::StrCat("must be a row of ", count, ", or ", kNoRow, " for none"));
  }
  return absl::OkStatus();
}

absl::Status CheckMatrix(const Tensor& tensor, std::string_view field) {
  QG_RETURN_IF_ERROR(CheckHighPrecision(tensor, field));
  if (tensor.rank() == 2) return absl::OkStatus();
  return Refuse(field, TensorText(tensor), "must be of rank 2");
}

}  // namespace

absl::Status CheckGatherRows(const Tensor& source, std::span<const int64_t> rows) {
  if (!source.has_value() || source.rank() < 1) {
    return Refuse("source", source.has_value() ? "a scalar" : "absent", "must have rows");
  }
  return CheckRowNumbers(rows, source.shape()[0], "rows");
}

absl::Status CheckScaleRows(const Tensor& source, const Tensor& factors) {
  QG_RETURN_IF_ERROR(CheckMatrix(source, "source"));
  QG_RETURN_IF_ERROR(CheckDType(factors, DType::kF32, "factors"));
  return CheckShape(factors, {source.shape()[0]}, "factors", "one of each row of source");
}

absl::Status CheckSumRows(const RowSums& sums) {
  QG_RETURN_IF_ERROR(CheckMatrix(sums.rows, "rows"));
  const auto count = static_cast<int64_t>(sums.positions.size());
  if (sums.choices < 1 || count % sums.choices != 0) {
    return Refuse("choices", absl::StrCat(sums.choices),
                  absl::StrCat("must be at least 1 and divide the ", count, " positions"));
  }
  QG_RETURN_IF_ERROR(CheckRowNumbers(sums.positions, sums.rows.shape()[0], "positions"));
  if (sums.weights.has_value()) {
    QG_RETURN_IF_ERROR(CheckDType(sums.weights, DType::kF32, "weights"));
    if (sums.weights.element_count() != count) {
      return Refuse("weights", TensorText(sums.weights),
                    absl::StrCat("must have one for each of ", count, " positions"));
    }
  }
  return CheckHighPrecision(sums.out, "out dtype");
}

}  // namespace quantgate
