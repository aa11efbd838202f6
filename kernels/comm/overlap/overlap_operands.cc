#include "kernels/comm/overlap/overlap_operands.h"

#include "kernels/base/status_macros.h"

namespace quantgate {

std::vector<Tensor> RowParts(const GemmOperand& operand) {
  std::vector<Tensor> parts = {operand.data};
  if (operand.scaling == ScaleMode::kMx32) parts.push_back(operand.scale_inv);
  return parts;
}

GemmOperand WithRowParts(const GemmOperand& operand, const std::vector<Tensor>& parts) {
  GemmOperand with = operand;
  with.data = parts[0];
  if (parts.size() > 1) with.scale_inv = parts[1];
  return with;
}

absl::StatusOr<std::vector<Tensor>> RowsOfParts(const std::vector<Tensor>& parts,
                                                const RowInterval& rows) {
  std::vector<Tensor> views;
  for (const Tensor& part : parts) {
    QG_ASSIGN_OR_RETURN(views.emplace_back(), part.RowRange(rows.begin, rows.count));
  }
  return views;
}

int64_t RowBytes(const Tensor& tensor) {
  const int64_t rows = tensor.shape()[0];
  return rows == 0 ? 0 : static_cast<int64_t>(tensor.byte_size()) / rows;
}

absl::StatusOr<GemmDesc> RowsOfGemm(const GemmDesc& desc, const RowInterval& rows,
                                    const Tensor& d) {
  GemmDesc piece = desc;
  QG_ASSIGN_OR_RETURN(const std::vector<Tensor> parts, RowsOfParts(RowParts(desc.a), rows));
  piece.a = WithRowParts(desc.a, parts);
  QG_ASSIGN_OR_RETURN(piece.d, d.RowRange(rows.begin, rows.count));
  return piece;
}

absl::StatusOr<GemmDesc> ColumnsOfGemm(Engine& engine, const GemmDesc& desc, int64_t begin,
                                       int64_t count, const Tensor& d) {
  GemmDesc piece = desc;
  std::vector<Tensor> parts;
  for (const Tensor& part : RowParts(desc.b)) {
    if (desc.layout == GemmLayout::kTN) {
      QG_ASSIGN_OR_RETURN(parts.emplace_back(), part.RowRange(begin, count));
    } else {
      QG_ASSIGN_OR_RETURN(parts.emplace_back(), engine.Slice(part, 1, begin, count, nullptr));
    }
  }
  piece.b = WithRowParts(desc.b, parts);
  piece.d = d;
  return piece;
}

}  // namespace quantgate
