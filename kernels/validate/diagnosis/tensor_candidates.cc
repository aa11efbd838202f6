#include "kernels/validate/diagnosis/tensor_candidates.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "kernels/compare/element_values.h"
#include "kernels/validate/diagnosis/row_order.h"

namespace quantgate {
namespace {

absl::Status Roundings(const Pair& pair, const CandidateTaker& take) {
  const auto expected = [&pair](int64_t i) { return pair.expected.at[size_t(i)]; };
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF8E4M3, DType::kF8E5M2}) {
    if (DTypeBytes(dtype) >= DTypeBytes(pair.expected.dtype)) continue;
    Candidate rounded{absl::StrCat("is the expected rounded to ", std::string(DTypeName(dtype))),
                      expected};
    rounded.through = dtype;
    QG_RETURN_IF_ERROR(take(std::move(rounded)));
  }
  if (pair.expected.dtype != DType::kF32) return absl::OkStatus();
  return take({"is the expected truncated to bf16", [&pair](int64_t i) {
                 const auto bits = std::bit_cast<uint32_t>(pair.expected.at[size_t(i)]);
                 return std::bit_cast<float>(bits & 0xFFFF0000u);
               }});
}

absl::Status Negation(const Pair& pair, const CandidateTaker& take) {
  return take({"is negated", [&pair](int64_t i) { return -pair.expected.at[size_t(i)]; }});
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

absl::Status ScaleByConstant(const Pair& pair, const CandidateTaker& take) {
  // The median of the quotients of the larger elements, which a few wrong ones do not move.
  const Values &expected = pair.expected, &subject = pair.subject;
  const std::vector<int64_t>& sample = pair.places.spread;
  double square = 0;
  for (const int64_t i : sample) {
    const double value = expected.at[size_t(i)];
    if (std::isfinite(value)) square += value * value;
  }
  const double large = std::sqrt(square / std::max<double>(1, double(sample.size()))) / 4;
  std::vector<double> quotients;
  for (const int64_t i : sample) {
    const float e = expected.at[size_t(i)], s = subject.at[size_t(i)];
    if (std::isfinite(e) && std::isfinite(s) && std::abs(e) > large) {
      quotients.push_back(double(s) / e);
    }
  }
  if (quotients.empty()) return absl::OkStatus();
  std::nth_element(quotients.begin(), quotients.begin() + ptrdiff_t(quotients.size() / 2),
                   quotients.end());
  const double factor = quotients[quotients.size() / 2];
  if (factor == 0 || factor == 1 || !std::isfinite(factor)) return absl::OkStatus();
  // Whole numbers and their inverses first: what causes have.
  std::vector<double> factors;
  if (std::abs(factor) >= 0.99) factors.push_back(std::round(factor));
  if (std::abs(factor) <= 1.01) factors.push_back(1 / std::round(1 / factor));
  factors.push_back(std::round(factor * 64) / 64);
  factors.push_back(factor);
  for (size_t i = 0; i < factors.size(); ++i) {
    const double one = factors[i];
    if (one == 0 || one == 1 || one == -1 || std::abs(one - factor) > std::abs(factor) / 64 ||
        std::find(factors.begin(), factors.begin() + ptrdiff_t(i), one) !=
            factors.begin() + ptrdiff_t(i)) {
      continue;
    }
    QG_RETURN_IF_ERROR(take({absl::StrCat("is ", FactorText(one)), [&expected, one](int64_t at) {
                               return static_cast<float>(double(expected.at[size_t(at)]) * one);
                             }}));
  }
  return absl::OkStatus();
}

absl::Status Transposition(const Pair& pair, const CandidateTaker& take) {
  const Values& e = pair.expected;
  if (e.rows < 2 || e.columns < 2) return absl::OkStatus();
  const bool is_square = e.rows == e.columns;
  return take(
      {is_square ? "is transposed" : "has the elements of the transpose under its own shape",
       TransposedOf(e)});
}

absl::Status RowOrders(const Pair& pair, const CandidateTaker& take) {
  for (const bool of_rows : {true, false}) {
    if (pair.is_time_spent()) return absl::OkStatus();
    const std::optional<RowOrder> order = FindRowOrder(pair.expected, pair.subject, of_rows);
    if (!order.has_value()) continue;
    const auto from = std::make_shared<const std::vector<int64_t>>(order->from);
    Candidate candidate{order->text, [&pair, of_rows, from](int64_t i) {
                          const int64_t columns = pair.expected.columns;
                          const int64_t row = i / columns, column = i % columns;
                          return of_rows ? pair.expected((*from)[size_t(row)], column)
                                         : pair.expected(row, (*from)[size_t(column)]);
                        }};
    if (of_rows && order->is_permutation) candidate.row_order = *from;
    QG_RETURN_IF_ERROR(take(std::move(candidate)));
  }
  return absl::OkStatus();
}

bool IsBias(const std::string& name) { return absl::EndsWith(name, "bias"); }

absl::Status KnownBias(const Pair& pair, const CandidateTaker& take) {
  const Values& e = pair.expected;
  for (const NamedTensor& related : pair.of.related) {
    if (!IsBias(related.name) || related.tensor.element_count() != e.columns) continue;
    QG_ASSIGN_OR_RETURN(const Values bias, ValuesOf(related.tensor));
    const auto with = [&](double factor) {
      return [&e, bias, factor](int64_t i) {
        return static_cast<float>(e.at[size_t(i)] + factor * bias.at[size_t(i % e.columns)]);
      };
    };
    QG_RETURN_IF_ERROR(
        take({absl::StrCat("lacks the bias: the difference is ", related.name, " (bias missing)"),
              with(-1)}));
    QG_RETURN_IF_ERROR(take({absl::StrCat("has the bias twice: the difference is ", related.name,
                                          " (bias added twice)"),
                             with(1)}));
  }
  return absl::OkStatus();
}

/// The difference of each line as its median, found when it is asked for.
class LineConstants {
 public:
  LineConstants(const Pair& pair, bool by_column)
      : pair_(pair),
        by_column_(by_column),
        length_(by_column ? pair.expected.rows : pair.expected.columns),
        known_(size_t(by_column ? pair.expected.columns : pair.expected.rows),
               std::numeric_limits<double>::quiet_NaN()) {}

  int64_t length() const { return length_; }
  int64_t LineOf(int64_t i) const {
    return by_column_ ? i % pair_.expected.columns : i / pair_.expected.columns;
  }
  int64_t IndexOf(int64_t line, int64_t i) const {
    return by_column_ ? i * pair_.expected.columns + line : line * pair_.expected.columns + i;
  }
  double Of(int64_t line) {
    double& constant = known_[size_t(line)];
    if (!std::isnan(constant)) return constant;
    differences_.resize(size_t(length_));
    for (int64_t i = 0; i < length_; ++i) {
      const auto index = size_t(IndexOf(line, i));
      const double difference = double(pair_.subject.at[index]) - pair_.expected.at[index];
      differences_[size_t(i)] = std::isfinite(difference) ? difference : 0;
    }
    std::nth_element(differences_.begin(), differences_.begin() + length_ / 2, differences_.end());
    return constant = differences_[size_t(length_ / 2)];
  }
  /// Whether the constants of a few lines that differ give most of their elements as far as to half
  /// of the difference. What fits at all does.
  bool IsLikely() {
    constexpr size_t kLines = 8;
    const std::vector<int64_t>& places = pair_.places.spread;
    int64_t near = 0, differing = 0;
    for (size_t at = 0; at < places.size(); at += std::max<size_t>(1, places.size() / kLines)) {
      const int64_t line = LineOf(places[at]);
      const double constant = Of(line);
      for (int64_t i = 0; i < length_; ++i) {
        const auto index = size_t(IndexOf(line, i));
        const double e = pair_.expected.at[index], s = pair_.subject.at[index];
        if (SameValue(float(e), float(s))) continue;
        ++differing;
        near += std::abs(s - e - constant) <= std::abs(s - e) / 2 ? 1 : 0;
      }
    }
    return 2 * near > differing;
  }

 private:
  const Pair& pair_;
  const bool by_column_;
  const int64_t length_;
  std::vector<double> known_, differences_;
};

absl::Status Constants(const Pair& pair, const CandidateTaker& take) {
  constexpr int64_t kLengthMin = 8;
  for (const bool by_column : {true, false}) {
    if (pair.is_time_spent()) return absl::OkStatus();
    const auto constants = std::make_shared<LineConstants>(pair, by_column);
    if (constants->length() < kLengthMin || !constants->IsLikely()) continue;
    const std::string each = by_column ? "column" : "row";
    Candidate candidate{absl::StrCat("differs by a constant per ", each,
                                     by_column ? ", as of a bias missing or added twice"
                                               : ", as of a bias along the other dimension"),
                        [&pair, constants](int64_t i) {
                          return static_cast<float>(pair.expected.at[size_t(i)] +
                                                    constants->Of(constants->LineOf(i)));
                        }};
    double sum = 0;
    for (const int64_t i : pair.places.spread) {
      sum += std::abs(constants->Of(constants->LineOf(i)));
    }
    candidate.figures = {absl::StrFormat("mean size of the constants where it differs: %.6g",
                                         sum / double(pair.places.spread.size()))};
    QG_RETURN_IF_ERROR(take(std::move(candidate)));
  }
  return absl::OkStatus();
}

absl::Status Mistaken(const Pair& pair, const CandidateTaker& take) {
  const Values& e = pair.expected;
  for (const NamedTensor& related : pair.of.related) {
    if (related.tensor.rows() != e.rows || related.tensor.columns() != e.columns ||
        !HasFp32Values(related.tensor.dtype())) {
      continue;
    }
    const Tensor& tensor = related.tensor;
    const auto other = [tensor](int64_t i) {
      double value;
      DecodeValues(tensor, i, 1, &value);
      return static_cast<float>(value);
    };
    const auto with = [&](double factor) {
      return [&e, other, factor](int64_t i) {
        return static_cast<float>(e.at[size_t(i)] + factor * other(i));
      };
    };
    QG_RETURN_IF_ERROR(take({absl::StrCat("is ", related.name), other}));
    QG_RETURN_IF_ERROR(take({absl::StrCat("has ", related.name, " added once more"), with(1)}));
    QG_RETURN_IF_ERROR(take({absl::StrCat("lacks the summand ", related.name), with(-1)}));
  }
  return absl::OkStatus();
}

absl::Status Zeros(const Pair& pair, const CandidateTaker& take) {
  const Values &e = pair.expected, &s = pair.subject;
  for (const bool of_rows : {true, false}) {
    if (pair.is_time_spent()) return absl::OkStatus();
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
    const char* each = of_rows ? "rows" : "columns";
    Candidate candidate{first == 0 && last == lines - 1 ? "is 0 everywhere"
                        : last == lines - 1 && first != last
                            ? absl::StrCat("is 0 in ", each, " from ", first, " on")
                        : first == last
                            ? absl::StrCat("is 0 in ", of_rows ? "row " : "column ", first)
                            : absl::StrCat("is 0 in ", each, " ", first, " to ", last),
                        [&e, of_rows, first, last](int64_t i) {
                          const int64_t line = of_rows ? i / e.columns : i % e.columns;
                          return line >= first && line <= last ? 0.0f : e.at[size_t(i)];
                        }};
    candidate.needs_no_evidence = true;
    QG_RETURN_IF_ERROR(take(std::move(candidate)));
  }
  return absl::OkStatus();
}

}  // namespace

std::function<float(int64_t)> TransposedOf(const Values& values) {
  return [&values](int64_t i) { return values(i % values.rows, i / values.rows); };
}

const std::vector<Family>& Families() {
  static const std::vector<Family> families = {
      {"rows or columns of zeros", Zeros},
      {"rounded or truncated to another dtype", Roundings},
      {"negated", Negation},
      {"scaled by a constant", ScaleByConstant},
      {"transposed", Transposition},
      {"rows or columns permuted, rotated, or halves swapped", RowOrders},
      {"the bias missing or added twice", KnownBias},
      {"another tensor in its place, added or missing", Mistaken},
      {"a constant per column or row", Constants, true},
  };
  return families;
}

DifferingPlaces PlacesOf(const Values& expected, const Values& subject, int64_t changed) {
  DifferingPlaces places;
  const int64_t chunk = (changed + kScreenedPlaces - 1) / kScreenedPlaces;
  int64_t at = 0, largest = -1;
  double largest_size = -1;
  uint64_t state = 0x9E3779B97F4A7C15u;
  int64_t chosen = 0;
  for (int64_t i = 0; i < expected.size(); ++i) {
    const float e = expected.at[size_t(i)], s = subject.at[size_t(i)];
    if (SameValue(e, s)) continue;
    if (at == 0) {
      // One place of each chunk, at random, lest a step that divides the columns meet one column.
      state = state * 6364136223846793005u + 1442695040888963407u;
      chosen = static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(chunk));
    }
    const double size = std::abs(double(s) - e);
    if (largest < 0 || size > largest_size) {
      largest = i;
      largest_size = size;
    }
    if (at == chosen) places.spread.push_back(i);
    if (++at == chunk) {
      places.largest.push_back(largest);
      at = 0;
      largest = -1;
      largest_size = -1;
    }
  }
  if (largest >= 0) places.largest.push_back(largest);
  return places;
}

}  // namespace quantgate
