#include "kernels/validate/reference/running_error.h"

#include <bit>

#include "kernels/numerics/transcendental.h"

namespace quantgate {
namespace running_error {
namespace {

using transcendental_steps::PowerAndPart;
using transcendental_steps::SplitExp;

/// e^x by the steps of fp32's, which take fp64 arguments too: x - n ln 2 is then rounded once.
PowerAndPart Split(double x) {
  // Beyond these all results here are 0, 1 or infinite in fp32.
  return SplitExp(std::isnan(x) ? x : std::clamp(x, -700.0, 700.0));
}

}  // namespace

double Exp(double x) {
  const auto [power, part] = Split(x);
  return std::fma(power, part, power);
}

/// (1 - u) / (1 + u), u = e^(-2|x|), by u - 1, which keeps its digits for small x.
double Tanh(double x) {
  const auto [power, part] = Split(-2 * std::fabs(x));
  const double u_minus_1 = std::fma(power, part, power - 1);
  return std::copysign(-u_minus_1 / (2 + u_minus_1), x);
}

double Sigmoid(double x) {
  const double u = Exp(-std::fabs(x));
  return (x < 0 ? u : 1.0) / (1 + u);
}

}  // namespace running_error

RunningError RunningSum::Sum() const {
  if (count_ == 0) return Given(0);
  const int depth = std::bit_width(static_cast<uint64_t>(count_ - 1));
  const double own = static_cast<double>(count_) * 0x1p-53;
  const double error = error_ + (error_bound::Gamma(depth) + own) * magnitude_ * (1 + own);
  const bool is_bounded = std::isfinite(value_) && magnitude_ + error < running_error::kOverflow;
  // A NaN, or infinities of both signs, make a NaN whatever the others are; those of one sign stay
  // where the others cannot overflow to the other.
  if (is_certain_) {
    const bool stays = std::isnan(special_) || is_bounded;
    return {special_, stays ? 0 : running_error::kInfinity};
  }
  return {value_, is_bounded ? error : running_error::kInfinity};
}

error_bound::OutputFacts FactsOfOutput(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return error_bound::FactsOf<BFloat16>();
    case DType::kF16:
      return error_bound::FactsOf<Float16>();
    default:
      return error_bound::FactsOf<Float32>();
  }
}

RunningError RoundedTo(const RunningError& a, const error_bound::OutputFacts& output) {
  if (output.mantissa_bits == Float32::kMantissaBits) return a;
  const bool is_certain = std::isfinite(a.error) && !std::isfinite(a.value);
  if (is_certain || (a.value == 0 && a.error == 0)) return a;
  const double magnitude = std::fabs(a.value) + a.error;
  const bool is_bounded = magnitude < output.Overflow();
  return {a.value, is_bounded ? a.error + output.HalfUlp(magnitude) : running_error::kInfinity};
}

GivenRows::GivenRows(std::span<const float> values, int64_t rows, int64_t columns, bool transposed)
    : columns_(transposed ? rows : columns),
      values_(values.size()),
      is_finite_(static_cast<size_t>(transposed ? columns : rows), true) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const float value = values[static_cast<size_t>(r * columns + c)];
      values_[static_cast<size_t>(transposed ? c * rows + r : r * columns + c)] = value;
      if (!std::isfinite(value)) is_finite_[static_cast<size_t>(transposed ? c : r)] = false;
    }
  }
}

RunningProducts::RunningProducts(int64_t columns, const ProductBound& bound)
    : bound_(bound),
      value_(static_cast<size_t>(columns)),
      magnitude_(static_cast<size_t>(columns)),
      propagated_(static_cast<size_t>(columns)),
      special_(static_cast<size_t>(columns)) {}

void RunningProducts::Add(const RunningError& a, const GivenRows& b, int64_t row) {
  ++count_;
  const std::span<const double> given = b.Row(row);
  if (!b.IsFinite(row) || !std::isfinite(a.value) || !std::isfinite(a.error)) {
    return AddSpecial(a, given);
  }
  if (a.value == 0 && a.error == 0) return;
  const double weight = std::fabs(a.value) + a.error + bound_.floor;
  for (size_t n = 0; n < given.size(); ++n) {
    const double magnitude = std::fabs(given[n]);
    value_[n] += a.value * given[n];
    propagated_[n] += a.error * magnitude;
    magnitude_[n] += magnitude == 0 ? 0 : weight * (magnitude + bound_.floor);
  }
}

/// Terms that are not finite make what running errors say of a product; the others are as above.
void RunningProducts::AddSpecial(const RunningError& a, std::span<const double> b) {
  for (size_t n = 0; n < b.size(); ++n) {
    const RunningError term = a * Given(b[n]);
    if (!std::isfinite(term.error)) {
      propagated_[n] = running_error::kInfinity;
    } else if (!std::isfinite(term.value)) {
      special_[n] += term.value;
      has_special_ = true;
    } else {
      const double magnitude = std::fabs(b[n]);
      value_[n] += term.value;
      propagated_[n] += a.error * magnitude;
      magnitude_[n] += (std::fabs(a.value) + a.error + bound_.floor) * (magnitude + bound_.floor);
    }
  }
}

RunningError RunningProducts::At(int64_t column) const {
  const auto n = static_cast<size_t>(column);
  const double own = 2 * static_cast<double>(count_ + 2) * 0x1p-53;
  const double error =
      (propagated_[n] + (bound_.factor + own) * magnitude_[n] + bound_.absolute) * (1 + 2 * own);
  const bool is_bounded = magnitude_[n] + error < running_error::kOverflow;
  // As in RunningSum::Sum.
  if (has_special_ && special_[n] != 0) {
    const bool stays = std::isnan(special_[n]) || is_bounded;
    return {special_[n], stays ? 0 : running_error::kInfinity};
  }
  return {value_[n], is_bounded ? error : running_error::kInfinity};
}

namespace {

/// Whether the row's probabilities are NaN in fp32 too: of a NaN or +infinity, whose difference
/// from the largest is NaN, or of -infinities alone.
bool IsCertainlyNan(std::span<const RunningError> z) {
  bool all_low = true;
  for (const RunningError& one : z) {
    const bool is_certain = std::isfinite(one.error);
    if (is_certain && (std::isnan(one.value) || one.value == running_error::kInfinity)) return true;
    all_low = all_low && is_certain && one.value == -running_error::kInfinity;
  }
  return all_low;
}

}  // namespace

// fp32 subtracts its own largest z, which differs from the one here by at most the largest error
// e: a factor common to numerators and sum, which their quotient does not have. Against the values
// here an underflow of a numerator weighs e^e as much. Whatever the errors, a probability in fp32
// lies in [0, 1]: one numerator is exp(0), none is larger, and no rounded sum of them is smaller
// than one of them.
void SoftmaxReference(std::span<const RunningError> z, int64_t keys, std::span<RunningError> p) {
  if (IsCertainlyNan(z)) {
    std::fill(p.begin(), p.end(), Given(std::numeric_limits<double>::quiet_NaN()));
    return;
  }
  double largest = -running_error::kInfinity, slack = 0;
  for (const RunningError& one : z) {
    largest = std::max(largest, one.value);
    slack = std::max(slack, one.error);
  }
  if (!std::isfinite(slack)) {
    std::fill(p.begin(), p.end(), RunningError{0, running_error::kInfinity});
    return;
  }
  const double underflow = slack <= 100 ? 4 * running_error::kUnderflow * running_error::Exp(slack)
                                        : running_error::kInfinity;
  RunningSum sum;
  for (size_t i = 0; i < z.size(); ++i) {
    if (std::isinf(z[i].value)) {
      p[i] = Given(0);
    } else {
      const double difference = z[i].value - largest;
      const double rounding =
          running_error::kRounding * (std::fabs(difference) + z[i].error + slack);
      p[i] = Exp(RunningError{difference, z[i].error + rounding});
      p[i].error += underflow;
    }
    sum.Add(p[i]);
  }
  for (auto left_out = static_cast<int64_t>(z.size()); left_out < keys; ++left_out) {
    sum.Add(Given(0));
  }
  const RunningError divisor = sum.Sum();
  for (size_t i = 0; i < z.size(); ++i) {
    if (std::isinf(z[i].value)) continue;
    p[i] = p[i] / divisor;
    p[i].error = std::min(p[i].error, std::max(p[i].value, 1 - p[i].value) + 0x1p-40);
  }
}

namespace {

constexpr float kQuickGeluAlpha = 1.702f;

RunningError AnySigmoid(const RunningError& x, ActivationVariant variant) {
  if (variant != ActivationVariant::kFp32Sigmoid) return Sigmoid(x);
  return 1.0f / (1.0f + Exp(-x));
}

/// tanh of gelu as the derivative and the torch operations write it.
RunningError GeluTanh(const RunningError& x) {
  return Tanh((0.79788456f * x) * (1.0f + (0.044715f * x) * x));
}

RunningError Gelu(const RunningError& x, ActivationVariant variant) {
  if (variant == ActivationVariant::kJitGelu) return (0.5f * x) * (1.0f + GeluTanh(x));
  return x * (0.5f + 0.5f * Tanh(x * (0.79788456f + (0.03567741f * x) * x)));
}

RunningError GeluDerivative(const RunningError& x) {
  const RunningError t = GeluTanh(x);
  return (0.5f * x) * ((1.0f - t * t) * (0.79788456f + (0.1070322243f * x) * x)) +
         0.5f * (1.0f + t);
}

/// d/dx of x * sigmoid(alpha * x).
RunningError SigmoidProductDerivative(const RunningError& x, float alpha,
                                      ActivationVariant variant) {
  const RunningError scaled = alpha * x;
  const RunningError s = AnySigmoid(scaled, variant);
  return scaled * (s * (1.0f - s)) + s;
}

float ClampedAbove(float x, const ActivationOptions& options) {
  return x > options.limit ? options.limit : x;
}

RunningError Value(float given, const ActivationOptions& options) {
  const RunningError x = Given(given);
  switch (FunctionOf(options.kind)) {
    case ActivationFunction::kGelu:
      return Gelu(x, options.variant);
    case ActivationFunction::kSigmoid:
      return AnySigmoid(x, options.variant);
    case ActivationFunction::kQuickGelu:
      return x * AnySigmoid(kQuickGeluAlpha * x, options.variant);
    case ActivationFunction::kRelu:
      return given <= 0 ? Given(0) : x;
    case ActivationFunction::kSquaredRelu:
      return given <= 0 ? Given(0) : x * x;
    case ActivationFunction::kSilu:
      return x * AnySigmoid(x, options.variant);
    case ActivationFunction::kClampedSilu:
      break;
  }
  const RunningError clamped = Given(ClampedAbove(given, options));
  return clamped * AnySigmoid(options.alpha * clamped, options.variant);
}

RunningError Derivative(float given, const ActivationOptions& options) {
  const RunningError x = Given(given);
  switch (FunctionOf(options.kind)) {
    case ActivationFunction::kGelu:
      return GeluDerivative(x);
    case ActivationFunction::kSigmoid: {
      const RunningError s = AnySigmoid(x, options.variant);
      return s * (1.0f - s);
    }
    case ActivationFunction::kQuickGelu:
      return SigmoidProductDerivative(x, kQuickGeluAlpha, options.variant);
    case ActivationFunction::kRelu:
      if (given <= 0) return Given(0);
      return given > 0 ? Given(1) : x;
    case ActivationFunction::kSquaredRelu:
      return given <= 0 ? Given(0) : 2.0f * x;
    case ActivationFunction::kSilu:
      return SigmoidProductDerivative(x, 1.0f, options.variant);
    case ActivationFunction::kClampedSilu:
      break;
  }
  if (given > options.limit) return Given(0);
  return SigmoidProductDerivative(x, options.alpha, options.variant);
}

bool ClampsGate(const ActivationOptions& options) {
  return FunctionOf(options.kind) == ActivationFunction::kClampedSilu;
}

RunningError GateFactor(float gate, const ActivationOptions& options) {
  if (!ClampsGate(options)) return Given(gate);
  const float below = ClampedAbove(gate, options);
  return Given(below < -options.limit ? -options.limit : below) + options.offset;
}

RunningError GateGradient(float dy, float x, float gate, const ActivationOptions& options) {
  if (ClampsGate(options)) {
    if (std::isnan(gate)) return Given(gate);
    if (std::fabs(gate) > options.limit) return Given(0);
  }
  return dy * Value(x, options);
}

}  // namespace

void ActivationReference(const ActivationOptions& options, std::span<const float> h,
                         std::span<RunningError> out) {
  const size_t gates = IsGated(options.kind) ? h.size() / 2 : 0;
  for (size_t i = 0; i < out.size(); ++i) {
    const RunningError value = Value(h[i], options);
    out[i] = gates == 0 ? value : value * GateFactor(h[gates + i], options);
  }
}

void ActivationGradientReference(const ActivationOptions& options, std::span<const float> h,
                                 std::span<const float> dy, std::span<RunningError> out) {
  const size_t gates = IsGated(options.kind) ? h.size() / 2 : 0;
  for (size_t i = 0; i < dy.size(); ++i) {
    const RunningError gradient = Derivative(h[i], options) * dy[i];
    if (gates == 0) {
      out[i] = gradient;
      continue;
    }
    out[i] = gradient * GateFactor(h[gates + i], options);
    out[gates + i] = GateGradient(dy[i], h[i], h[gates + i], options);
  }
}

}  // namespace quantgate
