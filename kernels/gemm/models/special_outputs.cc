#include "kernels/gemm/models/special_outputs.h"

#include "kernels/gemm/operand_formats.h"
#include "kernels/numerics/fused_step.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

template <class Format>
typename Format::Storage MagnitudeOf(typename Format::Storage code, bool tf32) {
  if constexpr (Format::kMantissaBits == 23) {
    if (tf32) code = RoundToTf32(code);
  }
  return static_cast<typename Format::Storage>(code & ~FormatConstants<Format>::kSignMask);
}

/// Whether any of `count` contiguous codes is NaN or infinite, whose magnitudes as codes are above
/// all finite ones. Takes a running maximum, which compilers vectorise.
template <class Format>
bool AnySpecial(const typename Format::Storage* codes, int64_t count, bool tf32) {
  typename Format::Storage largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto magnitude = MagnitudeOf<Format>(codes[i], tf32);
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest > FormatConstants<Format>::kMaxFinite;
}

}  // namespace

ClassSets::ClassSets(const OperandView& view, int64_t k_end, bool tf32)
    : view_(view), k_end_(k_end), tf32_(tf32), words_((k_end + 63) / 64) {
  FindSpecialElements();
  FindNanScales();
}

void ClassSets::FindSpecialElements() {
  const OperandView& view = view_;
  const int64_t k_end = k_end_;
  const bool tf32 = tf32_;
  VisitFormat<OperandFormats>(view.dtype, [&]<class Format>() {
    if constexpr (Format::kSpecials == Specials::kNone) return;
    // One of the strides is 1 and the operand is dense, so it is one contiguous array.
    const auto* codes = view.at<typename Format::Storage>(0, 0);
    any_special_ = AnySpecial<Format>(codes, view.rows * view.k, tf32);
    if (!any_special_) return;
    special_rows_.resize(view.rows);
    for (int64_t row = 0; row < view.rows; ++row) {
      for (int64_t k = 0; k < k_end && !special_rows_[row]; ++k) {
        special_rows_[row] = AnySpecial<Format>(view.at<typename Format::Storage>(row, k), 1, tf32);
      }
    }
  });
}

bool ClassSets::IsNanScale(int64_t row, int64_t k) const {
  return view_.scales.ElementAt(row, k).kind == FloatClass::kNan;
}

void ClassSets::FindNanScales() {
  const BlockScaleView& scales = view_.scales;
  // fp32 scales multiply sums, or are powers of two.
  if (!scales.has_value() || scales.dtype == DType::kF32) return;
  for (int64_t row = 0; row < view_.rows; ++row) {
    bool any_nan = false;
    for (int64_t k = 0; k < k_end_; k += scales.k_block) any_nan |= IsNanScale(row, k);
    if (!any_nan) continue;
    any_special_ = true;
    special_rows_.resize(view_.rows);
    special_rows_[row] = true;
  }
}

void ClassSets::BuildSets() {
  sets_.assign(view_.rows * 4 * words_, 0);
  const bool has_nan_scales = view_.scales.has_value() && view_.scales.dtype != DType::kF32;
  VisitFormat<OperandFormats>(view_.dtype, [&]<class Format>() {
    for (int64_t row = 0; row < view_.rows; ++row) {
      uint64_t* const sets = &sets_[row * 4 * words_];
      for (int64_t k = 0; k < k_end_; ++k) {
        auto code = *view_.at<typename Format::Storage>(row, k);
        if constexpr (Format::kMantissaBits == 23) {
          if (tf32_) code = RoundToTf32(code);
        }
        if constexpr (FormatConstants<Format>::kBits < 8) {
          code = code & ((1 << FormatConstants<Format>::kBits) - 1);
        }
        const Unpacked element = Unpack<Format>(code);
        const uint64_t bit = uint64_t(1) << (k % 64);
        const bool nan_scale = has_nan_scales && IsNanScale(row, k);
        if (nan_scale || element.kind == FloatClass::kNan) sets[k / 64] |= bit;
        if (element.kind == FloatClass::kInfinite) sets[words_ + k / 64] |= bit;
        if (element.kind == FloatClass::kZero) sets[2 * words_ + k / 64] |= bit;
        if (element.negative) sets[3 * words_ + k / 64] |= bit;
      }
    }
  });
}

SpecialProducts FindSpecialProducts(const ClassSets& a, int64_t m, const ClassSets& b, int64_t n) {
  uint64_t nan = 0;
  uint64_t positive = 0;
  uint64_t negative = 0;
  for (int64_t word = 0; word < a.words(); ++word) {
    const uint64_t a_infinite = a.infinite(m)[word];
    const uint64_t b_infinite = b.infinite(n)[word];
    nan |= a.nan(m)[word] | b.nan(n)[word] | (a_infinite & b.zero(n)[word]) |
           (a.zero(m)[word] & b_infinite);
    // A product that is NaN may count as an infinity here too, since NaN takes precedence.
    const uint64_t infinite = a_infinite | b_infinite;
    const uint64_t sign = a.negative(m)[word] ^ b.negative(n)[word];
    positive |= infinite & ~sign;
    negative |= infinite & sign;
  }
  return {nan != 0, positive != 0, negative != 0};
}

}  // namespace quantgate
