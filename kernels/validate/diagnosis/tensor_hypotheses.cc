#include "kernels/validate/diagnosis/tensor_hypotheses.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/grouped_digits.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"
#include "kernels/compare/element_values.h"
#include "kernels/validate/diagnosis/row_order.h"

namespace quantgate {
namespace {

/// A prediction of the subject and what it means.
struct Candidate {
  std::string predicate;
  std::vector<float> predicted;
  std::vector<std::string> figures = {};
  std::vector<int64_t> row_order = {};
};
using Candidates = std::vector<Candidate>;

struct Pair {
  const TensorCase& of;
  const Values &expected, &subject;
};

/// A named family of hypotheses.
struct Family {
  const char* name;
  std::function<absl::StatusOr<Candidates>(const Pair&)> candidates;
};

template <typename Function>
std::vector<float> Mapped(const Values& values, Function function) {
  std::vector<float> mapped(values.at.size());
  for (size_t i = 0; i < mapped.size(); ++i) mapped[i] = function(values.at[i]);
  return mapped;
}

absl::StatusOr<Candidates> Roundings(const Pair& pair) {
  Candidates candidates;
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2}) {
    if (DTypeBytes(dtype) >= DTypeBytes(pair.expected.dtype)) continue;
    Candidate rounded{absl::StrCat("is the expected rounded to ", std::string(DTypeName(dtype))),
                      pair.expected.at};
    QG_RETURN_IF_ERROR(RoundTo(dtype, rounded.predicted));
    candidates.push_back(std::move(rounded));
  }
  if (pair.expected.dtype == DType::kF32) {
    candidates.push_back(
        {"is the expected truncated to bf16", Mapped(pair.expected, [](float value) {
           return std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xFFFF0000u);
         })});
  }
  return candidates;
}

absl::StatusOr<Candidates> Negation(const Pair& pair) {
  return Candidates{{"is negated", Mapped(pair.expected, [](float value) { return -value; })}};
}

std::string FactorText(double factor) {
  if (factor == 2) return "twice the expected";
  if (factor == 0.5) return "half the expected";
  int exponent = 0;
  if (std::frexp(std::abs(factor), &exponent) == 0.5) {
    return absl::StrFormat("%s2^%d times the expected", factor < 0 ? "-" : "", exponent - 1);
  }
  const double inverse = 1 / factor;
  if (std::abs(inverse) > 1 && inverse == std::round(inverse)) {
    return absl::StrFormat("1/%g of the expected", inverse);
  }
  return absl::StrFormat("%.6g times the expected", factor);
}

absl::StatusOr<Candidates> Scaling(const Pair& pair) {
  // The median of the quotients of the larger elements, which a few wrong ones do not move.
  double square = 0;
  for (const float value : pair.expected.at) {
    if (std::isfinite(value)) square += double(value) * value;
  }
  const double large = std::sqrt(square / std::max<double>(1, double(pair.expected.size()))) / 4;
  std::vector<double> quotients;
  const int64_t stride = std::max<int64_t>(1, pair.expected.size() / 4096);
  for (int64_t i = 0; i < pair.expected.size(); i += stride) {
    const float e = pair.expected.at[size_t(i)], s = pair.subject.at[size_t(i)];
    if (std::isfinite(e) && std::isfinite(s) && std::abs(e) > large) {
      quotients.push_back(double(s) / e);
    }
  }
  if (quotients.empty()) return Candidates();
  std::nth_element(quotients.begin(), quotients.begin() + ptrdiff_t(quotients.size() / 2),
                   quotients.end());
  const double factor = quotients[quotients.size() / 2];
  if (factor == 0 || factor == 1 || !std::isfinite(factor)) return Candidates();
  // Whole numbers and their inverses first: what causes have.
  std::vector<double> factors;
  if (std::abs(factor) >= 0.99) factors.push_back(std::round(factor));
  if (std::abs(factor) <= 1.01) factors.push_back(1 / std::round(1 / factor));
  factors.push_back(std::round(factor * 64) / 64);
  factors.push_back(factor);
  Candidates candidates;
  for (const double one : factors) {
    if (one == 0 || one == 1 || one == -1 || std::abs(one - factor) > std::abs(factor) / 64) {
      continue;
    }
    candidates.push_back({absl::StrCat("is ", FactorText(one)), Mapped(pair.expected, [&](float e) {
                            return static_cast<float>(double(e) * one);
                          })});
  }
  return candidates;
}

std::vector<float> Transposed(const Values& values) {
  std::vector<float> transposed(values.at.size());
  for (int64_t row = 0; row < values.rows; ++row) {
    for (int64_t column = 0; column < values.columns; ++column) {
      transposed[static_cast<size_t>(column * values.rows + row)] = values(row, column);
    }
  }
  return transposed;
}

absl::StatusOr<Candidates> Transposition(const Pair& pair) {
  const Values& e = pair.expected;
  if (e.rows < 2 || e.columns < 2) return Candidates();
  Candidates candidates;
  const bool is_square = e.rows == e.columns;
  candidates.push_back(
      {is_square ? "is transposed" : "has the elements of the transpose under its own shape",
       Transposed(e)});
  return candidates;
}

absl::StatusOr<Candidates> RowOrders(const Pair& pair) {
  Candidates candidates;
  for (const bool of_rows : {true, false}) {
    std::optional<RowOrder> order = FindRowOrder(pair.expected, pair.subject, of_rows);
    if (!order.has_value()) continue;
    candidates.push_back({order->text,
                          std::move(order->predicted),
                          {},
                          of_rows ? std::move(order->from) : std::vector<int64_t>()});
  }
  return candidates;
}

bool IsBias(const std::string& name) { return absl::EndsWith(name, "bias"); }

absl::StatusOr<Candidates> KnownBias(const Pair& pair) {
  Candidates candidates;
  const Values& e = pair.expected;
  for (const NamedTensor& related : pair.of.related) {
    if (!IsBias(related.name) || related.tensor.element_count() != e.columns) continue;
    QG_ASSIGN_OR_RETURN(const Values bias, ValuesOf(related.tensor));
    const auto with = [&](double factor) {
      std::vector<float> predicted(e.at.size());
      for (size_t i = 0; i < predicted.size(); ++i) {
        predicted[i] =
            static_cast<float>(e.at[i] + factor * bias.at[i % static_cast<size_t>(e.columns)]);
      }
      return predicted;
    };
    candidates.push_back(
        {absl::StrCat("lacks the bias: the difference is ", related.name, " (bias missing)"),
         with(-1)});
    candidates.push_back({absl::StrCat("has the bias twice: the difference is ", related.name,
                                       " (bias added twice)"),
                          with(1)});
  }
  return candidates;
}

absl::StatusOr<Candidates> Constants(const Pair& pair) {
  Candidates candidates;
  const Values& e = pair.expected;
  for (const bool by_column : {true, false}) {
    const int64_t lines = by_column ? e.columns : e.rows, length = by_column ? e.rows : e.columns;
    if (length < 8) continue;
    std::vector<float> predicted(e.at.size());
    std::vector<double> differences(static_cast<size_t>(length));
    double sum = 0;
    for (int64_t line = 0; line < lines; ++line) {
      const auto index = [&](int64_t i) {
        return static_cast<size_t>(by_column ? i * e.columns + line : line * e.columns + i);
      };
      for (int64_t i = 0; i < length; ++i) {
        const double difference = double(pair.subject.at[index(i)]) - e.at[index(i)];
        differences[size_t(i)] = std::isfinite(difference) ? difference : 0;
      }
      std::nth_element(differences.begin(), differences.begin() + length / 2, differences.end());
      const double constant = differences[size_t(length / 2)];
      sum += std::abs(constant);
      for (int64_t i = 0; i < length; ++i) {
        predicted[index(i)] = static_cast<float>(e.at[index(i)] + constant);
      }
    }
    if (sum == 0) continue;
    const std::string each = by_column ? "column" : "row";
    candidates.push_back(
        {absl::StrCat("differs by a constant per ", each,
                      by_column ? ", as of a bias missing or added twice"
                                : ", as of a bias along the other dimension"),
         std::move(predicted),
         {absl::StrFormat("mean size of the constants: %.6g", sum / double(lines))}});
  }
  return candidates;
}

absl::StatusOr<Candidates> Mistaken(const Pair& pair) {
  Candidates candidates;
  const Values& e = pair.expected;
  for (const NamedTensor& related : pair.of.related) {
    if (related.tensor.rows() != e.rows || related.tensor.columns() != e.columns ||
        !HasFp32Values(related.tensor.dtype())) {
      continue;
    }
    QG_ASSIGN_OR_RETURN(const Values other, ValuesOf(related.tensor));
    candidates.push_back({absl::StrCat("is ", related.name), other.at});
    const auto with = [&](double factor) {
      std::vector<float> predicted(e.at.size());
      for (size_t i = 0; i < predicted.size(); ++i) {
        predicted[i] = static_cast<float>(e.at[i] + factor * other.at[i]);
      }
      return predicted;
    };
    candidates.push_back({absl::StrCat("has ", related.name, " added once more"), with(1)});
    candidates.push_back({absl::StrCat("lacks the summand ", related.name), with(-1)});
  }
  return candidates;
}

absl::StatusOr<Candidates> Zeros(const Pair& pair) {
  Candidates candidates;
  const Values &e = pair.expected, &s = pair.subject;
  for (const bool of_rows : {true, false}) {
    const int64_t lines = of_rows ? e.rows : e.columns, length = of_rows ? e.columns : e.rows;
    int64_t first = -1, last = -1;
    for (int64_t line = 0; line < lines; ++line) {
      bool is_zero = true, was_zero = true;
      for (int64_t i = 0; i < length && is_zero; ++i) {
        is_zero = (of_rows ? s(line, i) : s(i, line)) == 0;
        was_zero = was_zero && (of_rows ? e(line, i) : e(i, line)) == 0;
      }
      if (!is_zero || was_zero) continue;
      if (first < 0) first = line;
      last = line;
    }
    if (first < 0) continue;
    std::vector<float> predicted = e.at;
    for (int64_t line = first; line <= last; ++line) {
      for (int64_t i = 0; i < length; ++i) {
        predicted[static_cast<size_t>(of_rows ? line * e.columns + i : i * e.columns + line)] = 0;
      }
    }
    const char* each = of_rows ? "rows" : "columns";
    candidates.push_back({first == 0 && last == lines - 1 ? "is 0 everywhere"
                          : last == lines - 1
                              ? absl::StrCat("is 0 in ", each, " from ", first, " on")
                              : absl::StrCat("is 0 in ", each, " ", first, " to ", last),
                          std::move(predicted)});
  }
  return candidates;
}

/// From the most certain: what fewer parameters of the data decide comes first.
const std::vector<Family>& Families() {
  static const std::vector<Family> families = {
      {"rounded or truncated to another dtype", Roundings},
      {"negated", Negation},
      {"scaled by a constant", Scaling},
      {"transposed", Transposition},
      {"rows or columns permuted, rotated, or halves swapped", RowOrders},
      {"the bias missing or added twice", KnownBias},
      {"another tensor in its place, added or missing", Mistaken},
      {"rows or columns of zeros", Zeros},
      {"a constant per column or row", Constants},
  };
  return families;
}

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
    if (was == 0 && is == 0) ++zeros;
    if (std::isnan(was) && std::isnan(is)) ++nans;
    const int bytes = DTypeBytes(expected.dtype());
    const int64_t distance = OrderOf(left, bytes) - OrderOf(right, bytes);
    if (std::isfinite(was) && std::isfinite(is) && std::abs(distance) == 1) ++steps;
  }
  if (differing == 0) return std::nullopt;
  Cause cause;
  cause.fit = {FitLevel::kBits, e.size(), 0, differing};
  if (zeros == differing) {
    cause.predicate = absl::StrCat("differs in the sign of ", GroupedDigits(zeros), " zeros only");
  } else if (nans == differing) {
    cause.predicate = absl::StrCat("differs in the bits of ", GroupedDigits(nans), " NaN only");
  } else if (steps + zeros == differing) {
    cause.predicate = absl::StrCat("differs by rounding only: 1 ulp in ", GroupedDigits(steps),
                                   " of ", GroupedDigits(e.size()), " elements");
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
absl::StatusOr<std::optional<Cause>> CauseOfInputs(const Pair& pair) {
  // One side has them, and the other has numbers there.
  const NonFiniteLines in_subject = NonFiniteOf(pair.subject);
  const bool has_subject = in_subject.count() > 0;
  const NonFiniteLines found = has_subject ? in_subject : NonFiniteOf(pair.expected);
  if (found.count() == 0) return std::optional<Cause>();
  int64_t differing = 0;
  for (size_t i = 0; i < pair.subject.at.size(); ++i) {
    const float s = pair.subject.at[i], e = pair.expected.at[i];
    const bool same_bits = s == e && std::signbit(s) == std::signbit(e);
    if (same_bits || (std::isnan(s) && std::isnan(e))) continue;
    if (std::isfinite(has_subject ? s : e)) return std::optional<Cause>();
    ++differing;
  }
  for (const NamedTensor& input : pair.of.inputs) {
    if (!HasFp32Values(input.tensor.dtype())) continue;
    QG_ASSIGN_OR_RETURN(const Values values, ValuesOf(input.tensor));
    const NonFiniteLines given = NonFiniteOf(values);
    const bool by_row = values.rows == pair.subject.rows && given.rows == found.rows;
    const bool by_column = values.rows == pair.subject.columns && given.rows == found.columns;
    if (given.count() == 0 || !(by_row || by_column)) continue;
    Cause cause;
    cause.fit = {FitLevel::kBits, pair.subject.size(), 0, differing};
    const std::string because =
        absl::StrCat(given.Text(), " in ", input.name, ", so ", GroupedDigits(found.count()),
                     " in ", has_subject ? "" : "the expected ", pair.of.name);
    // NaN on both sides, of other bits.
    cause.predicate = differing == 0 ? absl::StrCat("differs in the bits of NaN only: ", because)
                      : has_subject  ? absl::StrCat("has ", found.Text(), ": ", because)
                                    : absl::StrCat("has numbers where NaN are expected: ", because);
    return std::optional<Cause>(std::move(cause));
  }
  return std::optional<Cause>();
}

/// Shapes or dtypes that differ: what they and the bytes say.
absl::StatusOr<TensorFindings> FindCauseOfType(const TensorCase& of) {
  const Tensor &e = of.expected, &s = of.subject;
  TensorFindings findings;
  const bool same_bytes =
      e.byte_size() == s.byte_size() && std::memcmp(e.data(), s.data(), e.byte_size()) == 0;
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
  } else if (s.shape() == Shape(e.shape().rbegin(), e.shape().rend()) && e.rank() == 2 &&
             HasFp32Values(e.dtype()) && HasFp32Values(s.dtype()) &&
             e.element_count() <= kDiagnosedElementsMax) {
    findings.tried.push_back("transposed");
    QG_ASSIGN_OR_RETURN(const Values expected, ValuesOf(e));
    QG_ASSIGN_OR_RETURN(const Values subject, ValuesOf(s));
    std::vector<float> predicted = Transposed(expected);
    QG_RETURN_IF_ERROR(RoundTo(s.dtype(), predicted));
    // Nothing is expected under this shape, so that the fit is held against zeros.
    Values nothing = subject;
    std::fill(nothing.at.begin(), nothing.at.end(), 0.0f);
    cause.fit = FitOf(predicted, subject, nothing);
    if (!cause.fit.fits()) return findings;
    cause.predicate = absl::StrCat("is transposed: ", ShapeText(s.shape()), " in place of ",
                                   ShapeText(e.shape()));
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

}  // namespace

std::string PlaceText(const Values& expected, const Values& subject) {
  int64_t count = 0, lines[4] = {expected.rows, -1, expected.columns, -1};
  for (int64_t row = 0; row < expected.rows; ++row) {
    for (int64_t column = 0; column < expected.columns; ++column) {
      if (SameValue(expected(row, column), subject(row, column))) continue;
      ++count;
      lines[0] = std::min(lines[0], row);
      lines[1] = row;
      lines[2] = std::min(lines[2], column);
      lines[3] = std::max(lines[3], column);
    }
  }
  std::string text = absl::StrCat(GroupedDigits(count), " of ", GroupedDigits(expected.size()),
                                  count == 1 ? " elements differs" : " elements differ");
  if (count == 0 || count == expected.size()) return text;
  const auto range = [&](const char* each, int64_t first, int64_t last, int64_t size) {
    if (first == 0 && last == size - 1) return absl::StrCat("all ", each);
    if (last == size - 1) return absl::StrCat(each, " from ", first, " on");
    return absl::StrCat(each, " ", first, " to ", last);
  };
  absl::StrAppend(&text, ", in ", range("rows", lines[0], lines[1], expected.rows), " and ",
                  range("columns", lines[2], lines[3], expected.columns));
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
            : absl::StrCat("all: elements of ", std::string(DTypeName(e.dtype()))));
    return findings;
  }
  QG_ASSIGN_OR_RETURN(const Values expected, ValuesOf(e));
  QG_ASSIGN_OR_RETURN(const Values subject, ValuesOf(s));
  findings.place = PlaceText(expected, subject);
  const Pair pair{of, expected, subject};
  QG_ASSIGN_OR_RETURN(findings.cause, CauseOfInputs(pair));
  if (findings.cause.has_value()) return findings;
  if (e.dtype() == s.dtype()) {
    findings.cause = CauseOfBits(e, s, expected, subject);
    if (findings.cause.has_value()) return findings;
    findings.tried.push_back("signs of zero, bits of NaN, or 1 ulp only");
  } else if (e.byte_size() == s.byte_size()) {
    QG_ASSIGN_OR_RETURN(findings, FindCauseOfType(of));
    if (findings.cause.has_value()) return findings;
    findings.place = PlaceText(expected, subject);
  }
  for (const Family& family : Families()) {
    if (budget.IsSpent()) {
      findings.not_tried.push_back(absl::StrCat(family.name, " (no time)"));
      continue;
    }
    QG_ASSIGN_OR_RETURN(Candidates candidates, family.candidates(pair));
    bool has_fit = false;
    for (Candidate& candidate : candidates) {
      QG_RETURN_IF_ERROR(RoundTo(s.dtype(), candidate.predicted));
      const Fit fit = FitOf(candidate.predicted, subject, expected);
      if (!fit.fits()) continue;
      has_fit = true;
      if (findings.cause.has_value() && !IsBetterFit(fit, findings.cause->fit)) continue;
      findings.cause = Cause{candidate.predicate, fit, candidate.figures, candidate.row_order};
    }
    if (!has_fit) findings.tried.push_back(family.name);
    if (findings.cause.has_value() && findings.cause->fit.level == FitLevel::kBits) break;
  }
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
    diagnosis.sentence =
        absl::StrCat(of.name, " ", findings.cause->predicate, findings.cause->fit.Suffix());
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
