// Runs a plan and forms its report.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/comm/group/world.h"
#include "kernels/engine/engine.h"
#include "kernels/validate/plan.h"
#include "kernels/validate/reference/error_budget.h"

namespace quantgate {

/// One comparison of one output tensor.
struct TensorComparison {
  std::string tensor;     ///< "y", "dx", "dw", "main_grad", "db", "fc1.dw", ...
  std::string reference;  ///< "exact" or the label of the reference variant.
  ParityReport parity;    ///< Subject's bits against the reference's (`exact`: rounded once to the
                          ///< subject's dtype).
  ErrorReport error;      ///< Against the reference.
  std::optional<NearerReport>
      nearer;  ///< Subject and reference variant against `exact` of the subject's operands.
};

/// One output tensor of one variant, with both named references (docs/definitions.md section 5.1).
struct OutputReport {
  std::string tensor;
  bool is_intermediate = false;  ///< Not an output: what one operation gave the next.
  std::string arithmetic;        ///< What ran, fully resolved; "pairwise fp32 sum" for db, "fp32
                                 ///< operations" for what no GEMM made.
  Tensor value;
  /// For RunObserver::on_output: reads `value`, and does not wait for what the engine was asked
  /// after its report began. Empty where several ranks have it.
  Engine::HostRead read_value;
  Fingerprint fingerprint;
  ErrorReport against_unquantized;  ///< Original operands, `exact`, rounded once to f32.
  TensorComparison against_exact;   ///< The subject's own quantized operands under `exact`.
  std::optional<BoundCheck>
      bound;  ///< Absent where no bound is derived (db) or the GEMM's arithmetic is exact.
  std::string exact_note;                   ///< Bits needed and available.
  std::optional<BoundCheck> subject_bound;  ///< Of LayerRunRequest::subjects[tensor].
  /// Of a value that every rank has: which rank's differs from the reported one, rank 0's. Empty
  /// where none does; else no requirement is met.
  std::string rank_difference;
};

struct Verdict {
  Requirement criterion = Requirement::kNone;
  bool pass = true;
  /// What is required: "0 differing elements"; "|error| <= 0.066 x sum|a||b| + half ulp".
  std::string threshold;
  std::string source;  ///< Where the threshold comes from.
  std::string found;   ///< What there is of it: "0"; "12 in y of fp8_current / none / sm90".
  /// "y of fp8_current / none / sm90 differs from ... in 12 of 524288 elements, first at (0, 7)".
  std::string finding;
  /// NaN and infinities in outputs and how many exact has in the same places, and the inputs that
  /// have any; empty where all outputs are finite.
  std::string non_finite, non_finite_inputs;
};

struct VariantReport {
  std::string label;
  std::string recipe;       ///< Canonical text, every knob.
  std::string recipe_name;  ///< Base name, for metric labels.
  std::string recipe_digest;
  std::string backward_override;
  std::string arithmetic;             ///< As asked, canonical.
  bool is_hardware = false;           ///< Of any of its GEMMs.
  std::vector<OutputReport> outputs;  ///< Intermediates behind them.
  std::vector<TensorComparison>
      against_reference;  ///< Empty for the reference itself and without a reference.
  std::vector<SavedOperand> saved;
  std::vector<QuantizationRecord> quantizations;
  struct GemmLine {
    std::string role, output, text, a_source, b_source, arithmetic;
    bool is_hardware = false;
    std::string algorithm;  ///< Of hardware: CublasLtAlgorithm::ToString().
  };
  std::vector<GemmLine> gemms;
  std::vector<ErrorBudget> error_budgets;  ///< One per GEMM, where the request asks for them.
  std::vector<StageTime> stages;
  std::vector<std::string> notes;
  std::vector<NamedTensor> state;  ///< LayerResult::state.
  /// Of a variant on several ranks, in their order. What lies between operations, saved operands,
  /// quantizations and GEMMs are then theirs and not the variant's.
  struct RankReport {
    int rank = 0;
    std::string device;  ///< DeviceDescription::id.
    struct Output {
      std::string tensor;
      DType dtype = DType::kF32;
      Shape shape;
      Fingerprint fingerprint;
    };
    std::vector<Output> outputs;  ///< This rank's parts.
    std::vector<SavedOperand> saved;
    std::vector<QuantizationRecord> quantizations;
    std::vector<GemmLine> gemms;
    std::vector<StageTime> stages;
    std::vector<StageTimeline> timelines;  ///< Of stages that overlap.
  };
  std::vector<RankReport> ranks;
};

/// What a report says of a GEMM that a layer did.
VariantReport::GemmLine GemmLineOf(const GemmRecord& gemm);

/// Equal or not, between any two variants, per output: the matrix of `quantgate compare`.
struct PairSummary {
  int subject = 0;  ///< Indices into variants.
  int reference = 0;
  std::string tensor;
  bool comparable = true;  ///< False when one side lacks the tensor or dtypes differ.
  int64_t mismatch_count = 0;
  int64_t element_count = 0;
  double relative_frobenius = 0;
};

struct RunReport {
  std::vector<VariantReport> variants;
  std::vector<PairSummary> pairs;  ///< Every subject > reference, per tensor.
  Verdict verdict;
  /// What the run took: "x", "grad_output", "parameters[weight]", "main_grads[weight]",
  /// "delayed_state[input.scale]".
  struct Input {
    std::string name;
    Fingerprint fingerprint;
  };
  std::vector<Input> inputs;
  /// Everything else that the run made. To give its tensors back takes a while: whoever is in a
  /// hurry drops it later.
  std::shared_ptr<const void> made;
};

struct RunProgress {
  int step = 0;
  int step_count = 0;
  std::string what;  ///< "fp8_current / none / sm90: dgrad".
};

inline void IgnoreOutput(int, const OutputReport&) {}
inline void IgnoreVariant(int, const VariantReport&) {}

/// Called from the running thread, in order.
struct RunObserver {
  absl::FunctionRef<void(const RunProgress&)> on_progress;
  absl::FunctionRef<void(int index, const VariantReport&)> on_variant;
  /// Each of VariantReport::outputs as soon as it is measured: the engine may still be at the next,
  /// or at its own bound.
  absl::FunctionRef<void(int index, const OutputReport&)> on_output = IgnoreOutput;
  /// Where the engine is still at the last bound: the variant but for bounds, error budgets and the
  /// last stages, which on_variant adds. Behind the last on_output; not of every variant.
  absl::FunctionRef<void(int index, const VariantReport&)> on_measured = IgnoreVariant;
};

/// CANCELLED, DEADLINE_EXCEEDED (also of ranks that wait for one another), RESOURCE_EXHAUSTED
/// (memory), UNAVAILABLE (a rank has gone) or INTERNAL; a mismatch is a result.
/// FAILED_PRECONDITION or UNIMPLEMENTED, before anything runs, where this host or build does not
/// have the engines or the backend of a variant on several ranks, which run in this `setting`
/// (null: the defaults). FAILED_PRECONDITION too where codes would be joined under scales that
/// differ, as amax groups that a variant names leave them.
absl::StatusOr<RunReport> RunPlan(const Plan& plan, Engine& engine,
                                  const Cancellation* cancellation, const RunObserver& observer,
                                  const RankSetting* setting = nullptr);

}  // namespace quantgate
