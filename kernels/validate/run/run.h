// RunPlan, which runs a plan, and the report that it makes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/comm/group/world.h"
#include "kernels/engine/engine.h"
#include "kernels/validate/diagnosis/diagnosis.h"
#include "kernels/validate/plan.h"
#include "kernels/validate/reference/error_budget.h"

namespace quantgate {

/// One comparison of one output tensor.
struct TensorComparison {
  std::string tensor;     ///< "y", "dx", "dw", "main_grad", "db", "fc1.dw", ...
  std::string reference;  ///< "exact" or the label of the reference variant.
  /// The subject's bits against the reference's; `exact` is rounded once to the subject's dtype.
  ParityReport parity;
  ErrorReport error;  ///< Against the reference.
  /// Which of subject and reference variant is nearer to `exact` of the subject's operands.
  std::optional<NearerReport> nearer;
};

/// One output tensor of one variant, with both named references (docs/reports.md section 1).
struct OutputReport {
  std::string tensor;
  bool is_intermediate = false;  ///< A tensor between two operations, not an output.
  /// The arithmetic that ran, fully resolved; "pairwise fp32 sum" for db, "fp32 operations" for
  /// what no GEMM made.
  std::string arithmetic;
  Tensor value;
  /// For RunObserver::on_output: reads `value` without waiting for work that the engine was given
  /// after this report began. Empty if several ranks have the value.
  Engine::HostRead read_value;
  /// `exact` in the value's own dtype, kept only where the run's requirement holds the value to it
  /// and the value fails.
  Tensor exact;
  Fingerprint fingerprint;
  ErrorReport against_unquantized;  ///< Against `exact` of the original operands, rounded to f32.
  TensorComparison against_exact;   ///< Against `exact` of the subject's own quantized operands.
  /// Absent of a sum over no rows, of a quantize operation, and if the GEMM's arithmetic is exact.
  std::optional<BoundCheck> bound;
  std::string exact_note;                   ///< The bits that `exact` needed and had.
  std::optional<BoundCheck> subject_bound;  ///< The check of LayerRunRequest::subjects[tensor].
  /// Which rank's value differs from the reported one, rank 0's, if every rank has the value. Empty
  /// if none differs; otherwise no requirement is met.
  std::string rank_difference;
};

struct Verdict {
  Requirement criterion = Requirement::kNone;
  bool pass = true;
  /// What is required: "0 differing elements"; "|error| <= 0.066 x sum|a||b| + half ulp".
  std::string threshold;
  std::string source;  ///< Where the threshold comes from.
  std::string found;   ///< What was found: "0"; "12 in y of fp8_current / none / sm90".
  /// "y of fp8_current / none / sm90 differs from ... in 12 of 524288 elements, first at (0, 7)".
  std::string finding;
  /// The numbers of NaN and infinities in outputs and of those that `exact` has in the same places;
  /// empty if all outputs are finite. Then the inputs that have any, which outputs need not show.
  std::string non_finite, non_finite_inputs;
};

struct VariantReport {
  std::string label;
  std::string recipe;       ///< Canonical text, every knob.
  std::string recipe_name;  ///< Base name, for metric labels.
  std::string recipe_digest;
  std::string backward_override;
  std::string arithmetic;             ///< As asked for, canonical.
  bool is_hardware = false;           ///< Whether hardware ran any of its GEMMs.
  std::vector<OutputReport> outputs;  ///< Outputs, then intermediates.
  /// Empty for the reference variant itself, and without one.
  std::vector<TensorComparison> against_reference;
  std::vector<SavedOperand> saved;
  std::vector<QuantizationRecord> quantizations;
  struct GemmLine {
    std::string role, output, text, a_source, b_source, arithmetic;
    bool is_hardware = false;
    std::string algorithm;  ///< CublasLtAlgorithm::ToString(), if is_hardware.
    /// What an operand went through beside its own quantization: "x: quantized twice, ...". May be
    /// empty.
    std::string note;
  };
  std::vector<GemmLine> gemms;
  std::vector<ErrorBudget> error_budgets;  ///< One for each GEMM, if the request asks for them.
  std::vector<StageTime> stages;
  std::vector<std::string> notes;
  std::vector<NamedTensor> state;  ///< LayerResult::state.
  /// Where weights or main gradients of all experts were given as one tensor: "dw", "main_grad"
  /// [E][N][K], the experts' outputs one after the other.
  std::vector<NamedTensor> stacks;
  /// What one rank did in a variant on several ranks.
  struct RankReport {
    int rank = 0;
    std::string device;  ///< DeviceDescription::id.
    struct Output {
      std::string tensor;
      DType dtype = DType::kF32;
      Shape shape;
      Fingerprint fingerprint;
      /// For RunObserver::on_variant: copies the part to host memory. Empty afterwards.
      std::function<absl::StatusOr<Tensor>()> to_host = {};
    };
    std::vector<Output> outputs;  ///< This rank's parts.
    std::vector<SavedOperand> saved;
    std::vector<QuantizationRecord> quantizations;
    std::vector<GemmLine> gemms;
    std::vector<StageTime> stages;
    std::vector<StageTimeline> timelines;  ///< Timelines of stages that overlap.
    GatheredRecord gathered;
  };
  /// By rank. Saved operands, quantizations and GEMMs are then only here.
  std::vector<RankReport> ranks;
};

/// What a report says about a GEMM that a layer did.
VariantReport::GemmLine GemmLineOf(const GemmRecord& gemm);

/// Whether two variants have equal bits in one output: a cell of the matrix of `quantgate compare`.
struct PairSummary {
  // Indices into RunReport::variants.
  int subject = 0;
  int reference = 0;
  std::string tensor;
  bool comparable = true;  ///< False if one side lacks the tensor or the dtypes differ.
  int64_t mismatch_count = 0;
  int64_t element_count = 0;
  double relative_frobenius = 0;
};

struct RunReport {
  std::vector<VariantReport> variants;
  std::vector<PairSummary> pairs;  ///< For each tensor and each two variants, subject > reference.
  Verdict verdict;
  std::optional<Diagnosis> diagnosis;  ///< Of a verdict that fails.
  /// A tensor that the run was given.
  struct Input {
    /// "x", "grad_output", "parameters[weight]", "main_grads[weight]",
    /// "delayed_state[input.scale]"; of an operand given as codes its parts, "x.rowwise_data".
    std::string name;
    Fingerprint fingerprint;
  };
  std::vector<Input> inputs;
  /// Keeps intermediates alive so that they can be freed off the critical path.
  std::shared_ptr<const void> kept_alive;
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
  /// Called with each of VariantReport::outputs as soon as it is measured. The engine may still be
  /// computing the output's own bound or the next output.
  absl::FunctionRef<void(int index, const OutputReport&)> on_output = IgnoreOutput;
  /// Called after the last on_output if the engine is still computing the last bound. The variant
  /// lacks bounds, error budgets and the last stages; on_variant follows with them. Not called for
  /// every variant.
  absl::FunctionRef<void(int index, const VariantReport&)> on_measured = IgnoreVariant;
};

/// Runs every variant of the plan and forms the report; a mismatch is a result, not an error.
/// `setting`: how variants on several ranks run (null: the defaults). Errors: CANCELLED,
/// DEADLINE_EXCEEDED (also if ranks wait for one another too long), RESOURCE_EXHAUSTED (memory),
/// UNAVAILABLE (a rank has gone), INTERNAL. Before anything runs FAILED_PRECONDITION or
/// UNIMPLEMENTED, if this host or build lacks the engines or the backend of a variant on several
/// ranks. FAILED_PRECONDITION also if the amax groups that a variant names leave ranks with
/// different scales for codes that are to be joined.
absl::StatusOr<RunReport> RunPlan(const Plan& plan, Engine& engine,
                                  const Cancellation* cancellation, const RunObserver& observer,
                                  const RankSetting* setting = nullptr);

}  // namespace quantgate
