#include "kernels/validate/diagnosis/layer_hypotheses.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"
#include "kernels/layer/layer.h"
#include "kernels/validate/diagnosis/layer_changes.h"
#include "kernels/validate/diagnosis/tensor_hypotheses.h"

namespace quantgate {
namespace {

/// Names in the order of a layer's outputs: y, dx, then the gradients of parameters.
bool IsEarlier(const std::string& left, const std::string& right) {
  static constexpr const char* kWords[] = {"y", "dx", "dw", "main_grad", "db"};
  const auto key = [](const std::string& name) {
    const std::string word = ParameterName::Parse(name).word;
    return std::pair(std::find(std::begin(kWords), std::end(kWords), word) - std::begin(kWords),
                     name);
  };
  return key(left) < key(right);
}

std::string JoinedNames(std::vector<std::string> names) {
  std::sort(names.begin(), names.end(), IsEarlier);
  if (names.size() < 2) return absl::StrJoin(names, "");
  return absl::StrCat(absl::StrJoin(names.begin(), names.end() - 1, ", "), " and ", names.back());
}

/// A change and how well its outputs fit those that were found.
struct TriedChange {
  std::string what;
  bool is_recipe = false;
  FitLevel worst = FitLevel::kBits;
  /// Failing outputs that the change gives, those that it gives nearly, and those that it does not.
  std::vector<std::string> given, nearly, others;
  int64_t missed = 0;
  int distinct = 0;  ///< Fit::distinct, of the output that has the most.
  bool says_how_sure = false;

  bool is_whole() const { return others.empty(); }
  std::string Outputs() const {
    return absl::StrCat(JoinedNames(given), given.empty() || nearly.empty() ? "" : ", and ",
                        absl::StrJoin(nearly, ", and "));
  }
  std::string Sentence() const {
    Fit evidence;
    if (!says_how_sure) evidence.distinct = distinct;
    return absl::StrCat(is_recipe ? absl::StrCat("fits ", what, " in ", Outputs())
                                  : absl::StrCat(what, ": that gives ", Outputs()),
                        evidence.Doubt());
  }
};

class LayerDiagnoser {
 public:
  LayerDiagnoser(const LayerCase& of, LayerModel& model, const DiagnosisBudget& budget)
      : of_(of), model_(model), budget_(budget) {}

  absl::StatusOr<Diagnosis> Diagnose();

 private:
  /// Takes the values of outputs and finds which differ.
  absl::Status Prepare();
  /// The cause of each failing output from the outputs and operands alone.
  absl::Status FindCauses();
  /// Hypotheses that only a main gradient has, since it is a sum.
  absl::StatusOr<std::optional<Cause>> CauseOfMainGrad(const std::string& name);
  absl::Status TryChanges();
  absl::Status Try(const ProposedChange& proposed);
  void Conclude();
  bool AllCausesFit(FitLevel worst) const {
    return std::all_of(failing_.begin(), failing_.end(), [&](const std::string& name) {
      return causes_.contains(name) && causes_.at(name).fit.level <= worst;
    });
  }

  const LayerCase& of_;
  LayerModel& model_;
  const DiagnosisBudget& budget_;
  Diagnosis diagnosis_;
  std::map<std::string, Values> expected_, subject_;
  std::set<std::string> failing_;
  std::vector<std::string> right_;
  std::map<std::string, Cause> causes_;
  std::map<std::string, std::string> places_;
  std::set<std::string> consequences_;  ///< Failing outputs that follow from another one.
  std::optional<TriedChange> best_;
  std::vector<TriedChange> partial_;
};

absl::Status LayerDiagnoser::Prepare() {
  for (const auto& [name, expected] : of_.expected) {
    const auto found = of_.subject.find(name);
    if (found == of_.subject.end()) continue;
    const Tensor& subject = found->second;
    const bool is_readable = subject.shape() == expected.shape() &&
                             HasFp32Values(subject.dtype()) && HasFp32Values(expected.dtype()) &&
                             expected.element_count() <= kDiagnosedElementsMax;
    if (!is_readable) {
      failing_.insert(name);
      continue;
    }
    QG_ASSIGN_OR_RETURN(expected_[name], ValuesOf(expected));
    QG_ASSIGN_OR_RETURN(subject_[name], ValuesOf(subject));
    const bool is_equal = subject.dtype() == expected.dtype() && HaveSameBytes(subject, expected);
    if (is_equal)
      right_.push_back(name);
    else
      failing_.insert(name);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Cause>> LayerDiagnoser::CauseOfMainGrad(const std::string& name) {
  ParameterName parsed = ParameterName::Parse(name);
  if (parsed.word != "main_grad" || !subject_.contains(name)) return std::optional<Cause>();
  parsed.word = "weight";
  const auto initial = of_.main_grads.find(parsed.Text());
  if (initial == of_.main_grads.end()) return std::optional<Cause>();
  parsed.word = "dw";
  QG_ASSIGN_OR_RETURN(const Values given, ValuesOf(initial->second));
  const Values &expected = expected_[name], &subject = subject_[name];
  const auto dw = expected_.find(parsed.Text()), found_dw = subject_.find(parsed.Text());
  const bool has_dw = dw != expected_.end(), has_found = found_dw != subject_.end();
  const auto predicted = [&](auto value) {
    std::vector<float> values(expected.at.size());
    for (size_t i = 0; i < values.size(); ++i) values[i] = value(i);
    return values;
  };
  // What was accumulated: dw, or without it the difference, which has a rounding more; by others
  // also after it was rounded to the dtype of a gradient.
  std::vector<float> gradient =
      has_dw ? dw->second.at : predicted([&](size_t i) { return expected.at[i] - given.at[i]; });
  std::vector<float> rounded = gradient;
  QG_RETURN_IF_ERROR(RoundTo(DType::kBF16, rounded));
  std::vector<std::pair<std::string, std::vector<float>>> hypotheses;
  if (has_found && failing_.contains(parsed.Text())) {
    hypotheses.emplace_back(absl::StrCat("follows from ", parsed.Text()), predicted([&](size_t i) {
                              return given.at[i] + found_dw->second.at[i];
                            }));
  }
  for (const std::vector<float>* added : {&gradient, &rounded}) {
    hypotheses.emplace_back("has the gradient accumulated twice",
                            predicted([&](size_t i) { return expected.at[i] + (*added)[i]; }));
    hypotheses.emplace_back("is overwritten by the gradient in place of accumulated into", *added);
  }
  hypotheses.emplace_back("is as it was: no gradient was accumulated",
                          predicted([&](size_t i) { return given.at[i]; }));
  std::optional<Cause> best;
  for (auto& [what, values] : hypotheses) {
    const Fit fit = FitOf(values, subject, expected);
    if (!fit.fits()) continue;
    if (what.starts_with("follows")) {
      consequences_.insert(name);
      return std::optional<Cause>(Cause{what, fit});
    }
    if (!best.has_value() || fit.level < best->fit.level) {
      best = Cause{what, fit};
    } else if (fit.level == FitLevel::kBits && best->fit.level == FitLevel::kBits &&
               !absl::StrContains(best->predicate, what)) {
      absl::StrAppend(&best->predicate, ", or ", what);
    }
  }
  return best;
}

absl::Status LayerDiagnoser::FindCauses() {
  for (const std::string& name : failing_) {
    QG_ASSIGN_OR_RETURN(const std::optional<Cause> of_main_grad, CauseOfMainGrad(name));
    if (of_main_grad.has_value()) {
      causes_.emplace(name, *of_main_grad);
      continue;
    }
    TensorCase one{name, of_.expected.at(name), of_.subject.at(name), {}, {}};
    for (const auto& [other, tensor] : of_.expected) {
      if (other != name) one.related.push_back({absl::StrCat("the expected ", other), tensor});
    }
    for (const auto& [operand, tensor] : of_.operands) {
      // A bias belongs to y only where nothing stands between them.
      if (ParameterName::Parse(operand).word != "bias" || name == "y") {
        one.related.push_back({operand, tensor});
      }
      one.inputs.push_back({operand, tensor});
    }
    const bool is_read = subject_.contains(name);
    QG_ASSIGN_OR_RETURN(TensorFindings findings,
                        is_read ? FindCause(one, expected_.at(name), subject_.at(name), budget_)
                                : FindCause(one, budget_));
    places_[name] = findings.place;
    if (findings.cause.has_value()) causes_.emplace(name, *std::move(findings.cause));
    for (const std::string& tried : findings.tried) {
      diagnosis_.tried.push_back(absl::StrCat(name, ": ", tried));
    }
    for (const std::string& not_tried : findings.not_tried) {
      diagnosis_.not_tried.push_back(absl::StrCat(name, ": ", not_tried));
    }
  }
  return absl::OkStatus();
}

absl::Status LayerDiagnoser::Try(const ProposedChange& proposed) {
  absl::StatusOr<LayerChange> change = proposed.make();
  if (!change.ok()) return change.status();
  const absl::StatusOr<TensorsByName> outputs = model_.Compute(*change);
  if (absl::IsDeadlineExceeded(outputs.status()) && budget_.IsSpent()) {
    diagnosis_.not_tried.push_back(absl::StrCat(proposed.what, " (no time)"));
    return absl::OkStatus();
  }
  if (absl::IsUnimplemented(outputs.status()) || absl::IsInvalidArgument(outputs.status()) ||
      absl::IsFailedPrecondition(outputs.status())) {
    diagnosis_.not_tried.push_back(
        absl::StrCat(proposed.what, " (", outputs.status().message(), ")"));
    return absl::OkStatus();
  }
  QG_RETURN_IF_ERROR(outputs.status());
  TriedChange tried;
  tried.what = proposed.what;
  tried.is_recipe = !change->recipe.empty();
  tried.says_how_sure = proposed.says_how_sure;
  for (const auto& [name, subject] : subject_) {
    const auto found = outputs->find(name);
    if (found == outputs->end() || found->second.shape() != of_.subject.at(name).shape()) {
      tried.others.push_back(name);
      continue;
    }
    QG_ASSIGN_OR_RETURN(Values predicted, ValuesOf(found->second));
    QG_RETURN_IF_ERROR(RoundTo(subject.dtype, predicted.at));
    const Fit fit = FitOf(predicted.at, subject, expected_.at(name));
    if (!fit.fits()) {
      tried.others.push_back(name);
      continue;
    }
    tried.worst = std::max(tried.worst, fit.level);
    tried.missed += fit.missed;
    if (!failing_.contains(name)) continue;
    tried.distinct = std::max(tried.distinct, fit.distinct);
    if (fit.level == FitLevel::kBits)
      tried.given.push_back(name);
    else
      tried.nearly.push_back(absl::StrCat(name, fit.Suffix()));
  }
  if (tried.given.empty() && tried.nearly.empty()) {
    diagnosis_.tried.push_back(proposed.what);
  } else if (!tried.is_whole()) {
    diagnosis_.tried.push_back(absl::StrCat(proposed.what, " (gives ", tried.Outputs(), ", not ",
                                            JoinedNames(tried.others), ")"));
    partial_.push_back(std::move(tried));
  } else if (!best_.has_value() || tried.worst < best_->worst ||
             (tried.worst == best_->worst && tried.missed < best_->missed)) {
    best_ = std::move(tried);
  }
  return absl::OkStatus();
}

absl::Status LayerDiagnoser::TryChanges() {
  // A change is asked for all failing outputs at once; one that is of another type has no values.
  if (subject_.size() != right_.size() + failing_.size()) return absl::OkStatus();
  std::vector<int64_t> row_order;
  if (causes_.contains("y")) row_order = causes_.at("y").row_order;
  QG_ASSIGN_OR_RETURN(const std::vector<ProposedChange> changes,
                      ProposeChanges(of_, model_, failing_, row_order));
  for (const ProposedChange& change : changes) {
    if (best_.has_value() && best_->worst == FitLevel::kBits) return absl::OkStatus();
    if (budget_.IsSpent()) {
      diagnosis_.not_tried.push_back(absl::StrCat(change.what, " (no time)"));
      continue;
    }
    QG_RETURN_IF_ERROR(Try(change));
  }
  return absl::OkStatus();
}

void LayerDiagnoser::Conclude() {
  for (const auto& [name, place] : places_) {
    if (!place.empty()) diagnosis_.figures.push_back(absl::StrCat(name, ": ", place));
  }
  for (const auto& [name, cause] : causes_) {
    for (const std::string& figure : cause.figures) {
      diagnosis_.figures.push_back(absl::StrCat(name, ": ", figure));
    }
  }
  if (!right_.empty() && !failing_.empty()) {
    diagnosis_.figures.push_back(absl::StrCat("as expected: ", JoinedNames(right_)));
  }
  diagnosis_.is_unknown = false;
  if (best_.has_value() && !AllCausesFit(FitLevel::kBits)) {
    diagnosis_.sentence = best_->Sentence();
    return;
  }
  std::vector<std::string> sentences, unknown;
  for (const std::string& name : failing_) {
    const auto cause = causes_.find(name);
    if (cause == causes_.end()) {
      unknown.push_back(name);
    } else if (!consequences_.contains(name)) {
      sentences.push_back(absl::StrCat(name, " ", cause->second.Text()));
    } else {
      diagnosis_.figures.push_back(absl::StrCat(name, " ", cause->second.predicate));
    }
  }
  if (!unknown.empty()) {
    diagnosis_.is_unknown = true;
    std::string sentence =
        absl::StrCat("unknown: nothing that was tried gives ", JoinedNames(unknown));
    const auto place = places_.find(unknown[0]);
    if (unknown.size() == 1 && place != places_.end() && !place->second.empty()) {
      absl::StrAppend(&sentence, "; ", place->second);
    }
    sentences.push_back(std::move(sentence));
  }
  diagnosis_.sentence = absl::StrJoin(sentences, "; ");
}

absl::StatusOr<Diagnosis> LayerDiagnoser::Diagnose() {
  const absl::Time start = SteadyNow();
  QG_RETURN_IF_ERROR(Prepare());
  if (failing_.empty()) return diagnosis_;
  QG_RETURN_IF_ERROR(FindCauses());
  if (!AllCausesFit(FitLevel::kBits)) QG_RETURN_IF_ERROR(TryChanges());
  Conclude();
  diagnosis_.seconds = absl::ToDoubleSeconds(SteadyNow() - start);
  return diagnosis_;
}

}  // namespace

absl::StatusOr<Diagnosis> DiagnoseLayer(const LayerCase& of, LayerModel& model,
                                        const DiagnosisBudget& budget) {
  return LayerDiagnoser(of, model, budget).Diagnose();
}

}  // namespace quantgate
