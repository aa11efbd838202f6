#include "kernels/validate/diagnosis/tensor_hypotheses.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/grouped_digits.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"
#include "kernels/compare/element_values.h"
#include "kernels/validate/diagnosis/tensor_candidates.h"

namespace quantgate {
namespace {

/// The order of the codes of a dtype of up to 32 bits: neighbours are 1 apart, zeros 0.
int64_t OrderOf(uint64_t bits, int bytes) {
  const uint64_t sign = uint64_t{1} << (8 * bytes - 1);
  return (bits & sign) != 0 ? -static_cast<int64_t>(bits & (sign - 1)) : static_cast<int64_t>(bits);
}

/// What bits of one dtype and shape say by themselves: signs of zero, NaN payloads, single ulps.
std::optional<Cause> CauseOfBits(const Tensor& expected, const Tensor& subject, const Values& e,
                                 const Values& s) {
  int64_t differing = 0, zeros = 0, nans = 0, steps = 0;
  for (int64_t i = 0; i < e.size(); ++i) {
    const uint64_t left = ElementBits(expected, i), right = ElementBits(subject, i);
    if (left == right) continue;
    ++differing;
    const float was = e.at[size_t(i)], is = s.at[size_t(i)];
    const int bytes = DTypeBytes(expected.dtype());
    const int64_t distance = OrderOf(left, bytes) - OrderOf(right, bytes);
    if (was == 0 && is == 0) {
      ++zeros;
    } else if (std::isnan(was) && std::isnan(is)) {
      ++nans;
    } else if (std::isfinite(was) && std::isfinite(is) && std::abs(distance) == 1) {
      ++steps;
    } else {
      return std::nullopt;
    }
  }
  if (differing == 0) return std::nullopt;
  Cause cause;
  cause.fit = {FitLevel::kBits, e.size(), 0, differing};
  if (zeros == differing) {
    cause.predicate = absl::StrCat("differs in the sign of ", GroupedDigits(zeros), " zeros only");
  } else if (nans == differing) {
    cause.predicate = absl::StrCat("differs in the bits of ", GroupedDigits(nans), " NaN only");
  } else if (steps + zeros == differing) {
    cause.predicate = absl::StrCat("differs by 1 ulp in ", GroupedDigits(steps), " of ",
                                   GroupedDigits(e.size()), " elements");
    if (zeros > 0) {
      absl::StrAppend(&cause.predicate, ", and in the sign of ", GroupedDigits(zeros), " zeros");
    }
  } else {
    return std::nullopt;
  }
  return cause;
}

struct NonFiniteLines {
  int64_t nan = 0, infinite = 0;
  std::vector<int64_t> rows, columns;  ///< That have any.
  int64_t count() const { return nan + infinite; }
  std::string Text() const {
    return nan == 0
               ? absl::StrCat(GroupedDigits(infinite), " infinite")
               : absl::StrCat(GroupedDigits(nan), " NaN",
                              infinite == 0
                                  ? ""
                                  : absl::StrCat(" and ", GroupedDigits(infinite), " infinite"));
  }
};

NonFiniteLines NonFiniteOf(const Values& values) {
  NonFiniteLines lines;
  std::vector<bool> rows(size_t(values.rows)), columns(size_t(values.columns));
  for (int64_t row = 0; row < values.rows; ++row) {
    for (int64_t column = 0; column < values.columns; ++column) {
      const float value = values(row, column);
      if (std::isfinite(value)) continue;
      ++(std::isnan(value) ? lines.nan : lines.infinite);
      rows[size_t(row)] = columns[size_t(column)] = true;
    }
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i]) lines.rows.push_back(int64_t(i));
  }
  for (size_t i = 0; i < columns.size(); ++i) {
    if (columns[i]) lines.columns.push_back(int64_t(i));
  }
  return lines;
}

/// NaN and infinities that the inputs have in the same rows or columns: "12 NaN in x, so 512 in y".
/// Only where each element that differs is one of them.
absl::StatusOr<std::optional<Cause>> CauseOfInputs(const TensorCase& of, const Values& expected,
                                                   const Values& subject) {
  // One side has them, and the other has numbers there.
  const NonFiniteLines in_subject = NonFiniteOf(subject);
  const bool has_subject = in_subject.count() > 0;
  const NonFiniteLines found = has_subject ? in_subject : NonFiniteOf(expected);
  if (found.count() == 0) return std::optional<Cause>();
  int64_t differing = 0;
  for (size_t i = 0; i < subject.at.size(); ++i) {
    const float s = subject.at[i], e = expected.at[i];
    const bool same_bits = s == e && std::signbit(s) == std::signbit(e);
    if (same_bits || (std::isnan(s) && std::isnan(e))) continue;
    if (std::isfinite(has_subject ? s : e)) return std::optional<Cause>();
    ++differing;
  }
  for (const NamedTensor& input : of.inputs) {
    if (!HasFp32Values(input.tensor.dtype())) continue;
    QG_ASSIGN_OR_RETURN(const Values values, ValuesOf(input.tensor));
    const NonFiniteLines given = NonFiniteOf(values);
    // All of a vector lies in one row, which says nothing.
    const bool by_row = subject.rows > 1 && values.rows == subject.rows && given.rows == found.rows;
    const bool by_column =
        subject.columns > 1 && values.rows == subject.columns && given.rows == found.columns;
    if (given.count() == 0 || !(by_row || by_column)) continue;
    Cause cause;
    cause.fit = {FitLevel::kBits, subject.size(), 0, differing};
    const std::string because =
        absl::StrCat(given.Text(), " in ", input.name, ", so ", GroupedDigits(found.count()),
                     " in ", has_subject ? "" : "the expected ", of.name);
    // NaN on both sides, of other bits.
    cause.predicate = differing == 0 ? absl::StrCat("differs in the bits of NaN only: ", because)
                      : has_subject  ? absl::StrCat("has ", found.Text(), ": ", because)
                                    : absl::StrCat("has numbers where NaN are expected: ", because);
    return std::optional<Cause>(std::move(cause));
  }
  return std::optional<Cause>();
}

/// Whether the transpose has the same elements in the same order: a vector, or a constant.
bool IsSameTransposed(const Values& values) {
  const auto transposed = TransposedOf(values);
  for (int64_t i = 0; i < values.size(); ++i) {
    if (!SameValue(values.at[size_t(i)], transposed(i))) return false;
  }
  return true;
}

/// Shapes or dtypes that differ: what they and the bytes say.
absl::StatusOr<TensorFindings> FindCauseOfType(const TensorCase& of) {
  const Tensor &e = of.expected, &s = of.subject;
  TensorFindings findings;
  const bool is_reversed =
      e.rank() == 2 && s.shape() == Shape(e.shape().rbegin(), e.shape().rend());
  const bool same_bytes = HaveSameBytes(e, s);
  Cause cause;
  cause.fit = {FitLevel::kBits, s.element_count()};
  if (same_bytes && e.dtype() != s.dtype()) {
    cause.predicate =
        absl::StrCat("has the expected bytes, read as ", std::string(DTypeName(s.dtype())),
                     " in place of ", std::string(DTypeName(e.dtype())));
  } else if (same_bytes) {
    cause.predicate =
        absl::StrCat("has the expected elements under another shape: ", ShapeText(s.shape()),
                     " in place of ", ShapeText(e.shape()));
    if (is_reversed && HasFp32Values(e.dtype()) && e.element_count() <= kDiagnosedElementsMax) {
      QG_ASSIGN_OR_RETURN(const Values expected, ValuesOf(e));
      if (IsSameTransposed(expected)) {
        absl::StrAppend(&cause.predicate, ", or is transposed, which is the same here");
      }
    }
  } else if (is_reversed && HasFp32Values(e.dtype()) && HasFp32Values(s.dtype()) &&
             e.element_count() <= kDiagnosedElementsMax) {
    findings.tried.push_back("transposed");
    QG_ASSIGN_OR_RETURN(const Values expected, ValuesOf(e));
    QG_ASSIGN_OR_RETURN(const Values subject, ValuesOf(s));
    std::vector<float> predicted(expected.at.size());
    const auto transposed = TransposedOf(expected);
    for (size_t i = 0; i < predicted.size(); ++i) predicted[i] = transposed(int64_t(i));
    QG_RETURN_IF_ERROR(RoundTo(s.dtype(), predicted));
    // Nothing is expected under this shape, so that the fit is held against zeros.
    Values nothing = subject;
    std::fill(nothing.at.begin(), nothing.at.end(), 0.0f);
    cause.fit = FitOf(predicted, subject, nothing);
    if (!cause.fit.fits()) return findings;
    cause.predicate =
        absl::StrCat(IsSameTransposed(expected)
                         ? "has the expected values under another shape, or is transposed: "
                         : "is transposed: ",
                     ShapeText(s.shape()), " in place of ", ShapeText(e.shape()));
  } else {
    findings.tried = {"the same bytes under another dtype or shape", "transposed"};
    return findings;
  }
  findings.cause = std::move(cause);
  return findings;
}

/// Whether a fit that was found is to be replaced. At kRounding several may fit: the nearest by far
/// is taken, else the first.
bool IsBetterFit(const Fit& fit, const Fit& best) {
  if (fit.level != best.level) return fit.level < best.level;
  if (fit.level == FitLevel::kButSome) return fit.missed < best.missed;
  return fit.level == FitLevel::kRounding && fit.residual * 4 < best.residual;
}

/// Whether the values of a candidate at the places of a large difference leave it a chance to fit:
/// what fits but for 1 % misses few of the places that are spread, and what fits within rounding
/// takes most of the largest differences away (fit.h).
absl::StatusOr<bool> IsPlausible(const Candidate& candidate, const Pair& pair) {
  constexpr size_t kMissedPart = 10;
  const auto predict =
      [&](const std::vector<int64_t>& places) -> absl::StatusOr<std::vector<float>> {
    std::vector<float> predicted;
    for (const int64_t i : places) predicted.push_back(candidate.at(i));
    if (candidate.through.has_value()) QG_RETURN_IF_ERROR(RoundTo(*candidate.through, predicted));
    QG_RETURN_IF_ERROR(RoundTo(pair.subject.dtype, predicted));
    return predicted;
  };
  QG_ASSIGN_OR_RETURN(std::vector<float> predicted, predict(pair.places.spread));
  size_t missed = 0;
  for (size_t i = 0; i < predicted.size(); ++i) {
    missed += SameValue(predicted[i], pair.subject.at[size_t(pair.places.spread[i])]) ? 0 : 1;
  }
  if (missed * kMissedPart <= predicted.size()) return true;
  QG_ASSIGN_OR_RETURN(predicted, predict(pair.places.largest));
  double residual = 0, difference = 0;
  for (size_t i = 0; i < predicted.size(); ++i) {
    const auto place = size_t(pair.places.largest[i]);
    const double p = predicted[i], s = pair.subject.at[place], e = pair.expected.at[place];
    if (!std::isfinite(p) || !std::isfinite(s) || !std::isfinite(e)) continue;
    residual += (s - p) * (s - p);
    difference += (s - e) * (s - e);
  }
  return residual <= difference / 4;
}

/// Takes the best of the candidates, and those that give the same bits together.
class CauseSearch {
 public:
  CauseSearch(const Pair& pair, int64_t changed, TensorFindings& findings)
      : pair_(pair), is_screened_(changed > kScreenedPlaces), findings_(findings) {}

  absl::Status Try(const Family& family) {
    if (family.is_last_resort && has_bits()) return absl::OkStatus();
    is_cut_short_ = pair_.is_time_spent();
    has_fit_ = false;
    if (!is_cut_short_) {
      QG_RETURN_IF_ERROR(family.candidates(
          pair_, [this](Candidate candidate) { return Take(std::move(candidate)); }));
      is_cut_short_ = is_cut_short_ || (!has_fit_ && pair_.is_time_spent());
    }
    if (is_cut_short_) {
      findings_.not_tried.push_back(absl::StrCat(family.name, " (no time)"));
    } else if (!has_fit_) {
      findings_.tried.push_back(family.name);
    }
    return absl::OkStatus();
  }

 private:
  bool has_bits() const {
    return findings_.cause.has_value() && findings_.cause->fit.level == FitLevel::kBits;
  }

  absl::Status Take(Candidate candidate) {
    if (is_screened_) {
      QG_ASSIGN_OR_RETURN(const bool is_plausible, IsPlausible(candidate, pair_));
      if (!is_plausible) return absl::OkStatus();
    }
    if (pair_.is_time_spent()) {
      is_cut_short_ = true;
      return absl::OkStatus();
    }
    ++findings_.whole_fits;
    std::vector<float> predicted(pair_.subject.at.size());
    constexpr size_t kBetweenLooks = size_t{1} << 18;
    for (size_t i = 0; i < predicted.size(); ++i) {
      if (i % kBetweenLooks == kBetweenLooks - 1 && pair_.is_time_spent()) {
        is_cut_short_ = true;
        return absl::OkStatus();
      }
      predicted[i] = candidate.at(int64_t(i));
    }
    if (candidate.through.has_value()) QG_RETURN_IF_ERROR(RoundTo(*candidate.through, predicted));
    QG_RETURN_IF_ERROR(RoundTo(pair_.subject.dtype, predicted));
    Fit fit = FitOf(predicted, pair_.subject, pair_.expected);
    if (!fit.fits()) return absl::OkStatus();
    has_fit_ = true;
    if (candidate.needs_no_evidence) fit.distinct = Fit::kDistinctMin;
    if (has_bits() && fit.level == FitLevel::kBits) {
      if (std::find(predicates_.begin(), predicates_.end(), candidate.predicate) !=
          predicates_.end()) {
        return absl::OkStatus();
      }
      predicates_.push_back(candidate.predicate);
      absl::StrAppend(&findings_.cause->predicate, ", or ", candidate.predicate);
      return absl::OkStatus();
    }
    if (findings_.cause.has_value() && !IsBetterFit(fit, findings_.cause->fit)) {
      return absl::OkStatus();
    }
    predicates_ = {candidate.predicate};
    findings_.cause = Cause{candidate.predicate, fit, candidate.figures, candidate.row_order};
    return absl::OkStatus();
  }

  const Pair& pair_;
  const bool is_screened_;
  TensorFindings& findings_;
  std::vector<std::string> predicates_;
  bool has_fit_ = false, is_cut_short_ = false;
};

}  // namespace

std::string PlaceText(const Values& expected, const Values& subject) {
  return PlaceText(expected, DifferencesOf(expected, subject));
}

std::string PlaceText(const Values& expected, const Differences& found) {
  const int64_t count = found.count;
  std::string text = absl::StrCat(GroupedDigits(count), " of ", GroupedDigits(expected.size()),
                                  count == 1 ? " elements differs" : " elements differ");
  if (count == 0 || count == expected.size()) return text;
  const auto range = [&](const char* each, int64_t first, int64_t last, int64_t size) {
    if (first == 0 && last == size - 1) return absl::StrCat("all ", each);
    if (last == size - 1) return absl::StrCat(each, " from ", first, " on");
    return absl::StrCat(each, " ", first, " to ", last);
  };
  absl::StrAppend(&text, ", in ", range("rows", found.first_row, found.last_row, expected.rows),
                  " and ",
                  range("columns", found.first_column, found.last_column, expected.columns));
  return text;
}

absl::StatusOr<TensorFindings> FindCause(const TensorCase& of, const DiagnosisBudget& budget) {
  const Tensor &e = of.expected, &s = of.subject;
  if (e.shape() != s.shape() ||
      (e.dtype() != s.dtype() && (!HasFp32Values(e.dtype()) || !HasFp32Values(s.dtype())))) {
    return FindCauseOfType(of);
  }
  TensorFindings findings;
  if (!HasFp32Values(e.dtype()) || e.element_count() > kDiagnosedElementsMax) {
    findings.not_tried.push_back(
        HasFp32Values(e.dtype())
            ? absl::StrCat("all: more than ", GroupedDigits(kDiagnosedElementsMax), " elements")
            : absl::StrCat(
                  "all: a hypothesis predicts floating-point numbers, and the elements are ",
                  std::string(DTypeName(e.dtype()))));
    return findings;
  }
  QG_ASSIGN_OR_RETURN(const Values expected, ValuesOf(e));
  QG_ASSIGN_OR_RETURN(const Values subject, ValuesOf(s));
  return FindCause(of, expected, subject, budget);
}

absl::StatusOr<TensorFindings> FindCause(const TensorCase& of, const Values& expected,
                                         const Values& subject, const DiagnosisBudget& budget) {
  const Tensor &e = of.expected, &s = of.subject;
  const Differences differences = DifferencesOf(expected, subject);
  TensorFindings findings;
  findings.place = PlaceText(expected, differences);
  if (!AllFinite(subject) || !AllFinite(expected)) {
    QG_ASSIGN_OR_RETURN(findings.cause, CauseOfInputs(of, expected, subject));
    if (findings.cause.has_value()) return findings;
  }
  if (e.dtype() == s.dtype()) {
    findings.cause = CauseOfBits(e, s, expected, subject);
    if (findings.cause.has_value()) return findings;
    findings.tried.push_back("signs of zero, bits of NaN, or 1 ulp only");
  } else if (e.byte_size() == s.byte_size()) {
    QG_ASSIGN_OR_RETURN(findings, FindCauseOfType(of));
    if (findings.cause.has_value()) return findings;
    findings.place = PlaceText(expected, differences);
  }
  if (differences.count == 0) return findings;
  const DifferingPlaces places = PlacesOf(expected, subject, differences.count);
  const Pair pair{of, expected, subject, places, [&budget] { return budget.IsSpent(); }};
  CauseSearch search(pair, differences.count, findings);
  for (const Family& family : Families()) QG_RETURN_IF_ERROR(search.Try(family));
  return findings;
}

absl::StatusOr<Diagnosis> DiagnoseTensor(const TensorCase& of, const DiagnosisBudget& budget) {
  const absl::Time start = SteadyNow();
  QG_ASSIGN_OR_RETURN(const TensorFindings findings, FindCause(of, budget));
  Diagnosis diagnosis;
  diagnosis.is_unknown = !findings.cause.has_value();
  diagnosis.tried = findings.tried;
  diagnosis.not_tried = findings.not_tried;
  if (findings.cause.has_value()) {
    diagnosis.sentence = absl::StrCat(of.name, " ", findings.cause->Text());
    diagnosis.figures = findings.cause->figures;
    if (!findings.place.empty()) diagnosis.figures.push_back(findings.place);
  } else {
    diagnosis.sentence =
        absl::StrCat("unknown: nothing that was tried gives ", of.name,
                     findings.place.empty() ? "" : absl::StrCat("; ", findings.place));
  }
  diagnosis.seconds = absl::ToDoubleSeconds(SteadyNow() - start);
  return diagnosis;
}

}  // namespace quantgate
