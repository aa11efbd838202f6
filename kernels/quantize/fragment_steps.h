// The steps of fragment.h for one scale unit and for one element, the same on every engine. Private
// to kernels/quantize.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/numerics/e8m0.h"
#include "kernels/numerics/nvfp4.h"
#include "kernels/quantize/fragment.h"

namespace quantgate {

/// Where the scale units (the elements with one amax) and the stored scales of a whole tensor lie.
struct FragmentGrid {
  int64_t columns = 0;                        ///< Columns of the whole tensor.
  int64_t unit_rows = 1, unit_columns = 1;    ///< The size of a unit in elements.
  int64_t units_across = 0, units = 0;        ///< Units in a row of units, and in all.
  int64_t scale_rows = 1, scale_columns = 1;  ///< The elements of one stored scale: less than a
                                              ///< unit where scales are replicated.
  int64_t scales_across = 0, scales = 0;      ///< Stored scales in a row of them, and in all.

  QG_HOST_DEVICE int64_t UnitAt(int64_t row, int64_t column) const {
    return row / unit_rows * units_across + column / unit_columns;
  }
  QG_HOST_DEVICE int64_t UnitOfElement(int64_t element) const {
    return UnitAt(element / columns, element % columns);
  }
  QG_HOST_DEVICE int64_t UnitOfScale(int64_t scale) const {
    return UnitAt(scale / scales_across * scale_rows, scale % scales_across * scale_columns);
  }
};

/// A QuantizerSpec and what follows from the dtype of the source, in the form that kernels take.
struct FragmentRule {
  ScaleKind scales = ScaleKind::kTensor;
  DType element = DType::kF8E4M3;
  ScaleOptions options;                          ///< The rule is resolved.
  Subnormals subnormals = Subnormals::kFlushed;  ///< Of E8M0 and fp32 scales.
  int e4m3_max = 448;
  ElementRounding rounding = ElementRounding::kNearestEven;
  Overflow overflow = Overflow::kSaturate;
  bool nan_counts = false;
  bool is_empty = false;  ///< The whole tensor is empty: scale 1 (docs/numerics.md section 4).
};

/// The factor by which the elements of a unit are multiplied or divided, and the stored scale.
struct FragmentScale {
  float factor = 1.0f;
  float scale_inv = 1.0f;  ///< The stored scale if it is f32.
  uint8_t code = 0;        ///< The stored scale otherwise.
};

FragmentGrid MakeFragmentGrid(const QuantizerSpec& spec, Usage usage, const Shape& whole);
FragmentRule MakeFragmentRule(const TensorFragment& fragment, const QuantizerSpec& spec);
/// The result without memory: the OutlineCopy of the whole tensor, and an outline of the codes.
absl::StatusOr<QuantizedFragment> OutlineFragment(const TensorFragment& fragment,
                                                  const QuantizerSpec& spec, Usage usage);
/// Returns what QuantizeFragmentCpu refuses besides CheckFragment.
absl::Status CheckFragmentArguments(const TensorFragment& fragment, const QuantizerSpec& spec,
                                    Usage usage, const FragmentAmaxes& amaxes, const Tensor& scale);

/// The fp32 bits of |value|, which are ordered as magnitudes; a NaN counts as infinity or 0.
QG_HOST_DEVICE constexpr uint32_t FragmentMagnitude(float value, bool nan_counts) {
  const uint32_t bits = std::bit_cast<uint32_t>(value) & 0x7FFFFFFF;
  if (bits <= 0x7F800000) return bits;
  return nan_counts ? 0x7F800000 : 0;
}

/// Calls action.template operator()<F>() for the format of `element`.
template <class Action>
QG_HOST_DEVICE constexpr auto WithElement(DType element, const Action& action) {
  switch (element) {
    case DType::kF8E5M2:
      return action.template operator()<E5M2>();
    case DType::kF6E2M3:
      return action.template operator()<E2M3>();
    case DType::kF6E3M2:
      return action.template operator()<E3M2>();
    case DType::kF4E2M1x2:
      return action.template operator()<E2M1>();
    default:
      return action.template operator()<E4M3>();
  }
}

QG_HOST_DEVICE constexpr Nvfp4TensorScale FragmentTensorScale(const FragmentRule& rule,
                                                              float tensor_amax) {
  if (rule.scales != ScaleKind::kTwoLevel) return {};
  return MakeNvfp4TensorScale(tensor_amax, rule.e4m3_max, rule.options.rule);
}

/// Whether elements are divided by the factor: under all rules of two-level scales but kTwoLevel.
QG_HOST_DEVICE constexpr bool FragmentDivides(const FragmentRule& rule) {
  return rule.scales == ScaleKind::kTwoLevel && rule.options.rule != ScaleRule::kTwoLevel;
}

QG_HOST_DEVICE constexpr FragmentScale ScaleOfFragmentUnit(const FragmentRule& rule, float amax,
                                                           const Nvfp4TensorScale& tensor) {
  FragmentScale scale;
  if (rule.scales == ScaleKind::kE8m0) {
    scale.code = WithElement(rule.element, [&]<class F>() {
      return E8m0Scale<F>(amax, rule.options.rule, rule.subnormals);
    });
    scale.factor = E8m0Multiplier(scale.code);
  } else if (rule.scales == ScaleKind::kTwoLevel) {
    const Nvfp4BlockScale block = MakeNvfp4BlockScale(amax, tensor);
    scale.code = block.code;
    scale.factor = block.factor;
  } else {
    const float max_finite = WithElement(rule.element, [&]<class F>() { return MaxFinite<F>(); });
    if (!rule.is_empty) {
      scale.factor = ComputeScale(amax, max_finite, rule.options, rule.subnormals);
    }
    scale.scale_inv = ScaleInverse(scale.factor, rule.subnormals);
  }
  return scale;
}

QG_HOST_DEVICE constexpr uint8_t EncodeFragmentElement(const FragmentRule& rule, float value,
                                                       float factor) {
  const float scaled = FragmentDivides(rule) ? value / factor : value * factor;
  return WithElement(rule.element, [&]<class F>() {
    return static_cast<uint8_t>(EncodeFloat<F>(scaled, rule.rounding, rule.overflow));
  });
}

}  // namespace quantgate
