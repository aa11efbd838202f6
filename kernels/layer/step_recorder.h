// StepRecorder: runs the stages of one step of a layer on an engine, and records what the report of
// the step will say. Does not wait for the device before Read. Used by one thread.
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
#include "kernels/layer/saved_size.h"
#include "kernels/quantize/recipe/recipe.h"
#include "kernels/tensor/files/tensor_file.h"

namespace quantgate {

/// What an operand of a GEMM is made of.
struct OperandOrigin {
  enum class Content { kAsGiven, kCast, kRowwiseCodes, kColumnwiseCodes, kDequantized };
  std::string tensor;  ///< The name of a given tensor, an output or an intermediate.
  Content content = Content::kAsGiven;
  /// The codes of each rank's rows whose values were gathered and quantized again: "mxfp8 (f8_e4m3
  /// rowwise codes)". Empty: the operand was quantized once.
  std::string quantized_before = {};
  /// "x quantized rowwise", "grad_output", "weight dequantized", "x cast".
  std::string Text() const;
  friend bool operator==(const OperandOrigin&, const OperandOrigin&) = default;
};

/// A GEMM that the layer did, with its operands, so that it can be repeated under another
/// arithmetic.
struct GemmRecord {
  GemmRole role = GemmRole::kFprop;
  std::string output;  ///< "y", "dx", "dw", "main_grad", "fc1.y", ...
  GemmDesc desc;
  OperandOrigin a, b;
  GemmResult result;  ///< d is 2-D; the output of the same name has the caller's shape.
  /// Above 0: a product of attention, and the record is that of the first of so many heads, without
  /// its d.
  int64_t matrices = 0;
  /// result.d quantized, if the recipe has a rule for it.
  struct ResultCodes {
    QuantizerSpec rule;
    QuantizedTensor codes;  ///< Rowwise.
    Tensor values;          ///< Of the codes; the output in place of result.d.
  };
  std::optional<ResultCodes> result_codes = {};
  int pieces = 1;  ///< How many GEMMs it was cut into so that communication ran beside them.
};

/// Operands of one of several GEMMs that are alike, and GemmDesc::d.
struct MatrixProduct {
  Tensor a, b, d;
};

/// One operand kept between forward and backward. Equal fingerprints show that nothing wrote to it.
struct SavedOperand {
  std::string name;     ///< "x", "weight", "weight workspace" (docs/quantizers.md section 9).
  std::string content;  ///< "f8_e4m3 columnwise codes", "bf16 as given", "f8_e4m3 rowwise codes".
  Fingerprint at_save;  ///< The sum of the fingerprints of its parts, codes and scale_inv.
  Fingerprint at_use;   ///< Likewise.
  bool used = false;    ///< False: saved by the mode's rule, but nothing reads it.
  std::string format;   ///< "mxfp8", "bf16", "fp8_tensor and mxfp8": of codes, of values.
  SavedSize size;       ///< Of all its tensors.
  /// What it adds to the step's sum: without storage that an operand saved before it shares.
  SavedSize counted;
};

/// The sum of what each operand adds.
SavedSize SumOf(std::span<const SavedOperand> saved);

/// One quantization that the layer did.
struct QuantizationRecord : QuantizationSummary {
  TensorRole role = TensorRole::kInput;
  Usages usages;
  std::string quantizer;  ///< QuantizerText: the rule.
  std::string tensor;     ///< What was quantized: "x", "fc1.weight", "grad_output".
  /// The ranks over which its amax is the maximum, if the step named a group: "tensor (ranks 0,
  /// 1)", "none". Under delayed scaling that is the amax noted in the history. Empty: no group was
  /// named.
  std::string amax_group = {};
  /// What the random bytes of stochastic rounding follow from (docs/quantizers.md section 6.5).
  struct Draw {
    uint64_t seed = 0;
    uint32_t call_id = 0;
  };
  std::optional<Draw> draw = {};
};

/// Sets the record's rule, and its draw if the rule rounds stochastically.
void SetRule(const Quantizer& quantizer, const QuantizeArguments& arguments,
             QuantizationRecord& record);

/// What a stage spends its time on, for adding up times by kind.
enum class StageKind {
  kGemm,         ///< Includes communication that overlaps it, and the sum of a bias gradient.
  kQuantize,     ///< To codes and back, casts, amaxes of a calibration.
  kOperation,    ///< Every other operation: norms, activations, sums.
  kCommunicate,  ///< Communication among ranks that nothing overlaps.
  kCompare,      ///< For the report or the next step: fingerprints, reports, updates of scales.
};

struct StageId {
  StageKind kind = StageKind::kOperation;
  std::string stage;  ///< "quantize x", "fprop", "bias gradient", "fc1.fprop", ...
};

struct StageTime : StageId {
  double seconds = 0;
};

/// A stage that the device may still be working on. Only reading its time waits for it.
struct TimedStage : StageId {
  std::shared_ptr<Stopwatch> stopwatch;  ///< Stopped.
};
/// Their times; waits for all of them.
absl::StatusOr<std::vector<StageTime>> TimesOf(std::span<const TimedStage> stages);

/// The timeline of a stage that communicated and multiplied at the same time.
struct StageTimeline {
  std::string stage;  ///< "fprop", "fc1.dgrad", ...
  OverlapTimeline timeline;
};

/// What a rank gathered for a backward: whole x and grad_output, as GEMMs read them, and what these
/// were made of, in bytes. Records of GEMMs hold their operands for the report; that is not
/// counted.
struct GatheredRecord {
  int64_t peak = 0;  ///< The most that was held at a time.
  int64_t held = 0;  ///< What is still held when the step has ended.
};

/// What a report says about a step beside its outputs.
struct StepRecords {
  std::vector<GemmRecord> gemms;
  std::vector<SavedOperand> saved;
  std::vector<QuantizationRecord> quantizations;
  std::vector<TimedStage> stages;
  std::vector<StageTimeline> timelines;  ///< In the order of the stages; on this rank.
  GatheredRecord gathered;
  std::vector<std::string>
      notes;  ///< "backward_override has no effect without a quantized recipe".
};

/// Called from the running thread before each stage.
using StageObserver = absl::FunctionRef<void(const StageId& stage)>;
inline void IgnoreStage(const StageId&) {}

/// What a report says about a saved operand, and its fingerprint at save, which may still be being
/// computed. Kept beside the operand, since a step may use what an earlier step saved.
struct SavedMark {
  std::string name;
  std::string content;
  std::string format;
  StorageCount::Sizes sizes;
  std::vector<Tensor> at_save;  ///< Results of Engine::StartFingerprints.
};
using SavedMarkPointer = std::shared_ptr<const SavedMark>;

/// An operand to be kept for backward. Absent parts are left out of its fingerprint.
struct OperandToSave {
  std::string name;
  std::string content;
  std::string format;
  std::vector<SavedTensor> parts;
  /// Tensors that the layer's state holds anyway, some of which may be among the parts.
  std::vector<Tensor> held = {};
};
/// A kept operand at the place of its use.
struct UsedOperand {
  SavedMarkPointer mark;
  std::vector<Tensor> parts;
  bool is_read = true;  ///< SavedOperand::used.
};

class StepRecorder {
 public:
  /// The references, and what `on_stage` refers to, must outlive the recorder.
  StepRecorder(Engine& engine, const Arithmetic& arithmetic, const Cancellation* cancellation,
               StageObserver on_stage = IgnoreStage);

  Engine& engine() { return engine_; }
  const Arithmetic& arithmetic() const { return arithmetic_; }
  const Cancellation* cancellation() const { return cancellation_; }

  /// Seeds bugs (kernels/layer/layer_faults.h), for scenarios.
  void SeedFaults(const SeededFaults& faults) { faults_ = faults; }
  const SeededFaults& faults() const { return faults_; }

  /// Runs `body` as one stage: checks for cancellation, calls the observer, and takes the time.
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

  /// `source` rounded to nearest even in `dtype`. If it has that dtype already, there is no stage.
  absl::StatusOr<Tensor> Cast(const std::string& stage, const Tensor& source, DType dtype);
  /// Quantizes `source` and records that. `tensor`, `role` and `amax_group` are for the report.
  absl::StatusOr<QuantizedTensor> Quantize(const std::string& stage, const std::string& tensor,
                                           TensorRole role, const Tensor& source,
                                           const Quantizer& quantizer, Usages usages,
                                           const QuantizeArguments& arguments,
                                           std::string amax_group = {});
  /// Runs record.desc, records it, and returns d.
  absl::StatusOr<Tensor> Gemm(const std::string& stage, GemmRecord record);
  /// Runs record.desc once for each of `products` as one stage; records the first and their number.
  /// There must be at least one.
  absl::Status Gemms(const std::string& stage, GemmRecord record,
                     std::span<const MatrixProduct> products);
  /// Records a GEMM that was run as part of another call, and the timeline of that call unless it
  /// is empty.
  absl::Status RecordGemm(GemmRecord record, StageTimeline timeline);

  /// Sets GemmRecord::result_codes of the last GEMM that gave `output`.
  void SetResultCodes(const std::string& output, GemmRecord::ResultCodes codes);

  /// Start the fingerprints of operands that are kept for backward, and of the same operands at
  /// their use. Take many operands, since starting takes longer than fingerprinting a small tensor.
  absl::StatusOr<std::vector<SavedMarkPointer>> Save(std::span<const OperandToSave> operands);
  absl::Status Use(std::span<const UsedOperand> operands);

  /// Counts bytes that were gathered for a backward, until the last copy of the lease has gone.
  std::shared_ptr<const void> HoldGathered(int64_t bytes) { return gathered_.Hold(bytes); }
  /// Counts what is gathered together with another recorder of the same step.
  void ShareGathered(const StepRecorder& other) { gathered_ = other.gathered_; }

  /// Adds a note to the report, once however often it is added.
  void AddNote(const std::string& note);

  /// Ends the recording and hands over the records, without waiting: the fingerprints of saved
  /// operands and the summaries of quantizations are still missing. `on_stage` is not called after
  /// this.
  StepRecords TakeRecords() {
    records_.gathered = {gathered_.peak(), gathered_.held()};
    return std::move(records_);
  }
  /// Adds what is missing to the records that TakeRecords gave. Waits until it is computed, but not
  /// for later work. Call once.
  absl::Status Read(StepRecords& records);
  /// TakeRecords and Read.
  absl::StatusOr<StepRecords> Finish();

 private:
  /// The fingerprint of one saved operand at save or at use.
  struct RunningFingerprint {
    size_t record;  ///< Index into records_.saved.
    Fingerprint SavedOperand::*moment;
    std::vector<Tensor> parts;
  };

  /// The started fingerprints of each operand's parts, by operand.
  absl::StatusOr<std::vector<std::vector<Tensor>>> StartFingerprints(
      const std::vector<std::vector<Tensor>>& operands);
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
  /// The tensors of records_.quantizations, without their codes.
  std::vector<QuantizedTensor> quantized_;
  /// Indices into records_.saved. Keeps the marks alive, so that no address is reused.
  std::map<SavedMarkPointer, size_t> saved_;
  StorageCount storage_;  ///< Of what was saved in this step.
  GatheredBytes gathered_;
};

}  // namespace quantgate
