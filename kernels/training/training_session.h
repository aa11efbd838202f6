// Session: the state that training keeps between steps (docs/sessions.md), and
// OneRankSession, which keeps it on one rank. A session has a row of layers, each feeding the next;
// parameters in high precision or quantized, with or without fp32 masters; optimizer state, main
// gradients, delayed scaling's histories, cached quantized weights, random number offsets, and what
// forwards in flight saved for their backwards.
//
// Not thread-safe: one step at a time. A step that fails leaves the session as it was before.
// Wrong order is FAILED_PRECONDITION naming the rule; wrong tensors INVALID_ARGUMENT.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/seeded_fault.h"
#include "kernels/comm/group/world.h"
#include "kernels/layer/layer_step.h"
#include "kernels/ops/optimizer/optimizer.h"
#include "kernels/training/saved_memory.h"

namespace quantgate {

struct SessionLayer {
  std::string name;  ///< Prefix of its tensors: "fc1" of "fc1.weight". Unique.
  LayerSpec spec;
};

/// How weights are held between steps. Other parameters are always in high precision.
enum class WeightStorage {
  kHighPrecision,
  kQuantized,  ///< Quantized by the recipe (Transformer Engine's quantized_model_init).
};
/// What an optimizer updates.
enum class Masters {
  kNone,           ///< The parameters themselves.
  kF32,            ///< fp32 copies.
  kBf16Remainder,  ///< The bf16 parameter, and the 16 bits that complete it to fp32.
};
/// What quantized weights are quantized from: the fp32 master, or the master rounded to bf16.
enum class Requantization { kFromF32, kThroughBf16 };

// The names that specs use: "quantized", "bf16_remainder", "through_bf16".
std::string_view WeightStorageName(WeightStorage weights);
std::string_view MastersName(Masters masters);
std::string_view RequantizationName(Requantization requantization);
absl::StatusOr<WeightStorage> ParseWeightStorage(std::string_view name);
absl::StatusOr<Masters> ParseMasters(std::string_view name);
absl::StatusOr<Requantization> ParseRequantization(std::string_view name);

struct OptimizerSpec {
  enum class Kind { kNone, kAdam, kSgd } kind = Kind::kNone;
  AdamOptions adam;
  SgdOptions sgd;
};

struct SessionSpec {
  std::vector<SessionLayer> layers;
  Recipe recipe;
  Arithmetic arithmetic = {};
  WeightStorage weights = WeightStorage::kHighPrecision;
  /// Quantized weights are made rowwise only, as under disabled gradients.
  bool built_without_grad = false;
  Masters masters = Masters::kNone;
  Requantization requantization = Requantization::kFromF32;
  OptimizerSpec optimizer = {};
  /// wgrads accumulate into fp32 main gradients; otherwise gradients are summed in their own dtype.
  bool main_grads = false;
  uint64_t seed = 0;
  std::optional<ParallelSpec> parallel = {};  ///< Absent: one rank.
};

/// One forward of all layers.
struct ForwardStep {
  std::string microbatch = "0";  ///< Names it until its backward.
  Tensor x;
  bool train = true;  ///< False: an evaluation, which saves nothing and updates no scale.
  Microbatch is_first = Microbatch::kUnset;
  /// Activation checkpointing: saves only x, and repeats the forward before its backward, with the
  /// same states and random numbers.
  bool recompute = false;
  bool calibrate = false;
  RequiresGrad requires_grad;
  bool defer_wgrad = false;  ///< Its backward leaves the weights' gradients to the wgrad step.
  /// Replace the session's groups (ParallelSpec::amax_groups) in this forward and its backward.
  AmaxGroups amax_groups = {};
  /// Replaces the session's overlap (ParallelSpec::overlap) in this forward and its backward.
  std::optional<OverlapSpec> overlap = {};
  /// As LayerRequest::value_bytes_max.
  int64_t value_bytes_max = std::numeric_limits<int64_t>::max();
  /// If x is given as codes, which the first layer reads as they are: the codes, of which `x` then
  /// has the values.
  QuantizedTensor x_codes = {};
};
struct BackwardStep {
  std::string microbatch = "0";
  Tensor grad_output;
  QuantizedTensor codes = {};  ///< The same of grad_output and the last layer.
};
struct OptimizerStep {
  std::optional<float> learning_rate;  ///< Absent: the spec's.
};

/// What one rank of a session on several ranks did in a step.
struct RankStepRecords {
  std::string device;  ///< DeviceDescription::id.
  struct Output {
    std::string tensor;
    DType dtype;
    Shape shape;
    Fingerprint fingerprint;
  };
  std::vector<Output> outputs;  ///< This rank's parts.
  StepRecords records;
};

/// The outputs of a step, and the records of what it did.
struct SessionStepResult : StepRecords {
  /// Forward: "y", "LAYER.norm_out"; backward: "dx" and the gradients ("LAYER.dw", ...).
  std::vector<NamedTensor> outputs;
  /// By rank, in a session on several ranks. Records other than notes are then only here.
  std::vector<RankStepRecords> ranks;
  /// A sentence for each output of which two ranks have the same part with different bits.
  std::vector<std::string> rank_differences;
};

/// A tensor of the state, as Get calls and traces list it.
struct StateTensor {
  std::string name;  ///< "fc1.weight", "fc1.weight.master", "fc1.input.amax_history", ...
  DType dtype;
  Shape shape;
  Fingerprint fingerprint;
};

// Limits of one session, bounds on untrusted input.
inline constexpr int kSessionLayersMax = 64;
inline constexpr int kMicrobatchesInFlightMax = 64;

// Private to kernels/training.
struct SessionState;
struct SessionRank;

/// What a forward saved, kept beside the session (Session::KeepForward).
struct KeptForward {
  /// Puts it into the place of what a forward of that name, perhaps under another recipe, has in
  /// flight. FAILED_PRECONDITION without such a forward.
  std::function<absl::Status()> put;
  /// The bytes that keeping it takes beside what the session holds now; a buffer of both is the
  /// session's.
  std::function<int64_t()> bytes_beside;
};

/// A training session on one rank or several.
class Session {
 public:
  virtual ~Session() = default;

  virtual absl::StatusOr<SessionStepResult> Forward(const ForwardStep& step,
                                                    const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<SessionStepResult> Backward(const BackwardStep& step,
                                                     const Cancellation* cancellation) = 0;
  /// Computes the wgrads that backwards deferred, in the order of the backwards.
  virtual absl::StatusOr<SessionStepResult> Wgrad(const Cancellation* cancellation) = 0;
  /// Updates masters and parameters from the gradients so far, refreshes every direction that each
  /// quantized weight holds, and clears the gradients.
  virtual absl::StatusOr<SessionStepResult> Optimize(const OptimizerStep& step,
                                                     const Cancellation* cancellation) = 0;
  /// Changes the recipe of later forwards; forwards in flight keep theirs. The same recipe with
  /// other knobs takes effect at once: delayed scaling's histories stay, its scales become those
  /// that the last update would have given with the new maximum and margin, and quantized weights
  /// whose rule changed are quantized anew from their masters, in every usage that they hold.
  /// Another recipe does the same to them, and drops delayed scaling's states; a later return to
  /// delayed scaling begins with fresh ones. FAILED_PRECONDITION naming both rules if the rule of
  /// quantized weights changes and they have no masters (docs/sessions.md section 2).
  virtual absl::Status ChangeRecipe(const Recipe& recipe,
                                    const Cancellation* cancellation = nullptr) = 0;
  /// Move what a microbatch saved to host memory, and back.
  virtual absl::Status Offload(const std::string& microbatch, const Cancellation* cancellation) = 0;
  virtual absl::Status Reload(const std::string& microbatch, const Cancellation* cancellation) = 0;

  /// The whole state as the tensors and metadata of one safetensors file. The file does not depend
  /// on the ranks that divide the state, except for tensors that cannot be joined, which are each
  /// rank's own (docs/ranks.md section 9). FAILED_PRECONDITION with microbatches in flight.
  virtual absl::StatusOr<TensorFile> Checkpoint(const Cancellation* cancellation) = 0;

  virtual const Recipe& recipe() const = 0;  ///< The recipe of later forwards.
  /// Returns a function that puts the session back into its present state. The restore point shares
  /// the tensors.
  virtual std::function<void()> RestorePoint() = 0;
  /// Keeps what the forward of this microbatch has saved so far, so that the backward of a forward
  /// that a restore point has undone can be done. FAILED_PRECONDITION without such a forward in
  /// flight; UNIMPLEMENTED on several ranks. The session must outlive the result.
  virtual absl::StatusOr<KeptForward> KeepForward(const std::string& microbatch) = 0;
  virtual int64_t step_count() const = 0;  ///< The number of steps that succeeded.
  virtual int64_t bytes() const = 0;       ///< The size of all tensors held; a buffer counts once.
  /// What it holds for the backwards of microbatches in flight.
  virtual SavedMemory saved_memory() const = 0;
  /// Makes later steps fail with RESOURCE_EXHAUSTED, and do nothing, if the session would then hold
  /// more than before the step and more than `bytes_max`.
  virtual void LimitBytes(int64_t bytes_max) = 0;
  virtual std::vector<std::string> microbatches() const = 0;  ///< Microbatches in flight, by name.
  /// Every tensor of the state with its fingerprint; on several ranks "rank0.fc1.weight", ....
  virtual absl::StatusOr<std::vector<StateTensor>> Describe(const Cancellation* cancellation) = 0;
  /// The tensor of this name in the state; a quantized weight is dequantized. On several ranks
  /// either a whole parameter ("fc1.weight") or one rank's own tensor ("rank0.fc1.weight").
  virtual absl::StatusOr<Tensor> Find(const std::string& name,
                                      const Cancellation* cancellation) = 0;
};

/// Opens the session that the spec describes: on one rank, or on several in this `setting`, which
/// must outlive the session (null: the defaults). Errors as OneRankSession::Open and
/// ParallelSession::Open. `codes`: weights that are given as codes and not in `parameters`, as of
/// OneRankSession::Open.
absl::StatusOr<std::unique_ptr<Session>> OpenSession(
    Engine& engine, SessionSpec spec, const std::map<std::string, Tensor>& parameters,
    const RankSetting* setting, const Cancellation* cancellation,
    const std::map<std::string, QuantizedTensor>& codes = {});

/// Opens a session that continues from a checkpoint, on any engine and perhaps on other ranks than
/// wrote it. FAILED_PRECONDITION if the checkpoint has other layers or another class of recipe, or
/// has tensors that are the own of other ranks. Other errors as OpenSession.
absl::StatusOr<std::unique_ptr<Session>> RestoreSession(Engine& engine, SessionSpec spec,
                                                        const TensorFile& checkpoint,
                                                        const RankSetting* setting,
                                                        const Cancellation* cancellation);

/// A session on one rank: the only one, or one of several of a ParallelSession.
class OneRankSession final : public Session {
 public:
  class State;  ///< Private to kernels/training.

  /// `parameters` are in high precision, named "LAYER.NAME"; main gradients and optimizer state
  /// that are not given start at zero. A non-null `rank` says which of several ranks this is;
  /// `parameters` are then its own parts. `codes`: weights that are given as codes and not in
  /// `parameters`; a session whose weights are quantized holds them as they are, and fp32 masters
  /// begin as their values. INVALID_ARGUMENT naming field, value and rule.
  static absl::StatusOr<std::unique_ptr<OneRankSession>> Open(
      Engine& engine, SessionSpec spec, const std::map<std::string, Tensor>& parameters,
      const Cancellation* cancellation, const SeededFaults& faults = {},
      std::shared_ptr<const SessionRank> rank = nullptr,
      const std::map<std::string, QuantizedTensor>& codes = {});

  absl::StatusOr<SessionStepResult> Forward(const ForwardStep& step,
                                            const Cancellation* cancellation) override;
  absl::StatusOr<SessionStepResult> Backward(const BackwardStep& step,
                                             const Cancellation* cancellation) override;
  absl::StatusOr<SessionStepResult> Wgrad(const Cancellation* cancellation) override;
  absl::StatusOr<SessionStepResult> Optimize(const OptimizerStep& step,
                                             const Cancellation* cancellation) override;
  absl::Status ChangeRecipe(const Recipe& recipe,
                            const Cancellation* cancellation = nullptr) override;
  absl::Status Offload(const std::string& microbatch, const Cancellation* cancellation) override;
  absl::Status Reload(const std::string& microbatch, const Cancellation* cancellation) override;
  absl::StatusOr<TensorFile> Checkpoint(const Cancellation* cancellation) override;
  /// A copy of the state with every tensor in host memory.
  absl::StatusOr<std::shared_ptr<const SessionState>> StateOnHost(
      const Cancellation* cancellation) const;
  /// As RestoreSession. A non-null `rank` says which of several ranks this is; it takes its own
  /// parts of the checkpoint.
  static absl::StatusOr<std::unique_ptr<OneRankSession>> Restore(
      Engine& engine, SessionSpec spec, const TensorFile& checkpoint,
      const Cancellation* cancellation, const SeededFaults& faults = {},
      std::shared_ptr<const SessionRank> rank = nullptr);

  const Recipe& recipe() const override;
  std::function<void()> RestorePoint() override;
  absl::StatusOr<KeptForward> KeepForward(const std::string& microbatch) override;
  /// A copy of the state that shares the tensors; RestoreSnapshot puts the session back into it.
  std::shared_ptr<const SessionState> Snapshot() const;
  void RestoreSnapshot(const std::shared_ptr<const SessionState>& moment);
  int64_t step_count() const override;
  int64_t bytes() const override;
  SavedMemory saved_memory() const override;
  void LimitBytes(int64_t bytes_max) override;
  std::vector<std::string> microbatches() const override;
  absl::StatusOr<std::vector<StateTensor>> Describe(const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> Find(const std::string& name, const Cancellation* cancellation) override;
  ~OneRankSession() override;

 private:
  explicit OneRankSession(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace quantgate
