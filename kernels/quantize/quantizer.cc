#include "kernels/quantize/quantizer.h"

#include "absl/strings/str_cat.h"

namespace quantgate {

std::string_view ScaleRuleName(ScaleRule rule) {
  return rule == ScaleRule::kDivide ? "divide" : "reciprocal";
}

std::string_view ElementRoundingName(ElementRounding rounding) {
  return rounding == ElementRounding::kNearestEven ? "nearest_even" : "nearest_away";
}

std::string_view OverflowName(Overflow overflow) {
  return overflow == Overflow::kSaturate ? "saturate" : "nan";
}

std::string_view ColumnwiseSourceName(ColumnwiseSource source) {
  return source == ColumnwiseSource::kOriginal ? "original" : "rowwise_dequantized";
}

std::string QuantizerText(const Quantizer& quantizer) {
  const QuantizerSpec& spec = quantizer.rowwise;
  if (!spec.is_quantized()) return "identity";
  return absl::StrCat(std::string(DTypeName(spec.element)),
                      " per tensor, scale_rule=", std::string(ScaleRuleName(spec.scale_rule)),
                      ", power_2_scale=", spec.power_2_scale ? "true" : "false",
                      ", amax_epsilon=", spec.amax_epsilon, ", element_rounding=",
                      std::string(ElementRoundingName(spec.element_rounding)),
                      ", overflow=", std::string(OverflowName(spec.overflow)));
}

}  // namespace quantgate
