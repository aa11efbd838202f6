#include "kernels/validate/diagnosis/fit.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/grouped_digits.h"
#include "kernels/base/status_macros.h"
#include "kernels/compare/element_values.h"
#include "kernels/numerics/float_format.h"
#include "kernels/tensor/convert.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

constexpr double kResidualShareMax = 1.0 / 16;
constexpr double kTinyShare = 0x1p-10;
constexpr double kElementNoise = 0x1p-8;
constexpr int64_t kMissedPart = 100;

}  // namespace

bool HasFp32Values(DType dtype) { return IsElementFormat(dtype); }

absl::StatusOr<Values> ValuesOf(const Tensor& tensor) {
  Values values{tensor.dtype(), tensor.rows(), tensor.columns(), {}};
  const int64_t count = tensor.element_count();
  if (tensor.dtype() == DType::kF32) {
    values.at.assign(tensor.as<float>(), tensor.as<float>() + count);
    return values;
  }
  values.at.resize(static_cast<size_t>(count));
  if (tensor.dtype() == DType::kBF16) {
    const uint16_t* const codes = tensor.as<uint16_t>();
    for (int64_t i = 0; i < count; ++i) {
      values.at[static_cast<size_t>(i)] = std::bit_cast<float>(uint32_t{codes[i]} << 16);
    }
    return values;
  }
  constexpr int64_t kPiece = 4096;
  double piece[kPiece];
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t length = std::min(kPiece, count - begin);
    DecodeValues(tensor, begin, length, piece);
    for (int64_t i = 0; i < length; ++i) {
      values.at[static_cast<size_t>(begin + i)] = static_cast<float>(piece[i]);
    }
  }
  return values;
}

absl::Status RoundTo(DType dtype, std::vector<float>& values) {
  if (dtype == DType::kF32) return absl::OkStatus();
  const auto count = static_cast<int64_t>(values.size());
  QG_ASSIGN_OR_RETURN(const Tensor given,
                      Tensor::FromBytes(DType::kF32, {count}, std::as_bytes(std::span(values))));
  QG_ASSIGN_OR_RETURN(const Tensor cast, CastTensor(given, dtype, ExecutionContext()));
  QG_ASSIGN_OR_RETURN(Values rounded, ValuesOf(cast));
  values = std::move(rounded.at);
  return absl::OkStatus();
}

double UnitRoundoff(DType dtype) {
  int mantissa_bits = 0;
  VisitFormat<AllFormats>(dtype, [&]<class F>() { mantissa_bits = F::kMantissaBits; });
  return std::ldexp(1.0, -mantissa_bits - 1);
}

bool SameValue(float left, float right) {
  return left == right || (std::isnan(left) && std::isnan(right));
}

bool AllFinite(const Values& values) {
  // Without an early end, so that it is a loop over vectors.
  bool all = true;
  for (const float value : values.at) all &= std::abs(value) <= std::numeric_limits<float>::max();
  return all;
}

Differences DifferencesOf(const Values& expected, const Values& subject) {
  Differences found{0, expected.rows, -1, expected.columns, -1};
  const auto differs = [&](int64_t row, int64_t column) {
    return !SameValue(expected(row, column), subject(row, column));
  };
  for (int64_t row = 0; row < expected.rows; ++row) {
    const float* const e = expected.at.data() + row * expected.columns;
    const float* const s = subject.at.data() + row * expected.columns;
    int64_t count = 0;
    for (int64_t i = 0; i < expected.columns; ++i) {
      count += static_cast<int64_t>(!(e[i] == s[i]) & !((e[i] != e[i]) & (s[i] != s[i])));
    }
    if (count == 0) continue;
    found.count += count;
    found.first_row = std::min(found.first_row, row);
    found.last_row = row;
    int64_t column = 0;
    while (column < found.first_column && !differs(row, column)) ++column;
    found.first_column = column;
    column = expected.columns - 1;
    while (column > found.last_column && !differs(row, column)) --column;
    found.last_column = column;
  }
  return found;
}

std::string Fit::Suffix() const {
  if (level == FitLevel::kButSome) {
    return absl::StrCat(" but for ", GroupedDigits(missed), " of ", GroupedDigits(count),
                        " elements");
  }
  if (level != FitLevel::kRounding) return "";
  if (is_within_roundings) return " within rounding";
  return absl::StrFormat(" but for %.2g %% of the difference", 100 * residual / difference);
}

std::string Fit::Doubt() const {
  return distinct < kDistinctMin ? " (too few different values to be sure)" : "";
}

Fit FitOf(const std::vector<float>& predicted, const Values& subject, const Values& expected) {
  Fit fit;
  fit.count = subject.size();
  fit.distinct = 0;
  float values[Fit::kDistinctMin];
  double norm = 0;
  bool classes_agree = true;
  for (size_t i = 0; i < predicted.size(); ++i) {
    const float p = predicted[i], s = subject.at[i], e = expected.at[i];
    if (!SameValue(s, e)) {
      ++fit.changed;
      if (fit.distinct < Fit::kDistinctMin &&
          std::none_of(values, values + fit.distinct, [&](float v) { return SameValue(v, s); })) {
        values[fit.distinct++] = s;
      }
    }
    if (!SameValue(s, p)) {
      ++fit.missed;
      classes_agree = classes_agree && std::isfinite(p) && std::isfinite(s);
    }
    if (!std::isfinite(p) || !std::isfinite(s)) continue;
    fit.residual += (double(s) - p) * (double(s) - p);
    norm += double(p) * p;
    if (std::isfinite(e)) fit.difference += (double(s) - e) * (double(s) - e);
  }
  fit.residual = std::sqrt(fit.residual);
  fit.difference = std::sqrt(fit.difference);
  norm = std::sqrt(norm);
  if (fit.missed == 0) {
    fit.level = FitLevel::kBits;
    return fit;
  }
  if (fit.missed * kMissedPart <= fit.changed) {
    fit.level = FitLevel::kButSome;
    return fit;
  }
  const double unit = UnitRoundoff(subject.dtype) + UnitRoundoff(expected.dtype);
  fit.is_within_roundings = fit.residual <= unit * norm;
  const bool is_small = fit.is_within_roundings || fit.residual <= kTinyShare * fit.difference;
  if (!classes_agree || !is_small || fit.residual > kResidualShareMax * fit.difference) return fit;
  const double root = std::sqrt(static_cast<double>(fit.count));
  const double floor = std::max(unit * norm / root, kElementNoise * fit.difference / root);
  int64_t far = 0;
  for (size_t i = 0; i < predicted.size(); ++i) {
    const double p = predicted[i], s = subject.at[i], e = expected.at[i];
    if (!std::isfinite(p) || !std::isfinite(s) || !std::isfinite(e)) continue;
    far += std::abs(s - p) > std::max(floor + unit * std::abs(p), std::abs(s - e) / 4) ? 1 : 0;
  }
  if (far * kMissedPart <= fit.count) fit.level = FitLevel::kRounding;
  return fit;
}

}  // namespace quantgate
