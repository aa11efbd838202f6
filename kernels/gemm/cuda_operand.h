// One operand of a GEMM in device memory, as kernels see it: the counterpart of the CPU's
// OperandView.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/base/host_device.h"
#include "kernels/gemm/block_scale.h"
#include "kernels/gemm/operand_formats.h"
#include "kernels/numerics/fused_rule.h"

namespace quantgate {

enum class ScaleFormat : uint8_t { kNone, kF32, kE8M0, kE4M3 };

/// How a fused rule uses block scales.
enum class ScaleUse : uint8_t {
  kNone,
  kExponents,  ///< Powers of two that are added to the exponents of products.
  kGroups,     ///< Factors of the sums of groups of products.
  kSums,       ///< Factors of promoted sums.
};

QG_HOST_DEVICE inline int MantissaBitsOf(FormatId format) {
  return VisitFormatIn(OperandFormats{}, format,
                       [&]<class Format>() { return Format::kMantissaBits; });
}
QG_HOST_DEVICE inline int ExponentMinOf(FormatId format) {
  return VisitFormatIn(OperandFormats{}, format,
                       [&]<class Format>() { return FormatConstants<Format>::kExponentMin; });
}

struct CudaOperand {
  const void* data = nullptr;
  FormatId format = kFormatId<Float32>;  ///< One of OperandFormats.
  int64_t rows = 0;
  int64_t k = 0;
  int64_t row_stride = 0;  ///< In elements; each FP4 code is one.
  int64_t k_stride = 0;    ///< One of the two strides is 1.

  const void* scales = nullptr;  ///< Null: no block scales.
  ScaleFormat scale_format = ScaleFormat::kNone;
  int row_block = 1;
  int k_block = 1;
  int64_t scale_row_stride = 0;
  int64_t scale_block_stride = 0;

  /// The code of an element, in the low bits of the result.
  QG_HOST_DEVICE uint32_t CodeAt(int64_t row, int64_t k_index) const {
    const int64_t index = row * row_stride + k_index * k_stride;
    return VisitFormatIn(OperandFormats{}, format, [&]<class Format>() -> uint32_t {
      constexpr int kBits = FormatConstants<Format>::kBits;
      const auto* codes = static_cast<const typename Format::Storage*>(data);
      if constexpr (kBits == 4) {
        return codes[index / 2] >> (index % 2 * 4) & 15u;
      } else {
        return kBits == 6 ? codes[index] & 63u : codes[index];
      }
    });
  }

  QG_HOST_DEVICE int64_t ScaleIndex(int64_t row, int64_t k_index) const {
    return row / row_block * scale_row_stride + k_index / k_block * scale_block_stride;
  }
  /// The scale of an element as a number.
  QG_HOST_DEVICE float ScaleAt(int64_t row, int64_t k_index) const {
    return ScaleValue(ScaleIndex(row, k_index));
  }
  QG_HOST_DEVICE float ScaleValue(int64_t index) const {
    switch (scale_format) {
      case ScaleFormat::kE8M0:
        return DecodeE8m0(static_cast<const uint8_t*>(scales)[index]);
      case ScaleFormat::kE4M3:
        return E4m3ScaleValue(static_cast<const uint8_t*>(scales)[index]);
      case ScaleFormat::kF32:
        return static_cast<const float*>(scales)[index];
      default:
        return 1.0f;
    }
  }
  /// The scale of an element as a factor of a fused step.
  QG_HOST_DEVICE FusedElement ScaleElementAt(int64_t row, int64_t k_index) const {
    const int64_t index = ScaleIndex(row, k_index);
    switch (scale_format) {
      case ScaleFormat::kE8M0:
        return E8m0ScaleElement(static_cast<const uint8_t*>(scales)[index]);
      case ScaleFormat::kE4M3:
        return E4m3ScaleElement(static_cast<const uint8_t*>(scales)[index]);
      case ScaleFormat::kF32:
        return PowerOfTwoScaleElement(static_cast<const uint32_t*>(scales)[index]);
      default:
        return {1, 0, FloatClass::kFinite, false};
    }
  }
};

}  // namespace quantgate
