#include "kernels/quantize/fragment.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/quantize/format_quantizers.h"
#include "kernels/quantize/fragment_steps.h"
#include "kernels/quantize/quantized_outline.h"

namespace quantgate {
namespace {

absl::Status CheckFormat(const QuantizerSpec& spec, Usage usage) {
  const std::string format(QuantizerFormatName(spec.format));
  if (!spec.is_quantized())
    return Refuse("quantizer.format", format, "a fragment must be quantized");
  const ScalingTraits& traits = spec.traits();
  // Columnwise codes are made from rowwise ones, which only tiles allow.
  const bool needs_tiles = traits.has_blocks() && traits.turns_columnwise;
  if (needs_tiles && spec.block_dim != 2) {
    return Refuse("quantizer.block_dim", absl::StrCat(spec.block_dim),
                  absl::StrCat(format, " is cut into fragments with tiles (block_dim 2) only"));
  }
  // Those of lines have amaxes of their own, and are cast as [M][K] and turned when they are whole.
  const bool is_transpose = traits.turns_columnwise && traits.scales != ScaleKind::kLine;
  if (usage == Usage::kColumnwise && is_transpose) {
    return Refuse("usage", "columnwise",
                  absl::StrCat("columnwise codes of ", format, " are transposes of rowwise ones"));
  }
  if (spec.element_rounding == ElementRounding::kStochastic) {
    return Refuse("quantizer.element_rounding", "stochastic", "fragments are rounded to nearest");
  }
  if (spec.has_library_steps()) {
    return Refuse("quantizer", QuantizerText(spec),
                  "fragments are quantized by Transformer Engine's steps alone");
  }
  if (IsFnuz(spec.element)) {
    return Refuse("quantizer.element", DTypeName(spec.element),
                  "no GEMM reads such a weight, so none is divided into fragments");
  }
  if (spec.four_over_six != FourOverSix::kNone) {
    return Refuse("quantizer.4over6", FourOverSixName(spec.four_over_six),
                  "it compares all elements of a tile, and a fragment may hold only some");
  }
  return absl::OkStatus();
}

int64_t ElementsOf(const Shape& whole) { return whole[0] * whole[1]; }

}  // namespace

absl::Status CheckFragment(const TensorFragment& fragment, const QuantizerSpec& spec, Usage usage) {
  if (!fragment.values.has_value()) {
    return RefuseAbsent("fragment.values", "it must be given");
  }
  if (fragment.whole.size() != 2) {
    return Refuse("fragment.whole", ShapeText(fragment.whole), "must be of rank 2");
  }
  QG_RETURN_IF_ERROR(CheckFormat(spec, usage));
  QG_RETURN_IF_ERROR(
      CheckedElementCount(fragment.whole, fragment.values.dtype(), "fragment.whole").status());
  const Usages usages = {usage == Usage::kRowwise, usage == Usage::kColumnwise};
  QG_RETURN_IF_ERROR(CheckQuantization(fragment.values.dtype(), fragment.whole, spec, usages));
  const int64_t elements = ElementsOf(fragment.whole);
  if (fragment.begin < 0 || fragment.begin > elements - fragment.count()) {
    return Refuse("fragment.begin",
                  absl::StrCat(fragment.begin, " with ", fragment.count(), " elements"),
                  absl::StrCat("must lie within the ", elements, " of the whole tensor"));
  }
  return absl::OkStatus();
}

FragmentGrid MakeFragmentGrid(const QuantizerSpec& spec, Usage usage, const Shape& whole) {
  FragmentGrid grid;
  grid.columns = std::max<int64_t>(whole[1], 1);
  const int64_t length = BlockLength(spec.format);
  if (spec.traits().scales == ScaleKind::kLine) {
    const bool is_rowwise = usage == Usage::kRowwise;
    grid.unit_rows = grid.scale_rows = is_rowwise ? 1 : std::max<int64_t>(whole[0], 1);
    grid.unit_columns = grid.scale_columns = is_rowwise ? grid.columns : 1;
    grid.units_across = grid.scales_across = is_rowwise ? 1 : whole[1];
    grid.units = grid.scales = is_rowwise ? whole[0] : whole[1];
    return grid;
  }
  if (length == 1) {
    // The whole tensor is one unit.
    grid.unit_rows = grid.scale_rows = std::max<int64_t>(whole[0], 1);
    grid.unit_columns = grid.scale_columns = grid.columns;
    grid.units_across = grid.units = grid.scales_across = grid.scales = 1;
    return grid;
  }
  const bool is_rowwise = usage == Usage::kRowwise, has_tiles = spec.block_dim == 2;
  const auto blocks = [](int64_t elements, int64_t side) { return (elements + side - 1) / side; };
  grid.unit_rows = is_rowwise && !has_tiles ? 1 : length;
  grid.unit_columns = is_rowwise || has_tiles ? length : 1;
  const bool is_replicated = has_tiles && spec.traits().is_micro;
  grid.scale_rows = is_replicated && is_rowwise ? 1 : grid.unit_rows;
  grid.scale_columns = is_replicated && !is_rowwise ? 1 : grid.unit_columns;
  grid.units_across = blocks(whole[1], grid.unit_columns);
  grid.units = grid.units_across * blocks(whole[0], grid.unit_rows);
  grid.scales_across = blocks(whole[1], grid.scale_columns);
  grid.scales = grid.scales_across * blocks(whole[0], grid.scale_rows);
  return grid;
}

FragmentRule MakeFragmentRule(const TensorFragment& fragment, const QuantizerSpec& spec) {
  FragmentRule rule;
  rule.scales = spec.traits().scales;
  rule.element = spec.element;
  rule.options = {.rule = ResolveScaleRule(spec.scale_rule, spec.format),
                  .power_2 = spec.power_2_scale,
                  .amax_epsilon = spec.amax_epsilon};
  if (rule.scales == ScaleKind::kF32 || rule.scales == ScaleKind::kLine) {
    rule.options.value_for_infinity = LargestFiniteOf(fragment.values.dtype());
  }
  rule.subnormals = spec.fragment_subnormals();
  rule.e4m3_max = spec.e4m3_max;
  rule.rounding = spec.element_rounding;
  rule.overflow = spec.overflow;
  rule.nan_counts = rule.scales == ScaleKind::kE8m0 && PropagatesNan(rule.options.rule);
  rule.is_empty = ElementsOf(fragment.whole) == 0;
  return rule;
}

int64_t FragmentAmaxCount(const QuantizerSpec& spec, Usage usage, const Shape& whole) {
  return MakeFragmentGrid(spec, usage, whole).units +
         (spec.traits().scales == ScaleKind::kTwoLevel ? 1 : 0);
}

absl::StatusOr<QuantizedFragment> OutlineFragment(const TensorFragment& fragment,
                                                  const QuantizerSpec& spec, Usage usage) {
  QuantizedFragment outline;
  QuantizerSpec resolved = spec;
  resolved.scale_rule = ResolveScaleRule(spec.scale_rule, spec.format);
  QG_ASSIGN_OR_RETURN(outline.whole,
                      OutlineCopy(resolved, usage, fragment.values.dtype(), fragment.whole));
  outline.whole.data = Tensor();
  const int64_t begin = fragment.begin, end = fragment.begin + fragment.count();
  const int64_t per_byte = spec.element == DType::kF4E2M1x2 ? 2 : 1;
  QG_ASSIGN_OR_RETURN(outline.codes,
                      OutlineTensor(spec.element, {end / per_byte - begin / per_byte}));
  return outline;
}

absl::Status CheckFragmentArguments(const TensorFragment& fragment, const QuantizerSpec& spec,
                                    Usage usage, const FragmentAmaxes& amaxes,
                                    const Tensor& scale) {
  QG_RETURN_IF_ERROR(CheckFragment(fragment, spec, usage));
  const int64_t count = FragmentAmaxCount(spec, usage, fragment.whole);
  if (!amaxes.values.has_value() || amaxes.values.dtype() != DType::kF32 || amaxes.first < 0 ||
      amaxes.first > amaxes.values.element_count() - count) {
    return Refuse("amaxes", TensorText(amaxes.values),
                  absl::StrCat("must be f32 and have ", count, " from ", amaxes.first, " on"));
  }
  const bool is_delayed = spec.scaling == Scaling::kDelayed;
  if (is_delayed != scale.has_value()) {
    return Refuse("scale", scale.has_value() ? "given" : "absent",
                  "delayed scaling needs one, and only delayed scaling takes one");
  }
  if (is_delayed && (scale.dtype() != DType::kF32 || scale.element_count() != 1)) {
    return Refuse("scale", TensorText(scale), "must be f32 of one element");
  }
  return absl::OkStatus();
}

}  // namespace quantgate
