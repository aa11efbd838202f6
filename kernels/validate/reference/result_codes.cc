#include "kernels/validate/reference/result_codes.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/tensor/convert.h"
#include "kernels/validate/reference/rounding_counts.h"
#include "kernels/validate/reference/running_error.h"

namespace quantgate {
namespace {

/// The scale of an element follows from its amax, and the element is multiplied by the scale's
/// inverse: at most eight fp32 roundings of 2^-24 each lie between an element and what is cast.
constexpr double kScaleRounding = 0x1p-21;

const CodeFormat* CodeFormatOf(DType element) {
  for (const CodeFormat& format : AllCodeFormats()) {
    if (format.dtype == element) return &format;
  }
  return nullptr;
}

/// The code of one element of a copy.
uint8_t CodeAt(const QuantizedCopy& copy, int64_t index) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(copy.data.data());
  if (copy.element != DType::kF4E2M1x2) return bytes[index];
  const uint8_t pair = bytes[index / 2];
  return index % 2 == 0 ? pair & 0xF : pair >> 4;
}

/// The same scales with the code of 1 everywhere: dequantized, they give the scale of each element.
absl::StatusOr<QuantizedTensor> WithUnitCodes(const QuantizedTensor& codes,
                                              const CodeFormat& format) {
  QuantizedTensor units = codes;
  QuantizedCopy& copy = *units.rowwise;
  uint8_t one = format.encode(1.0f, ElementRounding::kNearestEven, Overflow::kSaturate);
  if (copy.element == DType::kF4E2M1x2) one = static_cast<uint8_t>(one | (one << 4));
  const std::vector<std::byte> bytes(copy.data.byte_size(), static_cast<std::byte>(one));
  QG_ASSIGN_OR_RETURN(copy.data, Tensor::FromBytes(copy.data.dtype(), copy.data.shape(), bytes));
  return units;
}

/// Half an ulp of the results' dtype, relative and for its subnormals, and what overflows it.
struct ValueRounding {
  double relative = 0, absolute = 0, overflow = std::numeric_limits<double>::infinity();
};
ValueRounding RoundingOf(DType dtype) {
  const error_bound::OutputFacts facts = FactsOfOutput(dtype);
  // Products are in fp32, whose roundings are among those of kScaleRounding.
  if (dtype == DType::kF32) return {.absolute = facts.HalfUlp(0)};
  return {facts.HalfUlp(1), facts.HalfUlp(0), facts.Overflow()};
}

/// The distance between `element` and its code, in units of what rounding to a neighbour allows.
double CodeRatio(const CodeFormat& format, const QuantizerSpec& rule, double element, double scale,
                 uint8_t code) {
  const double found = format.values[code];
  const bool is_negative = (code & format.sign) != 0;
  const auto magnitude = static_cast<uint8_t>(code & (format.sign - 1));
  constexpr double kWrong = std::numeric_limits<double>::infinity();
  if (std::isnan(element)) {
    return std::isnan(found) || (!format.has_nan && magnitude == format.max) ? 0 : kWrong;
  }
  // An infinite amax may make the scale of two-level codes infinite: then no code is nearest, and
  // only the values are held to the codes.
  if (!std::isfinite(scale)) return 0;
  // What overflows becomes the largest code or, if the rule says so, NaN or infinity.
  const double wanted = std::abs(element) / scale;
  const double largest = format.values[format.max];
  if (!std::isfinite(found)) {
    const bool overflows =
        rule.overflow == Overflow::kNan && wanted > largest * (1 - kScaleRounding);
    return overflows ? 0 : kWrong;
  }
  if (std::isinf(element)) return magnitude == format.max ? 0 : kWrong;
  // Below, the tensor's scale is at the end of fp32's range and not amax / max.
  const bool is_two_level = rule.traits().scales == ScaleKind::kTwoLevel;
  if (scale == 0 || (is_two_level && std::abs(element) < 0x1p-116)) return 0;
  if (found != 0 && is_negative != (element < 0)) return kWrong;
  const double distance = wanted - std::abs(found);
  if (distance >= 0 && magnitude == format.max) return 0;
  const auto neighbour = static_cast<uint8_t>(distance < 0 ? magnitude - 1 : magnitude + 1);
  const double step = std::abs(double{format.values[neighbour]} - std::abs(found));
  const double allowed = rule.element_rounding == ElementRounding::kStochastic ? 1 : 0.5;
  // Scales, and the factors of two-level ones, which are up to 448 times smaller, may be subnormal.
  return std::abs(distance) / (allowed * step + (kScaleRounding + 0x1p-138 / scale) * wanted);
}

/// The distance between a value and its code's, in units of the roundings of their product.
double ValueRatio(const ValueRounding& rounding, double value, double product) {
  if (std::isnan(product)) return std::isnan(value) ? 0 : std::numeric_limits<double>::infinity();
  if (std::isinf(value)) {
    const bool is_same = (value < 0) == (product < 0) && std::abs(product) >= rounding.overflow;
    return is_same ? 0 : std::numeric_limits<double>::infinity();
  }
  const double limit =
      std::abs(product) * (rounding.relative + kScaleRounding) + rounding.absolute + 0x1p-148;
  const double ratio = std::abs(value - product) / limit;
  return std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio;
}

}  // namespace

absl::StatusOr<BoundCheck> CheckResultCodes(Engine& engine, const GemmRecord& gemm,
                                            const Tensor& values,
                                            const Cancellation* cancellation) {
  const QuantizerSpec& rule = gemm.result_codes->rule;
  QuantizedTensor host = gemm.result_codes->codes;
  for (Tensor* const tensor : TensorsOf(host)) {
    if (!tensor->has_value()) continue;
    QG_ASSIGN_OR_RETURN(*tensor, engine.ToHost(*tensor, cancellation));
  }
  const QuantizedCopy& copy = *host.rowwise;
  const CodeFormat* const format = CodeFormatOf(copy.element);
  if (format == nullptr) return absl::InternalError("a result has codes of no code format");
  QG_ASSIGN_OR_RETURN(const QuantizedTensor units, WithUnitCodes(host, *format));
  QG_ASSIGN_OR_RETURN(const Tensor scale_tensor,
                      engine.Dequantize(units, Usage::kRowwise, DType::kF32, cancellation));
  QG_ASSIGN_OR_RETURN(const Tensor scales, engine.ToHost(scale_tensor, cancellation));
  ExecutionContext context;
  context.cancellation = cancellation;
  const auto widened = [&](const Tensor& tensor) -> absl::StatusOr<Tensor> {
    QG_ASSIGN_OR_RETURN(const Tensor on_host, engine.ToHost(tensor, cancellation));
    return CastTensor(on_host, DType::kF32, context);
  };
  QG_ASSIGN_OR_RETURN(const Tensor elements, widened(gemm.result.d));
  QG_ASSIGN_OR_RETURN(const Tensor found, widened(values));

  const ValueRounding rounding = RoundingOf(values.dtype());
  // A nearest rounding stays within half a step, a stochastic one within a step.
  const bool is_stochastic = rule.element_rounding == ElementRounding::kStochastic;
  BoundCheck check;
  for (int64_t i = 0; i < elements.element_count(); ++i) {
    const double scale = scales.as<float>()[i];
    const uint8_t code = CodeAt(copy, i);
    const double product = format->values[code] * scale;
    const double ratio = std::max(CodeRatio(*format, rule, elements.as<float>()[i], scale, code),
                                  ValueRatio(rounding, found.as<float>()[i], product));
    check.violation_count += !(ratio <= 1);
    check.worst_ratio = std::max(check.worst_ratio, ratio);
  }
  check.pass = check.violation_count == 0;
  check.bound.derivation = is_stochastic ? "a step of its codes from the GEMM's own result"
                                         : "half a step of its codes from the GEMM's own result";
  return check;
}

}  // namespace quantgate
