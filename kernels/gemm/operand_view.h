// A view of one GEMM operand that hides its layout: rows (m or n) by k, with strides in elements,
// and the block scales.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/gemm/gemm.h"
#include "kernels/numerics/fused_rule.h"

namespace quantgate {

/// Block scales, one for each row_block rows by k_block elements.
struct BlockScaleView {
  const std::byte* data = nullptr;  ///< Null: no block scales.
  DType dtype = DType::kF32;        ///< kF32, kF8E8M0 or kF8E4M3.
  int row_block = 1;
  int k_block = 1;
  int64_t row_stride = 0;    ///< Scales between neighbouring row blocks.
  int64_t block_stride = 0;  ///< Scales between neighbouring blocks along k.

  bool has_value() const { return data != nullptr; }
  int64_t IndexOf(int64_t row, int64_t k) const {
    return row / row_block * row_stride + k / k_block * block_stride;
  }
  /// The scale of element (row, k) as an exact number, NaN for NaN codes. The sign of an E4M3 scale
  /// is ignored.
  float At(int64_t row, int64_t k) const;
  /// The scale of element (row, k) as a factor of a fused step, by the format's own significand and
  /// exponent.
  FusedElement ElementAt(int64_t row, int64_t k) const;
};

struct OperandView {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;  ///< For kF4E2M1x2 the view has one code in each byte.
  int64_t rows = 0;
  int64_t k = 0;
  int64_t row_stride = 0;  ///< Elements between (row, k) and (row + 1, k).
  int64_t k_stride = 0;    ///< Elements between (row, k) and (row, k + 1). One of the strides is 1.
  BlockScaleView scales;
  std::shared_ptr<Buffer> owned;  ///< Owns `data` where that is not a tensor's memory.

  template <typename Storage>
  const Storage* at(int64_t row, int64_t k_index) const {
    return reinterpret_cast<const Storage*>(data) + row * row_stride + k_index * k_stride;
  }
};

/// The block scales of an operand of rows x k whose contiguous dim is k or the rows; without a
/// value where the operand has no block scales.
BlockScaleView BlockScalesOf(const GemmOperand& operand, int64_t rows, int64_t k,
                             bool k_contiguous);

/// desc.a as m rows of k, and desc.b as n rows of k. The desc must have passed CheckGemm and must
/// outlive the view. RESOURCE_EXHAUSTED where packed FP4 codes cannot be unpacked.
absl::StatusOr<OperandView> ViewOfA(const GemmDesc& desc, const GemmShape& shape);
absl::StatusOr<OperandView> ViewOfB(const GemmDesc& desc, const GemmShape& shape);

}  // namespace quantgate
