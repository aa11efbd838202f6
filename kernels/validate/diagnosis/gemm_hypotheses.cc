#include "kernels/validate/diagnosis/gemm_hypotheses.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/grouped_digits.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"
#include "kernels/gemm/epilogue.h"
#include "kernels/validate/diagnosis/gemm_sample.h"
#include "kernels/validate/diagnosis/tensor_hypotheses.h"

namespace quantgate {
namespace {

/// What the epilogue does, where a mistake may lie.
struct EpilogueRule {
  float alpha = 1, beta = 0;
  float bias_factor = 1;
  bool is_bias_by_row = false;
};

enum class OutputRounding { kOnce, kF16First, kBF16First, kTruncated };

class GemmDiagnoser {
 public:
  GemmDiagnoser(const GemmDesc& desc, const Tensor& d, const DiagnosisBudget& budget)
      : desc_(desc), d_(d), budget_(budget) {}

  absl::StatusOr<Diagnosis> Diagnose();

 private:
  absl::Status Prepare();
  absl::Status TryAll();
  absl::Status TryOperands(bool is_a);
  absl::Status TryK();
  absl::Status TryEpilogue();
  absl::Status TryRoundings();
  absl::Status TryPartialSums();
  absl::Status TryResult();
  /// What d would be of these accumulators.
  absl::StatusOr<std::vector<float>> Finished(const std::vector<float>& sums,
                                              const EpilogueRule& rule,
                                              OutputRounding rounding = OutputRounding::kOnce);
  absl::Status Try(const std::string& what, std::vector<float> predicted);
  absl::Status TrySums(const std::string& what, const std::vector<float>& sums) {
    QG_ASSIGN_OR_RETURN(std::vector<float> predicted, Finished(sums, rule_));
    return Try(what, std::move(predicted));
  }
  bool IsDone(const std::string& what);

  const GemmDesc& desc_;
  const Tensor& d_;
  const DiagnosisBudget& budget_;
  GemmShape shape_{};
  GemmSample sample_;
  std::optional<SampledOperand> a_, b_;
  ElementRule a_rule_, b_rule_;
  EpilogueRule rule_;
  std::vector<float> sums_;  ///< Of the operands as they are.
  Values right_, found_;
  Diagnosis diagnosis_;
  struct Best {
    std::vector<std::string> whats;
    Fit fit;
    std::vector<float> predicted;
  };
  std::optional<Best> best_;
};

std::vector<int64_t> SpreadLines(int64_t size, int64_t count) {
  std::vector<int64_t> lines;
  const int64_t n = std::min(size, count);
  for (int64_t i = 0; i < n; ++i) lines.push_back(n == 1 ? 0 : i * (size - 1) / (n - 1));
  return lines;
}

absl::Status GemmDiagnoser::Prepare() {
  QG_ASSIGN_OR_RETURN(shape_, CheckGemm(desc_));
  QG_ASSIGN_OR_RETURN(OperandView a, ViewOfA(desc_, shape_));
  QG_ASSIGN_OR_RETURN(OperandView b, ViewOfB(desc_, shape_));
  QG_ASSIGN_OR_RETURN(a_, SampledOperand::Create(desc_.a, std::move(a)));
  QG_ASSIGN_OR_RETURN(b_, SampledOperand::Create(desc_.b, std::move(b)));
  a_rule_ = [this](int64_t row, int64_t k) { return a_->Value(row, k); };
  b_rule_ = [this](int64_t row, int64_t k) { return b_->Value(row, k); };
  // One side of the sample, so that a square result has the same rows as columns.
  const auto side = static_cast<int64_t>(std::sqrt(double(kGemmProductsMax) / double(shape_.k)));
  sample_ = {SpreadLines(shape_.m, std::max<int64_t>(side, 8)),
             SpreadLines(shape_.n, std::max<int64_t>(side, 8)), shape_.k};
  const bool is_nv16 = desc_.a.scaling == ScaleMode::kNv16;
  rule_ = {is_nv16 ? Nvfp4Coefficient(desc_) : desc_.alpha, desc_.beta};
  sums_ = sample_.Sums(a_rule_, b_rule_);
  found_ = {d_.dtype(), int64_t(sample_.rows.size()), int64_t(sample_.columns.size()), {}};
  QG_ASSIGN_OR_RETURN(const Values all, ValuesOf(d_));
  for (const int64_t row : sample_.rows) {
    for (const int64_t column : sample_.columns) found_.at.push_back(all(row, column));
  }
  right_ = found_;
  QG_ASSIGN_OR_RETURN(right_.at, Finished(sums_, rule_));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> GemmDiagnoser::Finished(const std::vector<float>& sums,
                                                           const EpilogueRule& rule,
                                                           OutputRounding rounding) {
  std::vector<float> values(sums.size());
  std::vector<float> bias, c;
  if (desc_.bias.has_value()) {
    QG_ASSIGN_OR_RETURN(const Values given, ValuesOf(desc_.bias));
    bias = given.at;
  }
  if (desc_.c.has_value() && rule.beta != 0) {
    QG_ASSIGN_OR_RETURN(const Values given, ValuesOf(desc_.c));
    c = given.at;
  }
  for (size_t i = 0; i < sample_.rows.size(); ++i) {
    for (size_t j = 0; j < sample_.columns.size(); ++j) {
      const size_t at = i * sample_.columns.size() + j;
      float value = rule.alpha * sums[at];
      if (!c.empty()) {
        value += rule.beta * c[size_t(sample_.rows[i] * shape_.n + sample_.columns[j])];
      }
      if (!bias.empty()) {
        const int64_t line = rule.is_bias_by_row ? sample_.rows[i] : sample_.columns[j];
        value += rule.bias_factor * bias[size_t(line)];
      }
      values[at] = value;
    }
  }
  if (rounding == OutputRounding::kF16First) QG_RETURN_IF_ERROR(RoundTo(DType::kF16, values));
  if (rounding == OutputRounding::kBF16First) QG_RETURN_IF_ERROR(RoundTo(DType::kBF16, values));
  if (rounding == OutputRounding::kTruncated) {
    for (float& value : values) {
      value = std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xFFFF0000u);
    }
  }
  QG_RETURN_IF_ERROR(RoundTo(d_.dtype(), values));
  return values;
}

/// Whether the time is spent. Where the bits were found the rest is tried too: another mistake may
/// give the same ones.
bool GemmDiagnoser::IsDone(const std::string& what) {
  if (!budget_.IsSpent()) return false;
  diagnosis_.not_tried.push_back(absl::StrCat(what, " (no time)"));
  return true;
}

absl::Status GemmDiagnoser::Try(const std::string& what, std::vector<float> predicted) {
  const Fit fit = FitOf(predicted, found_, right_);
  if (!fit.fits()) {
    diagnosis_.tried.push_back(what);
    return absl::OkStatus();
  }
  // Mistakes that give the same numbers are told together.
  const auto same = [&] {
    return best_->predicted.size() == predicted.size() &&
           std::equal(predicted.begin(), predicted.end(), best_->predicted.begin(), SameValue);
  };
  if (best_.has_value() && same()) {
    best_->whats.push_back(what);
  } else if (!best_.has_value() || fit.level < best_->fit.level ||
             (fit.level == best_->fit.level && fit.residual * 4 < best_->fit.residual)) {
    best_ = Best{{what}, fit, std::move(predicted)};
  }
  return absl::OkStatus();
}

absl::Status GemmDiagnoser::TryOperands(bool is_a) {
  const SampledOperand &own = is_a ? *a_ : *b_, &other = is_a ? *b_ : *a_;
  const std::string name = is_a ? "a" : "b", other_name = is_a ? "b" : "a";
  const auto attempt = [&](const std::string& what, const ElementRule& rule) -> absl::Status {
    if (IsDone(what)) return absl::OkStatus();
    return TrySums(what, is_a ? sample_.Sums(rule, b_rule_) : sample_.Sums(a_rule_, rule));
  };
  if (own.has_scales()) {
    const bool same_shape = own.rows() == other.rows() ||
                            !(own.has_block_scales() || desc_.a.scaling == ScaleMode::kOuter);
    if (other.has_scales() && desc_.a.scaling == desc_.b.scaling && same_shape) {
      QG_RETURN_IF_ERROR(
          attempt(absl::StrCat(name, " has the scale of ", other_name, " (the other operand's)"),
                  [&](int64_t row, int64_t k) { return own.Code(row, k) * other.Scale(row, k); }));
    }
    QG_RETURN_IF_ERROR(
        attempt(absl::StrCat("the scale of ", name, " is applied twice"),
                [&](int64_t row, int64_t k) { return own.Value(row, k) * own.Scale(row, k); }));
    QG_RETURN_IF_ERROR(attempt(absl::StrCat("the scale of ", name, " is not applied"),
                               [&](int64_t row, int64_t k) { return own.Code(row, k); }));
  }
  if (own.has_block_scales()) {
    QG_RETURN_IF_ERROR(attempt(
        absl::StrCat("the block scales of ", name, " are read as if they lay K-major"),
        [&](int64_t row, int64_t k) { return own.Code(row, k) * own.ScaleOfKMajor(row, k); }));
    QG_RETURN_IF_ERROR(attempt(
        absl::StrCat("the block scales of ", name, " are given K-major, not row after row"),
        [&](int64_t row, int64_t k) { return own.Code(row, k) * own.ScaleIfKMajor(row, k); }));
  }
  if (IsFp8(own.dtype())) {
    const bool is_e4m3 = own.dtype() == DType::kF8E4M3;
    const std::vector<std::string> formats =
        is_e4m3 ? std::vector<std::string>{"e5m2", "e4m3fnuz"} : std::vector<std::string>{"e4m3"};
    for (const std::string& format : formats) {
      QG_RETURN_IF_ERROR(attempt(
          absl::StrCat("the codes of ", name, " were read as ", format),
          [&](int64_t row, int64_t k) { return own.CodeIn(format, row, k) * own.Scale(row, k); }));
    }
  }
  QG_RETURN_IF_ERROR(attempt(absl::StrCat("operand ", name, " is transposed: read K-major"),
                             [&](int64_t row, int64_t k) {
                               const int64_t index = row * own.k() + k;
                               return own.Value(index % own.rows(), index / own.rows());
                             }));
  for (const int64_t by : {1, -1, 2, -2, 4, -4, 8, -8, 16, -16, 32, -32, 64, -64, 128, -128}) {
    if (std::abs(by) >= own.rows()) continue;
    QG_RETURN_IF_ERROR(
        attempt(absl::StrCat(is_a ? "rows" : "columns", " of the result are those of a neighbour, ",
                             std::abs(by), by > 0 ? " further on" : " before"),
                [&](int64_t row, int64_t k) {
                  return own.Value((row + by + own.rows()) % own.rows(), k);
                }));
  }
  return absl::OkStatus();
}

absl::Status GemmDiagnoser::TryK() {
  const auto with = [&](const std::vector<float>& part, float sign) {
    std::vector<float> sums(sums_.size());
    for (size_t i = 0; i < sums.size(); ++i) sums[i] = sums_[i] + sign * part[i];
    return sums;
  };
  for (const int64_t length : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
    if (length >= shape_.k) continue;
    const std::string text = length == 1 ? "element" : absl::StrCat(length, " elements");
    const std::string what = absl::StrCat("the tail of K is missing: the last ", text);
    if (IsDone(what)) return absl::OkStatus();
    QG_RETURN_IF_ERROR(TrySums(what, sample_.Sums(a_rule_, b_rule_, 0, shape_.k - length)));
    QG_RETURN_IF_ERROR(TrySums(absl::StrCat("the head of K is missing: the first ", text),
                               sample_.Sums(a_rule_, b_rule_, length, shape_.k)));
    QG_RETURN_IF_ERROR(TrySums(absl::StrCat("a stretch of K is counted twice: the first ", text),
                               with(sample_.Sums(a_rule_, b_rule_, 0, length), 1)));
    QG_RETURN_IF_ERROR(
        TrySums(absl::StrCat("a stretch of K is counted twice: the last ", text),
                with(sample_.Sums(a_rule_, b_rule_, shape_.k - length, shape_.k), 1)));
  }
  return absl::OkStatus();
}

absl::Status GemmDiagnoser::TryEpilogue() {
  const auto attempt = [&](const std::string& what, const EpilogueRule& rule) -> absl::Status {
    if (IsDone(what)) return absl::OkStatus();
    QG_ASSIGN_OR_RETURN(std::vector<float> predicted, Finished(sums_, rule));
    return Try(what, std::move(predicted));
  };
  const auto changed = [&](auto change) {
    EpilogueRule rule = rule_;
    change(rule);
    return rule;
  };
  const float alpha = desc_.alpha, beta = desc_.beta;
  if (alpha != 1 && alpha != 0) {
    QG_RETURN_IF_ERROR(
        attempt("alpha is missing", changed([&](EpilogueRule& rule) { rule.alpha /= alpha; })));
    QG_RETURN_IF_ERROR(attempt("alpha is applied twice",
                               changed([&](EpilogueRule& rule) { rule.alpha *= alpha; })));
    if (desc_.bias.has_value()) {
      QG_RETURN_IF_ERROR(attempt("alpha is applied to the bias too",
                                 changed([&](EpilogueRule& r) { r.bias_factor = alpha; })));
    }
  }
  if (beta != 0) {
    QG_RETURN_IF_ERROR(
        attempt("beta: c is missing", changed([](EpilogueRule& rule) { rule.beta = 0; })));
    QG_RETURN_IF_ERROR(
        attempt("beta: c is added twice", changed([](EpilogueRule& rule) { rule.beta *= 2; })));
    if (beta != 1) {
      QG_RETURN_IF_ERROR(attempt("beta: c is added without its factor",
                                 changed([](EpilogueRule& rule) { rule.beta = 1; })));
    }
  }
  if (desc_.bias.has_value()) {
    for (const float times : {0.0f, 2.0f}) {
      QG_RETURN_IF_ERROR(attempt(times == 0 ? "the bias is missing" : "the bias is added twice",
                                 changed([&](EpilogueRule& rule) { rule.bias_factor = times; })));
    }
    if (shape_.m == shape_.n) {
      QG_RETURN_IF_ERROR(attempt("the bias is added along the other dimension",
                                 changed([](EpilogueRule& rule) { rule.is_bias_by_row = true; })));
    }
  }
  return absl::OkStatus();
}

absl::Status GemmDiagnoser::TryRoundings() {
  const std::pair<OutputRounding, const char*> roundings[] = {
      {OutputRounding::kBF16First, "the output is rounded to another type: to bf16 first"},
      {OutputRounding::kF16First, "the output is rounded twice: to f16 first"},
      {OutputRounding::kTruncated, "the output is truncated to bf16 in place of rounded"}};
  for (const auto& [rounding, what] : roundings) {
    if (IsDone(what)) return absl::OkStatus();
    if (rounding == OutputRounding::kBF16First && d_.dtype() == DType::kBF16) continue;
    QG_ASSIGN_OR_RETURN(std::vector<float> predicted, Finished(sums_, rule_, rounding));
    QG_RETURN_IF_ERROR(Try(what, std::move(predicted)));
  }
  return absl::OkStatus();
}

absl::Status GemmDiagnoser::TryPartialSums() {
  for (const int64_t length : {8, 16, 32, 64, 128, 256}) {
    const std::string what =
        absl::StrCat("partial sums are kept in bf16, each over ", length, " of K");
    if (length >= shape_.k) continue;
    if (IsDone(what)) return absl::OkStatus();
    std::vector<float> total(sums_.size());
    for (int64_t begin = 0; begin < shape_.k; begin += length) {
      const std::vector<float> part =
          sample_.Sums(a_rule_, b_rule_, begin, std::min(shape_.k, begin + length));
      for (size_t i = 0; i < total.size(); ++i) total[i] += part[i];
      QG_RETURN_IF_ERROR(RoundTo(DType::kBF16, total));
    }
    QG_RETURN_IF_ERROR(TrySums(what, total));
  }
  for (const int64_t slices : {2, 3, 4, 8}) {
    const std::string what = absl::StrCat(
        "split-K results are rounded to bf16 before they are added: ", slices, " slices");
    if (slices > shape_.k) continue;
    if (IsDone(what)) return absl::OkStatus();
    std::vector<float> total(sums_.size());
    // The first k % slices slices are one longer.
    int64_t begin = 0;
    for (int64_t slice = 0; slice < slices; ++slice) {
      const int64_t length = shape_.k / slices + (slice < shape_.k % slices ? 1 : 0);
      std::vector<float> part = sample_.Sums(a_rule_, b_rule_, begin, begin + length);
      QG_RETURN_IF_ERROR(RoundTo(DType::kBF16, part));
      for (size_t i = 0; i < total.size(); ++i) total[i] += part[i];
      begin += length;
    }
    QG_RETURN_IF_ERROR(TrySums(what, total));
  }
  return absl::OkStatus();
}

absl::Status GemmDiagnoser::TryResult() {
  if (!IsDone("the result is transposed") && shape_.m == shape_.n) {
    std::vector<float> predicted(right_.at.size());
    const size_t side = sample_.rows.size();
    for (size_t i = 0; i < side; ++i) {
      for (size_t j = 0; j < side; ++j) predicted[i * side + j] = right_.at[j * side + i];
    }
    QG_RETURN_IF_ERROR(Try("the result is transposed", std::move(predicted)));
  }
  return absl::OkStatus();
}

/// What needs the fewest sums first.
absl::Status GemmDiagnoser::TryAll() {
  QG_RETURN_IF_ERROR(TryEpilogue());
  QG_RETURN_IF_ERROR(TryResult());
  QG_RETURN_IF_ERROR(TryRoundings());
  for (const bool is_a : {true, false}) QG_RETURN_IF_ERROR(TryOperands(is_a));
  QG_RETURN_IF_ERROR(TryK());
  return TryPartialSums();
}

absl::StatusOr<Diagnosis> GemmDiagnoser::Diagnose() {
  const absl::Time start = SteadyNow();
  if (!IsHighPrecision(d_.dtype())) {
    diagnosis_.sentence = "unknown: results of 8 bits are not diagnosed";
    return diagnosis_;
  }
  if (const absl::Status prepared = Prepare(); absl::IsUnimplemented(prepared)) {
    diagnosis_.sentence = absl::StrCat("unknown: ", prepared.message(), " are not diagnosed");
    return diagnosis_;
  } else if (!prepared.ok()) {
    return prepared;
  }
  const std::string place = PlaceText(right_, found_);
  if (FitOf(right_.at, found_, right_).missed == 0) {
    diagnosis_.sentence =
        "unknown: d has the exact product under this epilogue, rounded once, where it was looked "
        "at";
    return diagnosis_;
  }
  QG_RETURN_IF_ERROR(TryAll());
  if (!best_.has_value()) {
    // Mistakes that have nothing to do with a GEMM: rows in another order, zeros, a factor.
    QG_ASSIGN_OR_RETURN(const Tensor right,
                        Tensor::FromBytes(DType::kF32, {right_.rows, right_.columns},
                                          std::as_bytes(std::span(right_.at))));
    QG_ASSIGN_OR_RETURN(const Tensor found,
                        Tensor::FromBytes(DType::kF32, {found_.rows, found_.columns},
                                          std::as_bytes(std::span(found_.at))));
    QG_ASSIGN_OR_RETURN(TensorFindings findings, FindCause({"d", right, found, {}, {}}, budget_));
    diagnosis_.tried.insert(diagnosis_.tried.end(), findings.tried.begin(), findings.tried.end());
    if (findings.cause.has_value()) {
      best_ = Best{{absl::StrCat("d ", findings.cause->predicate)}, findings.cause->fit, {}};
    }
  }
  diagnosis_.is_unknown = !best_.has_value();
  if (best_.has_value()) {
    for (const std::string& what : best_->whats) {
      absl::StrAppend(&diagnosis_.sentence, diagnosis_.sentence.empty() ? "" : ", or ", what);
    }
    absl::StrAppend(&diagnosis_.sentence, best_->fit.Suffix(), best_->fit.Doubt());
    if (found_.size() < d_.element_count()) {
      absl::StrAppend(&diagnosis_.sentence, ", in the ", GroupedDigits(found_.size()), " of ",
                      GroupedDigits(d_.element_count()), " outputs that were looked at");
    }
  } else {
    diagnosis_.sentence = absl::StrCat(
        "unknown: nothing that was tried gives d; of the exact product under this "
        "epilogue ",
        place);
  }
  diagnosis_.figures.push_back(
      absl::StrCat("against the exact product under this epilogue: ", place));
  if (found_.size() < d_.element_count()) {
    diagnosis_.figures.push_back(absl::StrCat("on a sample of ", GroupedDigits(found_.size()),
                                              " of ", GroupedDigits(d_.element_count()),
                                              " outputs"));
  }
  diagnosis_.seconds = absl::ToDoubleSeconds(SteadyNow() - start);
  return diagnosis_;
}

}  // namespace

absl::StatusOr<Diagnosis> DiagnoseGemm(const GemmDesc& desc, const Tensor& d,
                                       const DiagnosisBudget& budget) {
  return GemmDiagnoser(desc, d, budget).Diagnose();
}

}  // namespace quantgate
