#include "kernels/gemm/operand_view.h"

#include <bit>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/gemm/visit_format.h"
#include "kernels/numerics/cast.h"

namespace quantgate {
namespace {

/// Rows and blocks along k of one scale.
std::pair<int, int> BlockOf(ScaleMode mode) {
  switch (mode) {
    case ScaleMode::k1x128:
      return {1, 128};
    case ScaleMode::k128x128:
      return {128, 128};
    case ScaleMode::kMx32:
      return {1, 32};
    case ScaleMode::kNv16:
      return {1, 16};
    default:
      return {1, 1};
  }
}

BlockScaleView ScalesOfOperand(const GemmOperand& operand, int64_t rows, int64_t k,
                               bool k_contiguous) {
  BlockScaleView view;
  const auto [row_block, k_block] = BlockOf(operand.scaling);
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
  view.scales = ScalesOfOperand(operand, rows, k, k_contiguous);
  if (view.dtype == DType::kF4E2M1x2) {
    QG_ASSIGN_OR_RETURN(view.owned, UnpackFp4(operand.data));
    view.data = view.owned->data();
  }
  return view;
}

}  // namespace

float BlockScaleView::At(int64_t row, int64_t k) const {
  const int64_t index = IndexOf(row, k);
  switch (dtype) {
    case DType::kF8E8M0: {
      const auto code = static_cast<uint32_t>(data[index]);
      if (code == 0xFF) return std::bit_cast<float>(uint32_t(Float32::kCanonicalNan));
      return std::bit_cast<float>(code == 0 ? 0x00400000u : code << 23);  // 2^(code - 127).
    }
    case DType::kF8E4M3:
      return DecodeFloat<E4M3>(static_cast<uint8_t>(data[index]) & 0x7F);
    default:
      return reinterpret_cast<const float*>(data)[index];
  }
}

FusedElement BlockScaleView::ElementAt(int64_t row, int64_t k) const {
  const int64_t index = IndexOf(row, k);
  switch (dtype) {
    case DType::kF8E8M0: {
      const int code = static_cast<int>(data[index]);
      if (code == 0xFF) return {0, 0, FloatClass::kNan, false};
      return {1, static_cast<int16_t>(code - 127), FloatClass::kFinite, false};
    }
    case DType::kF8E4M3:
      return UnpackElement<E4M3>(static_cast<uint8_t>(data[index]) & 0x7F);
    default: {
      // Powers of two of at least 2^-127, or CheckGemm would have refused: significand 1.
      const uint32_t field = reinterpret_cast<const uint32_t*>(data)[index] >> 23;
      return {1, static_cast<int16_t>(static_cast<int>(field) - 127), FloatClass::kFinite, false};
    }
  }
}

absl::StatusOr<OperandView> ViewOfA(const GemmDesc& desc, const GemmShape& shape) {
  return View(desc.a, shape.m, shape.k, desc.layout != GemmLayout::kNT);
}

absl::StatusOr<OperandView> ViewOfB(const GemmDesc& desc, const GemmShape& shape) {
  return View(desc.b, shape.n, shape.k, desc.layout == GemmLayout::kTN);
}

}  // namespace quantgate
