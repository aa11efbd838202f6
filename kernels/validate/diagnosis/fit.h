// How well a hypothesis about a tensor fits: what it predicts, held against what was found and what
// was expected (docs/reports.md section 10).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// The values of a tensor as rows() x columns() fp32 numbers.
struct Values {
  DType dtype = DType::kF32;
  int64_t rows = 0, columns = 0;
  std::vector<float> at;

  float operator()(int64_t row, int64_t column) const {
    return at[static_cast<size_t>(row * columns + column)];
  }
  int64_t size() const { return static_cast<int64_t>(at.size()); }
};

/// Whether ValuesOf takes the dtype: f32 and formats that are exact in f32.
bool HasFp32Values(DType dtype);
/// `tensor` in host memory, of a dtype for which HasFp32Values holds.
absl::StatusOr<Values> ValuesOf(const Tensor& tensor);
/// Rounds each value once to `dtype`, to nearest even, as CastTensor does.
absl::Status RoundTo(DType dtype, std::vector<float>& values);
/// 2^-(p + 1) for a significand of p bits behind the point: the largest relative rounding error.
double UnitRoundoff(DType dtype);

/// From best to worst.
enum class FitLevel {
  kBits,     ///< Every element has the predicted value.
  kButSome,  ///< All but at most 1 % as many elements as differ from the expected ones.
  /// The prediction lies as near as the roundings of both tensors let it, and they are small beside
  /// the difference.
  kRounding,
  kNone,
};

struct Fit {
  FitLevel level = FitLevel::kNone;
  int64_t count = 0;
  int64_t missed = 0;   ///< Elements that do not have the predicted value.
  int64_t changed = 0;  ///< Elements that do not have the expected value.
  /// Frobenius norms of what is left of the difference, and of the difference itself.
  double residual = 0, difference = 0;
  /// At kRounding: whether the residual is no more than one rounding of each tensor may leave.
  bool is_within_roundings = true;
  /// The different values that the subject has where it is not as expected, as far as kDistinctMin.
  /// Fewer are no evidence of a cause: a constant is twice another one and also a sum, a transpose
  /// or another tensor.
  int distinct = kDistinctMin;
  static constexpr int kDistinctMin = 4;

  bool fits() const { return level != FitLevel::kNone; }
  /// ""; " but for 3 of 512 elements"; " within rounding"; " but for 0.05 % of the difference".
  std::string Suffix() const;
  /// "", or where there is too little evidence of a cause: " (too few different values to be
  /// sure)".
  std::string Doubt() const;
};

/// Values are equal where both are NaN or both are the same number; zeros of both signs are equal.
bool SameValue(float left, float right);

bool AllFinite(const Values& values);

/// How many elements of two tensors of one size are not the same, and the lines among which they
/// lie.
struct Differences {
  int64_t count = 0;
  int64_t first_row = 0, last_row = -1, first_column = 0, last_column = -1;
};
Differences DifferencesOf(const Values& expected, const Values& subject);

/// Holds `predicted`, rounded to the subject's dtype, against `subject`. All have the same size.
///
/// kRounding asks for three things. The classes (NaN, infinities) agree. The residual's norm is at
/// most (u_e + u_s) |p|, which is what one rounding of each tensor may leave of it, or at most
/// 2^-10 of the difference's; and in both cases at most 1/16 of the difference's. And no more than
/// 1 % of the elements are further away than the largest of (u_e + u_s) (|p| + rms(p)), a quarter
/// of their own difference, and 2^-8 of the difference's root mean square: a norm alone may be that
/// of one large element.
Fit FitOf(const std::vector<float>& predicted, const Values& subject, const Values& expected);

}  // namespace quantgate
