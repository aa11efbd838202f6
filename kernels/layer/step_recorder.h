// StepRecorder: one step of a layer on its way through an engine, and what its report will say of
// it. Nothing waits for the device before Read. Used by one thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/base/seeded_fault.h"
#include "kernels/base/status_macros.h"
#include "kernels/comm/overlap/overlap_timeline.h"
#include "kernels/engine/engine.h"
#include "kernels/quantize/recipe/recipe.h"
#include "kernels/tensor/files/tensor_file.h"

namespace quantgate {

/// What an operand of a GEMM is made of.
struct OperandOrigin {
  enum class Content { kAsGiven, kRowwiseCodes, kColumnwiseCodes, kDequantized };
  std::string tensor;  ///< Given, an output or an intermediate of that name.
  Content content = Content::kAsGiven;
  /// "x quantized rowwise", "grad_output", "weight dequantized".
  std::string Text() const;
  friend bool operator==(const OperandOrigin&, const OperandOrigin&) = default;
};

/// A GEMM that the layer did, with its operands, so that it can be done again under another
/// arithmetic.
struct GemmRecord {
  GemmRole role = GemmRole::kFprop;
  std::string output;  ///< "y", "dx", "dw", "main_grad", "fc1.y", ...
  GemmDesc desc;
  OperandOrigin a, b;
  GemmResult result;  ///< d is 2-D; the output of the same name has the caller's shape.
  int pieces = 1;     ///< GEMMs that gave it, where communication ran beside them.
};

/// One operand kept between forward and backward; equal fingerprints show that nobody wrote to it.
struct SavedOperand {
  std::string name;     ///< "x", "weight", "weight workspace" (docs/quantizers.md section 9).
  std::string content;  ///< "f8_e4m3 columnwise codes", "bf16 as given", "f8_e4m3 rowwise codes".
  Fingerprint at_save;  ///< Codes and scale_inv together: the sum of their fingerprints.
  Fingerprint at_use;
  bool used = false;  ///< False: saved by the mode's rule but read by nothing.
};

/// One quantization that the layer did.
struct QuantizationRecord : QuantizationSummary {
  TensorRole role = TensorRole::kInput;
  Usages usages;
  std::string quantizer;  ///< QuantizerText: the rule.
  std::string tensor;     ///< What was quantized: "x", "fc1.weight", "grad_output".
  /// Whose largest amax it was quantized with, or under delayed scaling is noted where a step named
  /// a group: "tensor (ranks 0, 1)", "none". Empty: this rank's own, or by default.
  std::string amax_group = {};
  /// Of stochastic rounding: what its random bytes follow from (docs/quantizers.md section 6.5).
  struct Draw {
    uint64_t seed = 0;
    uint32_t call_id = 0;
  };
  std::optional<Draw> draw = {};
};

/// The rule, and what it draws with these arguments.
void SetRule(const Quantizer& quantizer, const QuantizeArguments& arguments,
             QuantizationRecord& record);

/// What a stage spends its time on, for whoever adds times up.
enum class StageKind {
  kGemm,         ///< Also what overlaps it, and the sum of a bias gradient.
  kQuantize,     ///< To codes and back, casts, amaxes of a calibration.
  kOperation,    ///< Every other operation: norms, activations, sums.
  kCommunicate,  ///< Among ranks alone.
  kCompare,      ///< For the report or the next step: fingerprints, reports, updates of scales.
};

struct StageId {
  StageKind kind = StageKind::kOperation;
  std::string stage;  ///< "quantize x", "fprop", "bias gradient", "fc1.fprop", ...
};

struct StageTime : StageId {
  double seconds = 0;
};

/// A stage of a step that may still be under way. Whoever wants its time waits for it; a step that
/// is followed by another one need not.
struct TimedStage : StageId {
  std::shared_ptr<Stopwatch> stopwatch;  ///< Stopped.
};
/// Waits for all of them.
absl::StatusOr<std::vector<StageTime>> TimesOf(std::span<const TimedStage> stages);

/// Of a stage that communicated and multiplied at the same time.
struct StageTimeline {
  std::string stage;  ///< "fprop", "fc1.dgrad", ...
  OverlapTimeline timeline;
};

/// What a report says of a step beside its outputs.
struct StepRecords {
  std::vector<GemmRecord> gemms;
  std::vector<SavedOperand> saved;
  std::vector<QuantizationRecord> quantizations;
  std::vector<TimedStage> stages;
  std::vector<StageTimeline> timelines;  ///< In the order of the stages; on this rank.
  std::vector<std::string>
      notes;  ///< "backward_override has no effect without a quantized recipe".
};

/// Called from the running thread before each stage.
using StageObserver = absl::FunctionRef<void(const StageId& stage)>;
inline void IgnoreStage(const StageId&) {}

/// A saved operand in its report, and its fingerprint at save, perhaps still being computed. Kept
/// beside the operand, so that the step that uses it can be another one than the step that saved.
struct SavedMark {
  std::string name;
  std::string content;
  std::vector<Tensor> at_save;  ///< Of Engine::StartFingerprints.
};
using SavedMarkPointer = std::shared_ptr<const SavedMark>;

/// Something to be kept for backward. What holds no tensor has no part in its fingerprint.
struct OperandToSave {
  std::string name;
  std::string content;
  std::vector<Tensor> parts;
};
/// Something that was kept, where it is used.
struct UsedOperand {
  SavedMarkPointer mark;
  std::vector<Tensor> parts;
  bool is_read = true;
};

class StepRecorder {
 public:
  /// References, and what `on_stage` refers to, must outlive the recorder.
  StepRecorder(Engine& engine, const Arithmetic& arithmetic, const Cancellation* cancellation,
               StageObserver on_stage = IgnoreStage);

  Engine& engine() { return engine_; }
  const Arithmetic& arithmetic() const { return arithmetic_; }
  const Cancellation* cancellation() const { return cancellation_; }

  /// Puts bugs in place, for scenarios: kernels/layer/layer_faults.h.
  void SeedFaults(const SeededFaults& faults) { faults_ = faults; }
  const SeededFaults& faults() const { return faults_; }

  /// Runs one stage: cancellation, the observer, and its time.
  template <typename Body>
  auto Timed(const StageId& stage, Body body) -> decltype(body()) {
    if (cancellation_ != nullptr) {
      if (absl::Status status = cancellation_->Check(); !status.ok()) return status;
    }
    on_stage_(stage);
    std::shared_ptr<Stopwatch> stopwatch = engine_.StartStopwatch();
    auto value = body();
    if (absl::Status status = stopwatch->Stop(); !status.ok()) return status;
    records_.stages.push_back({stage, std::move(stopwatch)});
    return value;
  }

  /// RNE to `dtype`; no stage where that is the source's own.
  absl::StatusOr<Tensor> Cast(const std::string& stage, const Tensor& source, DType dtype);
  /// Quantizes and records it; `tensor`, `role` and `amax_group` are what the report says of the
  /// source.
  absl::StatusOr<QuantizedTensor> Quantize(const std::string& stage, const std::string& tensor,
                                           TensorRole role, const Tensor& source,
                                           const Quantizer& quantizer, Usages usages,
                                           const QuantizeArguments& arguments,
                                           std::string amax_group = {});
  /// Runs record.desc, records it, and returns d.
  absl::StatusOr<Tensor> Gemm(const std::string& stage, GemmRecord record);
  /// Records a GEMM that was run as part of something else, and the timeline of that if it has
  /// tasks.
  absl::Status RecordGemm(GemmRecord record, StageTimeline timeline);

  /// Starts the fingerprints of what is kept for backward, and of it at use: all at once, since
  /// each start takes the device longer than a small tensor.
  absl::StatusOr<std::vector<SavedMarkPointer>> Save(std::span<const OperandToSave> operands);
  absl::Status Use(std::span<const UsedOperand> operands);

  /// Once, whoever says it how often.
  void AddNote(const std::string& note);

  /// What is known without waiting: all but the fingerprints of saved operands and what
  /// quantizations left. The last that is recorded; `on_stage` is not called any more.
  StepRecords Stop() { return std::move(records_); }
  /// Waits for these and reads them into what Stop gave; not for what came after them. Once.
  absl::Status Read(StepRecords& records);
  /// Both.
  absl::StatusOr<StepRecords> Finish();

 private:
  /// A record of saved_, and the parts of its fingerprints.
  struct RunningFingerprint {
    size_t record;
    Fingerprint SavedOperand::*moment;
    std::vector<Tensor> parts;
  };

  /// By operand, those of its parts.
  template <typename Operand>
  absl::StatusOr<std::vector<std::vector<Tensor>>> StartFingerprints(
      std::span<const Operand> operands);
  size_t RecordOf(const SavedMarkPointer& mark);
  absl::Status ReadFingerprints(StepRecords& records);
  absl::Status ReadSummaries(StepRecords& records);

  Engine& engine_;
  const Arithmetic arithmetic_;
  const Cancellation* const cancellation_;
  const StageObserver on_stage_;
  SeededFaults faults_;

  StepRecords records_;
  // Read once at the end, so that nothing waits for a device between operations.
  std::vector<RunningFingerprint> fingerprints_;
  /// What records_.quantizations are of, without the codes.
  std::vector<QuantizedTensor> quantized_;
  /// By mark, which is kept alive: an address is not given out twice.
  std::map<SavedMarkPointer, size_t> saved_;
};

}  // namespace quantgate
