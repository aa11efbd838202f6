#include "kernels/gemm/operand_view.h"

#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/gemm/block_scale.h"

namespace quantgate {
namespace {

absl::StatusOr<std::shared_ptr<Buffer>> UnpackFp4(const Tensor& packed) {
  const int64_t bytes = packed.element_count();
  QG_ASSIGN_OR_RETURN(auto codes, Buffer::Allocate(static_cast<size_t>(2 * bytes)));
  const auto* in = packed.as<uint8_t>();
  auto* out = reinterpret_cast<uint8_t*>(codes->data());
  for (int64_t i = 0; i < bytes; ++i) {
    out[2 * i] = in[i] & 15;
    out[2 * i + 1] = in[i] >> 4;
  }
  return codes;
}

absl::StatusOr<OperandView> View(const GemmOperand& operand, int64_t rows, int64_t k,
                                 bool k_contiguous) {
  OperandView view;
  view.data = operand.data.data();
  view.dtype = operand.data.dtype();
  view.rows = rows;
  view.k = k;
  view.row_stride = k_contiguous ? k : 1;
  view.k_stride = k_contiguous ? 1 : rows;
  view.scales = BlockScalesOf(operand, rows, k, k_contiguous);
  if (view.dtype == DType::kF4E2M1x2) {
    QG_ASSIGN_OR_RETURN(view.owned, UnpackFp4(operand.data));
    view.data = view.owned->data();
  }
  return view;
}

}  // namespace

BlockScaleView BlockScalesOf(const GemmOperand& operand, int64_t rows, int64_t k,
                             bool k_contiguous) {
  BlockScaleView view;
  const auto [dtype, row_block, k_block] = ScaleBlockOf(operand.scaling);
  if (k_block == 1) return view;
  view.data = operand.scale_inv.data();
  view.dtype = operand.scale_inv.dtype();
  view.row_block = row_block;
  view.k_block = k_block;
  const int64_t row_blocks = (rows + row_block - 1) / row_block;
  const int64_t k_blocks = (k + k_block - 1) / k_block;
  view.row_stride = k_contiguous ? k_blocks : 1;
  view.block_stride = k_contiguous ? 1 : row_blocks;
  return view;
}

float BlockScaleView::At(int64_t row, int64_t k) const {
  const int64_t index = IndexOf(row, k);
  switch (dtype) {
    case DType::kF8E8M0:
      return DecodeE8m0(static_cast<uint8_t>(data[index]));
    case DType::kF8E4M3:
      return E4m3ScaleValue(static_cast<uint8_t>(data[index]));
    default:
      return reinterpret_cast<const float*>(data)[index];
  }
}

FusedElement BlockScaleView::ElementAt(int64_t row, int64_t k) const {
  const int64_t index = IndexOf(row, k);
  switch (dtype) {
    case DType::kF8E8M0:
      return E8m0ScaleElement(static_cast<uint8_t>(data[index]));
    case DType::kF8E4M3:
      return E4m3ScaleElement(static_cast<uint8_t>(data[index]));
    default:
      return PowerOfTwoScaleElement(reinterpret_cast<const uint32_t*>(data)[index]);
  }
}

absl::StatusOr<OperandView> ViewOfA(const GemmDesc& desc, const GemmShape& shape) {
  return View(desc.a, shape.m, shape.k, desc.layout != GemmLayout::kNT);
}

absl::StatusOr<OperandView> ViewOfB(const GemmDesc& desc, const GemmShape& shape) {
  return View(desc.b, shape.n, shape.k, desc.layout == GemmLayout::kTN);
}

}  // namespace quantgate
