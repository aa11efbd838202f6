#include "kernels/validate/ranks/rank_sum.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/convert.h"

namespace quantgate {
namespace {

constexpr double kUnitF32 = 0x1p-24;
/// The error of the fp64 sums here, with room for the roundings of the bound itself.
constexpr double kUnitF64 = 0x1p-52;

/// The exponent e for which half an ulp of 1 is 2^e.
int UnitExponentOf(DType dtype) {
  if (dtype == DType::kBF16) return -8;
  return dtype == DType::kF16 ? -11 : -24;
}

double LargestOf(DType dtype) {
  if (dtype == DType::kBF16) return 0x1.fep127;
  return dtype == DType::kF16 ? 65504 : static_cast<double>(std::numeric_limits<float>::max());
}

/// n u / (1 - n u).
double Gamma(int n, double u) { return n * u / (1 - n * u); }

/// (1 + u)^n - 1.
double Growth(int n, double u) {
  double power = 1;
  for (int i = 0; i < n; ++i) power *= 1 + u;
  return power - 1;
}

bool AddsInFp32(const ReductionProfile& profile) {
  const absl::StatusOr<ReductionOrder> order = OrderOf(profile, 0, 1);
  return order.ok() && order->accumulation == SumAccumulation::kF32;
}

/// One element of the sum of the parts and of the sum of their magnitudes, and its bias.
struct Element {
  double sum = 0, magnitude = 0, bias = 0;
};

/// f32 copies of the parts and the bias.
class Reader {
 public:
  static absl::StatusOr<Reader> Create(const RankSum& sum, const Cancellation* cancellation) {
    ExecutionContext context;
    context.cancellation = cancellation;
    Reader reader;
    for (const Tensor& part : sum.parts) {
      QG_ASSIGN_OR_RETURN(reader.parts_.emplace_back(), CastTensor(part, DType::kF32, context));
    }
    if (sum.bias.has_value()) {
      QG_ASSIGN_OR_RETURN(reader.bias_, CastTensor(sum.bias, DType::kF32, context));
    }
    return reader;
  }

  Element At(int64_t index) const {
    Element element;
    for (const Tensor& part : parts_) {
      const double value = part.as<float>()[index];
      element.sum += value;
      element.magnitude += std::fabs(value);
    }
    if (bias_.has_value()) element.bias = bias_.as<float>()[index % bias_.element_count()];
    return element;
  }

 private:
  std::vector<Tensor> parts_;
  Tensor bias_;
};

/// The bound on the errors of a sum's additions in one element.
class Additions {
 public:
  Additions(const RankSum& sum, DType dtype)
      : exponent_(UnitExponentOf(dtype)),
        u_(std::ldexp(1.0, exponent_)),
        largest_(LargestOf(dtype)),
        has_bias_(sum.bias.has_value()),
        additions_(static_cast<int>(sum.parts.size()) - 1),
        in_fp32_(AddsInFp32(sum.profile)),
        relative_(in_fp32_ ? (1 + u_) * Gamma(additions_, kUnitF32) : Growth(additions_, u_)) {}

  double BoundOf(const Element& element) const {
    double bound = relative_ * element.magnitude + (in_fp32_ ? u_ * std::fabs(element.sum) : 0);
    if (has_bias_) {
      bound += (u_ + kUnitF32 * (1 + u_)) * (std::fabs(element.sum + element.bias) + bound);
    }
    return bound + (additions_ + 2) * kUnitF64 * (element.magnitude + std::fabs(element.bias));
  }

  /// |error| / bound; infinite if NaN or an infinity does not pass.
  double RatioOf(const Element& element, double subject) const {
    const double target = element.sum + element.bias;
    const double bound = BoundOf(element);
    const double reach = element.magnitude + std::fabs(element.bias) + bound;
    const bool may_overflow = !(reach < largest_);
    constexpr double kFails = std::numeric_limits<double>::infinity();
    if (std::isnan(target) || std::isnan(subject)) {
      // Partial sums of different signs may overflow both ways.
      return std::isnan(subject) && (std::isnan(target) || may_overflow) ? 0 : kFails;
    }
    if (std::isinf(target) || std::isinf(subject)) {
      return target == subject || (std::isfinite(target) && may_overflow) ? 0 : kFails;
    }
    const double error = std::fabs(subject - target);
    if (error == 0) return 0;
    return bound > 0 ? error / bound : kFails;
  }

  std::string Derivation() const {
    const std::string n = absl::StrCat(additions_);
    return absl::StrCat(in_fp32_ ? absl::StrCat("u |s| + g_", n, "(2^-24) sum |p_r|")
                                 : absl::StrCat("((1 + u)^", n, " - 1) sum |p_r|"),
                        has_bias_ ? " + (u + 2^-24) |s + bias|" : "", ", u = 2^", exponent_,
                        " (docs/ranks.md section 5)");
  }

 private:
  const int exponent_;
  const double u_, largest_;
  const bool has_bias_;
  const int additions_;
  const bool in_fp32_;
  const double relative_;
};

}  // namespace

absl::StatusOr<ExactValues::Value> ExactRankSum(const RankSum& exact, DType dtype,
                                                const Cancellation* cancellation) {
  ExecutionContext context;
  context.cancellation = cancellation;
  QG_ASSIGN_OR_RETURN(const Reader reader, Reader::Create(exact, cancellation));
  QG_ASSIGN_OR_RETURN(Tensor sum, Tensor::Allocate(DType::kF64, exact.parts.front().shape()));
  double* const values = sum.as<double>();
  for (int64_t i = 0; i < sum.element_count(); ++i) {
    const Element element = reader.At(i);
    values[i] = element.sum + element.bias;
  }
  ExactValues::Value value;
  QG_ASSIGN_OR_RETURN(value.own, CastTensor(sum, dtype, context));
  QG_ASSIGN_OR_RETURN(value.f32, CastTensor(sum, DType::kF32, context));
  value.note =
      ExactValues::NoteOf(absl::StrCat("the exact values of ", exact.parts.size(),
                                       " ranks, each rounded once to fp32, added in fp64"));
  return value;
}

absl::StatusOr<BoundCheck> CheckRankSum(const RankSum& added, const Tensor& sum,
                                        const Cancellation* cancellation) {
  ExecutionContext context;
  context.cancellation = cancellation;
  QG_ASSIGN_OR_RETURN(const Reader reader, Reader::Create(added, cancellation));
  QG_ASSIGN_OR_RETURN(const Tensor subject, CastTensor(sum, DType::kF32, context));
  const Additions additions(added, sum.dtype());
  BoundCheck check;
  for (int64_t i = 0; i < subject.element_count(); ++i) {
    const double ratio = additions.RatioOf(reader.At(i), subject.as<float>()[i]);
    check.worst_ratio = std::max(check.worst_ratio, ratio);
    if (!(ratio <= 1)) ++check.violation_count;
  }
  check.pass = check.violation_count == 0;
  check.bound.derivation = additions.Derivation();
  return check;
}

}  // namespace quantgate
