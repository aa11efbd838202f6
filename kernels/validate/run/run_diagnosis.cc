#include "kernels/validate/run/run_diagnosis.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/grouped_digits.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"
#include "kernels/validate/diagnosis/engine_model.h"
#include "kernels/validate/run/output_report.h"

namespace quantgate {
namespace {

/// The most variants that a diagnosis tells of; of many that fail the first say why.
constexpr int kDiagnosedVariants = 3;

std::string RanksText(const Variant& variant) {
  return variant.parallel.has_value() ? absl::StrCat(variant.parallel->size(), " ranks")
                                      : std::string("one rank");
}

class RunDiagnoser {
 public:
  RunDiagnoser(const LayerRunRequest& request, const RunReport& report, Engine& engine,
               const Cancellation* cancellation, const DiagnosisBudget& budget)
      : request_(request),
        report_(report),
        engine_(engine),
        cancellation_(cancellation),
        budget_(budget) {}

  absl::StatusOr<std::optional<Diagnosis>> Diagnose();

 private:
  bool IsJudgedByReference() const {
    return request_.requirement == Requirement::kBitwise && request_.reference.has_value();
  }
  /// What an output that fails should have been; null where it does not fail.
  const Tensor* ExpectedOf(const OutputReport& output) const;
  absl::Status DiagnoseVariant(size_t index);
  /// What is known of a variant that others are not: then nothing is looked for.
  std::string OtherSettings(const Variant& variant, const std::vector<std::string>& failing) const;
  absl::Status LookFor(const std::string& prefix, const VariantReport& variant);
  void Say(std::string sentence) { sentences_.push_back(std::move(sentence)); }

  const LayerRunRequest& request_;
  const RunReport& report_;
  Engine& engine_;
  const Cancellation* const cancellation_;
  const DiagnosisBudget& budget_;
  Diagnosis diagnosis_;
  std::vector<std::string> sentences_;
};

const Tensor* RunDiagnoser::ExpectedOf(const OutputReport& output) const {
  if (!IsJudgedByReference()) return output.exact.has_value() ? &output.exact : nullptr;
  if (output.is_intermediate) return nullptr;
  const OutputReport* other =
      FindOutput(report_.variants[size_t(*request_.reference)], output.tensor);
  return other == nullptr || other->fingerprint == output.fingerprint ? nullptr : &other->value;
}

std::string RunDiagnoser::OtherSettings(const Variant& variant,
                                        const std::vector<std::string>& failing) const {
  const Variant& reference = request_.variants[size_t(*request_.reference)];
  std::vector<std::string> settings;
  const auto add = [&](const char* what, const std::string& is, const std::string& other) {
    if (is != other) settings.push_back(absl::StrCat("its ", what, " is ", is, " and not ", other));
  };
  add("recipe", variant.recipe.ShortText(), reference.recipe.ShortText());
  add("arithmetic", variant.arithmetic.ToString(), reference.arithmetic.ToString());
  if (settings.empty()) return "";
  return absl::StrCat(absl::StrJoin(failing, ", "), failing.size() == 1 ? " differs" : " differ",
                      " since ", absl::StrJoin(settings, ", "));
}

absl::Status RunDiagnoser::LookFor(const std::string& prefix, const VariantReport& variant) {
  LayerCase of;
  for (const OutputReport& output : variant.outputs) {
    const Tensor* const expected = ExpectedOf(output);
    if (expected == nullptr) continue;
    QG_ASSIGN_OR_RETURN(of.expected[output.tensor], engine_.ToHost(*expected, cancellation_));
    QG_ASSIGN_OR_RETURN(of.subject[output.tensor], engine_.ToHost(output.value, cancellation_));
  }
  QG_RETURN_IF_ERROR(ReadOperands(engine_, request_.step, cancellation_, of));
  UnknownLayer model;
  QG_ASSIGN_OR_RETURN(Diagnosis found, DiagnoseLayer(of, model, budget_));
  if (found.sentence.empty()) return absl::OkStatus();
  Say(absl::StrCat(prefix, found.sentence));
  diagnosis_.is_unknown = diagnosis_.is_unknown || found.is_unknown;
  const auto add = [&](const std::vector<std::string>& from, std::vector<std::string>& to) {
    for (const std::string& line : from) to.push_back(absl::StrCat(prefix, line));
  };
  add(found.figures, diagnosis_.figures);
  add(found.tried, diagnosis_.tried);
  add(found.not_tried, diagnosis_.not_tried);
  return absl::OkStatus();
}

absl::Status RunDiagnoser::DiagnoseVariant(size_t index) {
  const VariantReport& variant = report_.variants[index];
  const Variant& asked = request_.variants[index];
  const std::string prefix = report_.variants.size() == 1 ? "" : absl::StrCat(variant.label, ": ");
  std::vector<std::string> failing;
  bool is_within_bounds = true;
  for (const OutputReport& output : variant.outputs) {
    if (!output.rank_difference.empty()) {
      Say(absl::StrCat(prefix, output.tensor, ": ", output.rank_difference));
    }
    if (ExpectedOf(output) == nullptr) continue;
    failing.push_back(output.tensor);
    is_within_bounds = is_within_bounds && output.bound.has_value() && output.bound->pass;
    const ParityReport& parity = output.against_exact.parity;
    if (IsJudgedByReference()) continue;
    diagnosis_.figures.push_back(
        absl::StrCat(prefix, output.tensor, ": ", GroupedDigits(parity.mismatch_count), " of ",
                     GroupedDigits(parity.element_count), " elements are not those of exact, ",
                     parity.worst_ulp == INT64_MAX
                         ? "NaN among them"
                         : absl::StrCat("by up to ", GroupedDigits(parity.worst_ulp), " ulp")));
  }
  if (failing.empty()) return absl::OkStatus();
  if (IsJudgedByReference()) {
    const std::string settings = OtherSettings(asked, failing);
    if (!settings.empty()) {
      Say(absl::StrCat(prefix, settings));
      return absl::OkStatus();
    }
    const std::string ranks = RanksText(asked),
                      other = RanksText(request_.variants[size_t(*request_.reference)]);
    return LookFor(
        ranks == other ? prefix : absl::StrCat(prefix, "on ", ranks, " and not ", other, ", "),
        variant);
  }
  // A bound is derived from the arithmetic and its order of additions: what keeps it is explained.
  if (request_.requirement == Requirement::kBitwise && is_within_bounds) {
    Say(absl::StrCat(prefix, absl::StrJoin(failing, ", "), failing.size() == 1 ? " has" : " have",
                     " the roundings of ", asked.arithmetic.ToString(),
                     ", which exact has not: all within what it may round off"));
    return absl::OkStatus();
  }
  return LookFor(prefix, variant);
}

absl::StatusOr<std::optional<Diagnosis>> RunDiagnoser::Diagnose() {
  const absl::Time start = SteadyNow();
  diagnosis_.is_unknown = false;
  std::vector<std::string> left;
  for (size_t i = 0; i < report_.variants.size(); ++i) {
    if (IsJudgedByReference() && request_.reference == static_cast<int>(i)) continue;
    const VariantReport& variant = report_.variants[i];
    const bool fails = std::any_of(
        variant.outputs.begin(), variant.outputs.end(), [&](const OutputReport& output) {
          return ExpectedOf(output) != nullptr || !output.rank_difference.empty();
        });
    if (!fails) continue;
    if (sentences_.size() >= kDiagnosedVariants || budget_.IsSpent()) {
      left.push_back(variant.label);
      continue;
    }
    QG_RETURN_IF_ERROR(DiagnoseVariant(i));
  }
  if (sentences_.empty() && left.empty()) return std::optional<Diagnosis>();
  if (!left.empty()) {
    const bool is_first = sentences_.empty();
    Say(absl::StrCat(is_first ? "unknown: " : "", left.size(), is_first ? "" : " more",
                     left.size() == 1 ? " variant fails" : " variants fail", ", not looked into"));
    diagnosis_.is_unknown = diagnosis_.is_unknown || is_first;
    const std::string why = budget_.IsSpent() ? " (no time)" : " (others say why)";
    for (const std::string& label : left) diagnosis_.not_tried.push_back(label + why);
  }
  diagnosis_.sentence = absl::StrJoin(sentences_, "; ");
  diagnosis_.seconds = absl::ToDoubleSeconds(SteadyNow() - start);
  return std::optional<Diagnosis>(std::move(diagnosis_));
}

}  // namespace

absl::StatusOr<std::optional<Diagnosis>> DiagnoseRun(const LayerRunRequest& request,
                                                     const RunReport& report, Engine& engine,
                                                     const Cancellation* cancellation,
                                                     const DiagnosisBudget& budget) {
  if (report.verdict.pass) return std::optional<Diagnosis>();
  return RunDiagnoser(request, report, engine, cancellation, budget).Diagnose();
}

}  // namespace quantgate
