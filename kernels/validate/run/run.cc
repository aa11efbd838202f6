#include "kernels/validate/run/run.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"
#include "kernels/layer/experts/stacked_experts.h"
#include "kernels/layer/linear/given_codes.h"
#include "kernels/validate/ranks/parallel_report.h"
#include "kernels/validate/ranks/parallel_run.h"
#include "kernels/validate/reference/exact_values.h"
#include "kernels/validate/run/output_report.h"
#include "kernels/validate/run/run_diagnosis.h"
#include "kernels/validate/run/verdict.h"

namespace quantgate {
namespace {

/// Reports the run's progress: each step before it starts or, if it continues in the background,
/// when it has been begun.
class Progress {
 public:
  Progress(const RunObserver& observer, const Plan& plan, const Cancellation* cancellation)
      : observer_(observer), plan_(plan), cancellation_(cancellation) {}

  absl::Status Check() const {
    return cancellation_ == nullptr ? absl::OkStatus() : cancellation_->Check();
  }
  absl::Status Begin(const std::string& what) {
    QG_RETURN_IF_ERROR(Check());
    Announce(what);
    return absl::OkStatus();
  }
  void Announce(const std::string& what) { Tell(step_++, what); }
  /// A part of the step that was announced last.
  void AnnouncePart(const std::string& what) { Tell(step_ - 1, what); }
  void Finish() { Tell(step_, "done"); }

 private:
  void Tell(int step, const std::string& what) {
    // Counting takes a while, so it is done late, when the engine may have work.
    if (step_count_ < 0) step_count_ = plan_.StepCount();
    observer_.on_progress({step, step_count_, what});
  }

  const RunObserver& observer_;
  const Plan& plan_;
  const Cancellation* const cancellation_;
  int step_count_ = -1;
  int step_ = 0;
};

/// All tensors that reports of a variant's outputs identify by contents.
std::vector<Tensor> TensorsOf(const LayerResult& result) {
  std::vector<Tensor> tensors;
  for (const GemmRecord& gemm : result.gemms) {
    for (const GemmOperand* operand : {&gemm.desc.a, &gemm.desc.b}) {
      tensors.insert(tensors.end(), {operand->data, operand->scale_inv, operand->amax});
    }
    tensors.insert(tensors.end(), {gemm.desc.c, gemm.desc.bias, gemm.desc.d_scale});
  }
  for (const auto* named : {&result.outputs, &result.intermediates}) {
    for (const NamedTensor& tensor : *named) tensors.push_back(tensor.tensor);
  }
  return tensors;
}

/// The inputs of a run, under the names of RunReport::inputs.
std::vector<NamedTensor> InputsOf(const LayerRequest& request) {
  std::vector<NamedTensor> inputs = {{"x", request.x}, {"grad_output", request.grad_output}};
  for (const auto& [name, tensor] : request.parameters) {
    inputs.push_back({absl::StrCat("parameters[", name, "]"), tensor});
  }
  for (const auto& [name, tensor] : request.main_grads) {
    inputs.push_back({absl::StrCat("main_grads[", name, "]"), tensor});
  }
  for (const auto& [name, state] : request.delayed) {
    inputs.push_back({absl::StrCat("delayed_state[", name, ".scale]"), state.scale});
    inputs.push_back({absl::StrCat("delayed_state[", name, ".amax_history]"), state.amax_history});
  }
  std::erase_if(inputs, [](const NamedTensor& input) { return !input.tensor.has_value(); });
  return inputs;
}

/// Whether an input is one expert's part of a tensor that was given for all of them.
bool IsOfStack(const LayerRunRequest& request, const std::string& input) {
  return std::any_of(request.stacks.begin(), request.stacks.end(), [&](const auto& stack) {
    const std::string& name = stack.first;
    return input.starts_with(name.substr(0, name.size() - 1) + ".");
  });
}

/// The inputs of a run as they were given: the parts of operands that were given as codes.
std::vector<NamedTensor> GivenInputsOf(const LayerRunRequest& request) {
  std::vector<NamedTensor> inputs;
  for (const auto& [name, stack] : request.stacks) inputs.push_back({name, stack});
  for (NamedTensor& input : InputsOf(request.step)) {
    if (IsOfStack(request, input.name)) continue;
    const auto parts = request.given_parts.find(input.name);
    if (parts == request.given_parts.end()) {
      inputs.push_back(std::move(input));
      continue;
    }
    for (const NamedTensor& part : parts->second) {
      inputs.push_back({absl::StrCat(input.name, ".", part.name), part.tensor});
    }
  }
  return inputs;
}

/// Says of each operand that is given as codes what references make of it.
void AddNotesOfCodes(const LayerRequest& request, VariantReport& report) {
  for (const auto& [operand, codes] : request.codes) {
    report.notes.push_back(absl::StrCat(
        NameOfCodes(operand), ": given as ", CodesText(codes),
        " and read as it is; the unquantized reference reads its values, dequantized to ",
        std::string(DTypeName(codes.source_dtype))));
  }
}

std::string UnquantizedStep(const std::string& of) { return absl::StrCat("unquantized: ", of); }

}  // namespace

VariantReport::GemmLine GemmLineOf(const GemmRecord& gemm) {
  VariantReport::GemmLine line;
  line.role = GemmRoleName(gemm.role);
  line.output = gemm.output;
  line.text = GemmText(gemm.desc);
  if (gemm.matrices > 0) line.text = absl::StrCat(gemm.matrices, " x (", line.text, ")");
  line.a_source = gemm.a.Text();
  line.b_source = gemm.b.Text();
  line.arithmetic = gemm.result.arithmetic.ToString();
  line.is_hardware = gemm.result.arithmetic.family == ArithmeticFamily::kCublasLt;
  if (line.is_hardware) line.algorithm = gemm.result.note;
  for (const OperandOrigin* const origin : {&gemm.a, &gemm.b}) {
    if (origin->quantized_before.empty()) continue;
    absl::StrAppend(&line.note, line.note.empty() ? "" : "; ", origin->tensor,
                    ": quantized twice, the ranks' ", origin->quantized_before,
                    " are dequantized, gathered and quantized again");
  }
  if (gemm.result_codes.has_value()) {
    absl::StrAppend(&line.note, line.note.empty() ? "" : "; ", gemm.output,
                    ": the values of its codes, ", QuantizerText(gemm.result_codes->rule));
  }
  return line;
}

namespace {

constexpr char kBetweenOperations[] = "report what lies between operations";

/// The report of a variant, without what StartedLayer::Finish adds.
VariantReport DescribeVariant(const LayerSpec& layer, const Variant& variant, LayerResult& result) {
  VariantReport report;
  report.label = variant.Label();
  report.recipe = variant.recipe.CanonicalText();
  report.recipe_name = variant.recipe.name();
  report.recipe_digest = variant.recipe.Digest();
  report.backward_override = BackwardOverrideName(variant.recipe.backward_override());
  report.arithmetic = variant.arithmetic.ToString();
  for (const GemmRecord& gemm : result.gemms) {
    VariantReport::GemmLine line = GemmLineOf(gemm);
    report.is_hardware = report.is_hardware || line.is_hardware;
    report.gemms.push_back(std::move(line));
  }
  const LayerSpec* const layers[] = {&layer};
  report.notes = NotesOfRules(layers, variant.recipe, "layer");
  report.notes.insert(report.notes.end(), result.notes.begin(), result.notes.end());
  report.state = std::move(result.state);
  return report;
}

class PlanRun {
 public:
  PlanRun(const Plan& plan, Engine& engine, const Cancellation* cancellation,
          const RunObserver& observer, const RankSetting* setting)
      : plan_(plan),
        request_(plan.request()),
        engine_(engine),
        cancellation_(cancellation),
        observer_(observer),
        setting_(setting),
        exact_(engine, request_.step, cancellation),
        reporter_(engine, request_.step, exact_, cancellation, RequirementOfExact()),
        progress_(observer, plan, cancellation),
        rank_engines_(engine) {}

  /// Whether this host has what variants on several ranks need.
  absl::Status CheckRanks() {
    for (size_t i = 0; i < request_.variants.size(); ++i) {
      const Variant& variant = request_.variants[i];
      if (!variant.parallel.has_value()) continue;
      const auto engines = rank_engines_.EnginesFor(*variant.parallel);
      absl::Status status = engines.status();
      if (status.ok()) status = MakeWorld(*variant.parallel, *engines, setting_).status();
      if (!status.ok()) {
        return WithinField(absl::StrCat("variants[", i, "]"), status);
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<RunReport> Run() {
    const absl::Time start = SteadyNow();
    QG_RETURN_IF_ERROR(ComputeUnquantized());
    report_.variants.resize(request_.variants.size());
    // The reference goes first, so that other variants' reports are complete when handed out.
    if (request_.reference.has_value()) QG_RETURN_IF_ERROR(RunVariant(*request_.reference));
    for (int index = 0; index < static_cast<int>(request_.variants.size()); ++index) {
      if (request_.reference != index) QG_RETURN_IF_ERROR(RunVariant(index));
    }
    if (report_.variants.size() > 1) {
      QG_RETURN_IF_ERROR(progress_.Begin("every pair of variants"));
      QG_ASSIGN_OR_RETURN(report_.pairs, ComparePairs(engine_, report_.variants, cancellation_));
    }
    QG_ASSIGN_OR_RETURN(const std::vector<NonFinite> non_finite, NonFiniteInputs());
    report_.verdict =
        JudgeRun(request_.requirement, request_.reference, report_.variants, non_finite);
    QG_ASSIGN_OR_RETURN(report_.diagnosis, DiagnoseRun(request_, report_, engine_, cancellation_,
                                                       DiagnosisBudget::Of(SteadyNow() - start)));
    for (VariantReport& variant : report_.variants) {
      for (OutputReport& output : variant.outputs) output.exact = Tensor();
    }
    for (const NamedTensor& input : GivenInputsOf(request_)) {
      QG_ASSIGN_OR_RETURN(const Fingerprint fingerprint,
                          exact_.contents().FingerprintOf(input.tensor));
      report_.inputs.push_back({input.name, fingerprint});
    }
    progress_.Finish();
    return std::move(report_);
  }

 private:
  /// What holds outputs to `exact`.
  Requirement RequirementOfExact() const {
    const bool by_reference =
        request_.requirement == Requirement::kBitwise && request_.reference.has_value();
    return by_reference ? Requirement::kNone : request_.requirement;
  }
  bool IsLinear() const { return request_.step.layer.traits().is_one_linear(); }
  bool HasIntermediates() const { return ReportsIntermediates(request_.step); }

  /// The NaN and infinities of the inputs. Empty unless an output or a quantized tensor has some.
  absl::StatusOr<std::vector<NonFinite>> NonFiniteInputs() {
    std::vector<NonFinite> counted;
    if (!HasNonFinite(report_.variants)) return counted;
    for (const NamedTensor& input : InputsOf(request_.step)) {
      QG_ASSIGN_OR_RETURN(const ParityReport itself,
                          engine_.CompareBits(input.tensor, input.tensor, cancellation_));
      counted.push_back(NonFiniteOf(input.name, itself));
    }
    return counted;
  }

  // Fingerprints of inputs are asked for after the engine has its first large work.
  absl::Status ComputeUnquantized() {
    if (!IsLinear()) {
      QG_RETURN_IF_ERROR(progress_.Begin(UnquantizedStep("the whole layer")));
      QG_RETURN_IF_ERROR(exact_.Unquantized("y").status());
      return StartInputKeys();
    }
    const std::vector<std::string> outputs = LayerOutputs(request_.step);
    const bool goes_on = engine_.RunsAhead();
    for (const std::string& name : outputs) {
      QG_RETURN_IF_ERROR(progress_.Check());
      if (!goes_on) progress_.Announce(UnquantizedStep(name));
      QG_RETURN_IF_ERROR(exact_.StartUnquantized(name));
      if (goes_on) progress_.Announce(UnquantizedStep(name));
      if (name == outputs.front()) QG_RETURN_IF_ERROR(StartInputKeys());
    }
    return absl::OkStatus();
  }

  absl::Status StartInputKeys() {
    std::vector<Tensor> tensors;
    for (const NamedTensor& input : InputsOf(request_.step)) tensors.push_back(input.tensor);
    return exact_.contents().Start(tensors, ContentKeys::Memory::kForGood);
  }

  /// Runs `body` as one step of the run and adds its time to `stages`.
  template <typename Body>
  absl::Status Timed(const std::string& stage, const VariantReport& report,
                     std::vector<TimedStage>& stages, Body body) {
    QG_RETURN_IF_ERROR(progress_.Begin(absl::StrCat(report.label, ": ", stage)));
    // The engine's stopwatch is that of the layer's stages, so that all times can be added up.
    std::shared_ptr<Stopwatch> stopwatch = engine_.StartStopwatch();
    QG_RETURN_IF_ERROR(body());
    QG_RETURN_IF_ERROR(stopwatch->Stop());
    stages.push_back({{StageKind::kCompare, stage}, std::move(stopwatch)});
    return absl::OkStatus();
  }

  absl::Status RunVariant(int index) {
    layer_ = {};  // Frees the variant before.
    QG_RETURN_IF_ERROR(exact_.BeginVariant());
    return request_.variants[index].parallel.has_value() ? RunOnSeveralRanks(index)
                                                         : RunOnOneRank(index);
  }

  /// Joins the gradients of experts whose weights were given as one tensor.
  absl::Status StackGradients(VariantReport& report) {
    if (request_.stacks.empty()) return absl::OkStatus();
    const size_t experts = request_.step.layer.m_splits.size();
    for (const std::string word : {"dw", "main_grad"}) {
      std::vector<Tensor> parts;
      for (size_t i = 0; i < experts; ++i) {
        const OutputReport* const part = FindOutput(report, absl::StrCat(word, ".", i));
        if (part != nullptr) parts.push_back(part->value);
      }
      if (parts.size() != experts) continue;
      QG_ASSIGN_OR_RETURN(Tensor stack, StackExperts(engine_, parts, cancellation_));
      report.stacks.push_back({word, std::move(stack)});
    }
    return absl::OkStatus();
  }

  absl::Status RunOnSeveralRanks(int index) {
    const Variant& variant = request_.variants[index];
    LayerResult nothing;
    VariantReport& report = report_.variants[index];
    report = DescribeVariant(request_.step.layer, variant, nothing);
    QG_RETURN_IF_ERROR(progress_.Begin(absl::StrCat(report.label, ": ", variant.parallel->size(),
                                                    " ranks, forward and backward")));
    QG_ASSIGN_OR_RETURN(const std::vector<Engine*> engines,
                        rank_engines_.EnginesFor(*variant.parallel));
    QG_ASSIGN_OR_RETURN(
        const ParallelStepResult step,
        RunOnRanks(request_.step, engine_, variant, engines, setting_, cancellation_));
    ParallelReporter reporter(engine_, reporter_, request_.step, variant, step, cancellation_);
    std::vector<TimedStage> stages;
    const std::vector<std::string> outputs = LayerOutputs(request_.step);
    const auto report_one = [&](const std::string& name, bool is_intermediate) -> absl::Status {
      QG_ASSIGN_OR_RETURN(const ReportedOutput reported, reporter.Report(name));
      QG_RETURN_IF_ERROR(CompareIfAsked(index, reported, report));
      report.outputs.push_back(reported.report);
      reporter_.KeepExactIfItFails(report.outputs.back());
      report.outputs.back().is_intermediate = is_intermediate;
      observer_.on_output(index, report.outputs.back());
      report.outputs.back().read_value = nullptr;
      return absl::OkStatus();
    };
    for (const std::string& output : outputs) {
      QG_RETURN_IF_ERROR(Timed(absl::StrCat("report ", output), report, stages,
                               [&] { return report_one(output, false); }));
    }
    if (HasIntermediates()) {
      const auto report_all = [&]() -> absl::Status {
        for (const std::string& name : reporter.Intermediates()) {
          QG_RETURN_IF_ERROR(report_one(name, true));
        }
        return absl::OkStatus();
      };
      QG_RETURN_IF_ERROR(Timed(kBetweenOperations, report, stages, report_all));
    }
    QG_ASSIGN_OR_RETURN(report.stages, TimesOf(stages));
    QG_ASSIGN_OR_RETURN(report.ranks, reporter.Ranks());
    QG_ASSIGN_OR_RETURN(report.state, reporter.State());
    for (const auto& gemm : report.ranks[0].gemms) report.is_hardware |= gemm.is_hardware;
    for (const auto* notes : {&step.ranks[0].result.notes, &reporter.notes()}) {
      report.notes.insert(report.notes.end(), notes->begin(), notes->end());
    }
    if (request_.error_budget) {
      report.notes.push_back("no error budget: it is measured of the GEMMs of one rank");
    }
    QG_RETURN_IF_ERROR(StackGradients(report));
    observer_.on_variant(index, report);
    for (VariantReport::RankReport& rank : report.ranks) {
      for (VariantReport::RankReport::Output& output : rank.outputs) output.to_host = nullptr;
    }
    return absl::OkStatus();
  }

  absl::Status RunOnOneRank(int index) {
    const Variant& variant = request_.variants[index];
    const std::string label = variant.Label();
    QG_RETURN_IF_ERROR(progress_.Begin(label));
    const auto announce = [&](const StageId& stage) {
      progress_.AnnouncePart(absl::StrCat(label, ": ", stage.stage));
    };
    QG_ASSIGN_OR_RETURN(layer_,
                        StartLayer(engine_, request_.step, plan_.layer(index), variant.recipe,
                                   variant.arithmetic, cancellation_, announce));
    LayerResult& result = layer_.result;
    VariantReport& report = report_.variants[index];
    report = DescribeVariant(request_.step.layer, variant, result);
    AddNotesOfCodes(request_.step, report);
    QG_RETURN_IF_ERROR(
        exact_.contents().Start(TensorsOf(result), ContentKeys::Memory::kUntilForget));
    std::vector<TimedStage> stages = std::move(result.stages);
    const auto timed = [&](const std::string& stage, auto body) {
      return Timed(stage, report, stages, body);
    };
    report.outputs.reserve(result.outputs.size() + result.intermediates.size());
    // All reports are begun before the first is waited for, unless comparisons with a reference
    // wait.
    const bool is_compared = request_.reference.has_value() && request_.reference != index;
    const bool waits = is_compared || !request_.subjects.empty();
    std::vector<OutputReporter::Started> started;
    const auto start = [&](const NamedTensor& tensor) -> absl::Status {
      QG_ASSIGN_OR_RETURN(OutputReporter::Started one, reporter_.Start(result, tensor));
      if (waits) return FinishOne(index, result, std::move(one), report);
      started.push_back(std::move(one));
      return absl::OkStatus();
    };
    for (const NamedTensor& output : result.outputs) {
      QG_RETURN_IF_ERROR(
          timed(absl::StrCat("report ", output.name), [&] { return start(output); }));
    }
    if (HasIntermediates()) {
      QG_RETURN_IF_ERROR(timed(kBetweenOperations, [&]() -> absl::Status {
        for (const NamedTensor& intermediate : result.intermediates) {
          QG_RETURN_IF_ERROR(start(intermediate));
        }
        return absl::OkStatus();
      }));
    }
    // While this waits, the engine works on the reports.
    QG_RETURN_IF_ERROR(layer_.Finish());
    report.saved = std::move(result.saved);
    report.quantizations = std::move(result.quantizations);
    if (request_.variants.size() == 1) {
      QG_RETURN_IF_ERROR(FinishOnlyVariant(result, started, stages, report));
    } else {
      for (OutputReporter::Started& one : started) {
        QG_RETURN_IF_ERROR(FinishOne(index, result, std::move(one), report));
      }
    }
    if (report.stacks.empty()) QG_RETURN_IF_ERROR(StackGradients(report));
    if (request_.error_budget) {
      QG_RETURN_IF_ERROR(timed("error budget", [&]() -> absl::Status {
        QG_ASSIGN_OR_RETURN(
            report.error_budgets,
            MeasureErrorBudgets(engine_, request_.step, variant.recipe, result, cancellation_));
        return absl::OkStatus();
      }));
    }
    QG_ASSIGN_OR_RETURN(const std::vector<StageTime> times, TimesOf(stages));
    report.stages.insert(report.stages.end(), times.begin(), times.end());
    observer_.on_variant(index, report);
    return absl::OkStatus();
  }

  /// The reports of the only variant, none of which is kept for others. The engine computes a bound
  /// last, which takes a while; meanwhile everything else is handed out.
  absl::Status FinishOnlyVariant(const LayerResult& result,
                                 std::vector<OutputReporter::Started>& started,
                                 std::vector<TimedStage>& stages, VariantReport& report) {
    for (OutputReporter::Started& one : started) {
      QG_ASSIGN_OR_RETURN(OutputReport measured, reporter_.FinishMeasurement(one));
      HandOut(0, result, std::move(measured), report);
    }
    if (started.empty()) return absl::OkStatus();
    QG_RETURN_IF_ERROR(StackGradients(report));
    // The last stage ends with the last bound.
    const auto ended = std::span(stages).first(stages.size() - 1);
    QG_ASSIGN_OR_RETURN(report.stages, TimesOf(ended));
    stages.erase(stages.begin(), stages.end() - 1);
    observer_.on_measured(0, report);
    for (size_t i = 0; i < started.size(); ++i) {
      if (started[i].known != nullptr) continue;
      QG_ASSIGN_OR_RETURN(report.outputs[i].bound, started[i].bound.Finish());
      reporter_.KeepExactIfItFails(report.outputs[i]);
    }
    return absl::OkStatus();
  }

  absl::Status FinishOne(int index, const LayerResult& result, OutputReporter::Started started,
                         VariantReport& report) {
    QG_ASSIGN_OR_RETURN(const ReportedOutput* reported, reporter_.Finish(std::move(started)));
    QG_RETURN_IF_ERROR(CompareIfAsked(index, *reported, report));
    OutputReport output = reported->report;
    const auto subject = request_.subjects.find(output.tensor);
    if (index == 0 && subject != request_.subjects.end()) {
      QG_ASSIGN_OR_RETURN(output.subject_bound,
                          reporter_.CheckSubject(result, *reported, subject->second));
    }
    HandOut(index, result, std::move(output), report);
    return absl::OkStatus();
  }

  /// Hands out one report; intermediates come after the layer's outputs.
  void HandOut(int index, const LayerResult& result, OutputReport output, VariantReport& report) {
    output.is_intermediate = report.outputs.size() >= result.outputs.size();
    report.outputs.push_back(std::move(output));
    observer_.on_output(index, report.outputs.back());
  }

  absl::Status CompareIfAsked(int index, const ReportedOutput& reported, VariantReport& report) {
    if (!request_.reference.has_value() || request_.reference == index) return absl::OkStatus();
    return CompareOne(reported, report);
  }

  absl::Status CompareOne(const ReportedOutput& reported, VariantReport& report) {
    const VariantReport& reference = report_.variants[*request_.reference];
    const OutputReport* found = FindOutput(reference, reported.report.tensor);
    // Intermediates depend on the recipe: one recipe may round where another does not.
    if (found == nullptr) return absl::OkStatus();
    const OutputReport& other = *found;
    QG_ASSIGN_OR_RETURN(std::optional<TensorComparison> comparison,
                        reporter_.CompareWithReference(reported, other, reference.label));
    if (comparison.has_value()) {
      report.against_reference.push_back(*std::move(comparison));
    } else {
      report.notes.push_back(absl::StrCat(
          reported.report.tensor, " is ", TensorText(reported.report.value),
          " and not compared with ", TensorText(other.value), " of ", reference.label));
    }
    return absl::OkStatus();
  }

  const Plan& plan_;
  const LayerRunRequest& request_;
  Engine& engine_;
  const Cancellation* const cancellation_;
  const RunObserver& observer_;
  const RankSetting* const setting_;
  ExactValues exact_;
  OutputReporter reporter_;
  Progress progress_;
  RankEngines rank_engines_;
  StartedLayer layer_;  ///< The last variant on one rank.
  RunReport report_;
};

bool NamesAmaxGroups(const Plan& plan) {
  const std::vector<Variant>& variants = plan.request().variants;
  return std::any_of(variants.begin(), variants.end(), [](const Variant& variant) {
    return variant.parallel.has_value() && !variant.parallel->amax_groups.empty();
  });
}

}  // namespace

absl::StatusOr<RunReport> RunPlan(const Plan& plan, Engine& engine,
                                  const Cancellation* cancellation, const RunObserver& observer,
                                  const RankSetting* setting) {
  const auto run = std::make_shared<PlanRun>(plan, engine, cancellation, observer, setting);
  QG_RETURN_IF_ERROR(run->CheckRanks());
  absl::StatusOr<RunReport> report = run->Run();
  if (report.ok()) report->kept_alive = run;
  switch (report.status().code()) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnavailable:  // A rank has gone.
      return report;
    case absl::StatusCode::kFailedPrecondition:
      // Whether the scales under a named group agree depends on the values of tensors.
      if (NamesAmaxGroups(plan)) return report;
      [[fallthrough]];
    default:
      // The plan was accepted, so a refusal now is a bug, here or in the plan's checks.
      return absl::InternalError(
          absl::StrCat("an accepted plan failed: ", report.status().ToString()));
  }
}

}  // namespace quantgate
