// TrainingSession: the state that training keeps between steps (docs/quantizers.md sections 8 to
// 11). Layers in a row, each feeding the next; parameters in high precision or quantized, with
// fp32 masters or without; optimizer state, main gradients, delayed scaling's histories, cached
// quantized weights, random number offsets, and what forwards in flight saved for their backwards.
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

namespace quantgate {

struct SessionLayer {
  std::string name;  ///< Prefix of its tensors: "fc1" of "fc1.weight". Unique.
  LayerSpec spec;
};

/// How weights are held between steps. Other parameters are always in high precision.
enum class WeightStorage {
  kHighPrecision,
  kQuantized,  ///< By the recipe's quantizer (quantized_model_init).
};
/// What an optimizer updates.
enum class Masters {
  kNone,           ///< The parameters themselves.
  kF32,            ///< fp32 copies.
  kBf16Remainder,  ///< The bf16 parameter, and the 16 bits that complete it to fp32.
};
/// How quantized weights follow their masters.
enum class Requantization { kFromF32, kThroughBf16 };

// Names as specs spell them: "quantized", "bf16_remainder", "through_bf16".
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
  /// Quantized weights are made as where gradients are disabled: rowwise only.
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
  bool train = true;  ///< False: evaluation; nothing is saved, no scale is updated.
  Microbatch is_first = Microbatch::kUnset;
  /// Activation checkpointing: saves x alone, and forwards again before backward, from the same
  /// states and random numbers.
  bool recompute = false;
  bool calibrate = false;
  RequiresGrad requires_grad;
  bool defer_wgrad = false;  ///< Its backward leaves the weights' gradients to the wgrad step.
  /// In place of the session's (ParallelSpec::amax_groups), of this forward and its backward.
  AmaxGroups amax_groups = {};
  int64_t value_bytes_max = std::numeric_limits<int64_t>::max();  ///< As LayerRequest's.
};
struct BackwardStep {
  std::string microbatch = "0";
  Tensor grad_output;
};
struct OptimizerStep {
  std::optional<float> learning_rate;  ///< Absent: the spec's.
};

/// What one rank of a session on several did in a step.
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

/// What a step gave, and what it did.
struct SessionStepResult : StepRecords {
  /// Forward: "y", "LAYER.norm_out"; backward: "dx" and the gradients ("LAYER.dw", ...).
  std::vector<NamedTensor> outputs;
  /// Of a session on several ranks, in their order; the records are then theirs alone, but for
  /// notes.
  std::vector<RankStepRecords> ranks;
  /// Outputs of which ranks have the same part with other bits; none where all is well.
  std::vector<std::string> rank_differences;
};

/// A tensor of the state as `Get` and traces list it.
struct StateTensor {
  std::string name;  ///< "fc1.weight", "fc1.weight.master", "fc1.input.amax_history", ...
  DType dtype;
  Shape shape;
  Fingerprint fingerprint;
};

/// Limits of one session, bounds on untrusted input.
inline constexpr int kSessionLayersMax = 64;
inline constexpr int kMicrobatchesInFlightMax = 64;

struct SessionState;  ///< Private to kernels/training.
struct SessionRank;   ///< Likewise.

/// What every session does, on however many ranks.
class Session {
 public:
  virtual ~Session() = default;

  virtual absl::StatusOr<SessionStepResult> Forward(const ForwardStep& step,
                                                    const Cancellation* cancellation) = 0;
  virtual absl::StatusOr<SessionStepResult> Backward(const BackwardStep& step,
                                                     const Cancellation* cancellation) = 0;
  /// The wgrads that backwards deferred, in their order.
  virtual absl::StatusOr<SessionStepResult> Wgrad(const Cancellation* cancellation) = 0;
  /// Updates masters and parameters from the gradients so far, refreshes every direction that each
  /// quantized weight holds, and clears the gradients.
  virtual absl::StatusOr<SessionStepResult> Optimize(const OptimizerStep& step,
                                                     const Cancellation* cancellation) = 0;
  /// From the next forward on. Forwards in flight keep theirs. The same recipe with other knobs
  /// takes effect at once: delayed scaling's histories stay, and its scales are those that the last
  /// update would have given with the new maximum and margin; quantized weights whose rule changed
  /// are quantized anew from their masters. Another recipe drops delayed scaling's states, and a
  /// later return to it begins with fresh ones. FAILED_PRECONDITION naming both rules where
  /// quantized weights were made by another recipe (docs/quantizers.md section 8.3), or by another
  /// rule and have no masters.
  virtual absl::Status ChangeRecipe(const Recipe& recipe,
                                    const Cancellation* cancellation = nullptr) = 0;
  /// What a microbatch saved goes to host memory, and back.
  virtual absl::Status Offload(const std::string& microbatch, const Cancellation* cancellation) = 0;
  virtual absl::Status Reload(const std::string& microbatch, const Cancellation* cancellation) = 0;

  /// The whole state as one safetensors file's tensors and metadata, the same whatever the ranks
  /// that the state is divided over; what cannot be joined is each rank's own (docs/distributed.md
  /// section 9). FAILED_PRECONDITION with microbatches in flight.
  virtual absl::StatusOr<TensorFile> Checkpoint(const Cancellation* cancellation) = 0;

  virtual const Recipe& recipe() const = 0;  ///< As last changed.
  /// Called, it goes back to what the session holds now, of which tensors are shared.
  virtual std::function<void()> WayBack() = 0;
  virtual int64_t step_count() const = 0;  ///< Steps that succeeded.
  virtual int64_t bytes() const = 0;       ///< Of all tensors held, each buffer once.
  /// From now on a step that would hold more than before, and more than this, is
  /// RESOURCE_EXHAUSTED and does nothing.
  virtual void LimitBytes(int64_t bytes_max) = 0;
  virtual std::vector<std::string> microbatches() const = 0;  ///< In flight.
  /// Every tensor of the state with its fingerprint; of several ranks "rank0.fc1.weight", ...
  virtual absl::StatusOr<std::vector<StateTensor>> Describe(const Cancellation* cancellation) = 0;
  /// A tensor of the state, quantized ones dequantized where `name` is a weight's. On several ranks
  /// a parameter as a whole, or a rank's own by its name.
  virtual absl::StatusOr<Tensor> Find(const std::string& name,
                                      const Cancellation* cancellation) = 0;
};

/// A session as the spec asks for it: on one rank, or on several in this `setting`, which outlives
/// it (null: the defaults). Errors as TrainingSession::Open and ParallelSession::Open.
absl::StatusOr<std::unique_ptr<Session>> OpenSession(
    Engine& engine, SessionSpec spec, const std::map<std::string, Tensor>& parameters,
    const RankSetting* setting, const Cancellation* cancellation);

/// A session that goes on from a checkpoint, on any engine and on other ranks than wrote it.
/// FAILED_PRECONDITION where it is of other layers or another recipe class, or has tensors of other
/// ranks' own. Other errors as OpenSession.
absl::StatusOr<std::unique_ptr<Session>> RestoreSession(Engine& engine, SessionSpec spec,
                                                        const TensorFile& checkpoint,
                                                        const RankSetting* setting,
                                                        const Cancellation* cancellation);

class TrainingSession final : public Session {
 public:
  class State;  ///< Private to kernels/training.

  /// `parameters` by "LAYER.NAME", high precision; missing main gradients and optimizer state start
  /// at zero. INVALID_ARGUMENT names field, value, rule. With a `rank`, that one of several, from
  /// its own parts of the parameters.
  static absl::StatusOr<std::unique_ptr<TrainingSession>> Open(
      Engine& engine, SessionSpec spec, const std::map<std::string, Tensor>& parameters,
      const Cancellation* cancellation, const SeededFaults& faults = {},
      std::shared_ptr<const SessionRank> rank = nullptr);

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
  /// Its state with every tensor on the host.
  absl::StatusOr<std::shared_ptr<const SessionState>> StateOnHost(
      const Cancellation* cancellation) const;
  /// As RestoreSession, on one rank; with a `rank`, that one of several, with its own parts of the
  /// checkpoint.
  static absl::StatusOr<std::unique_ptr<TrainingSession>> Restore(
      Engine& engine, SessionSpec spec, const TensorFile& checkpoint,
      const Cancellation* cancellation, const SeededFaults& faults = {},
      std::shared_ptr<const SessionRank> rank = nullptr);

  const Recipe& recipe() const override;
  std::function<void()> WayBack() override;
  /// What the session holds now, tensors shared, and the way back to it.
  std::shared_ptr<const SessionState> Remember() const;
  void GoBack(const std::shared_ptr<const SessionState>& moment);
  int64_t step_count() const override;
  int64_t bytes() const override;
  void LimitBytes(int64_t bytes_max) override;
  std::vector<std::string> microbatches() const override;
  absl::StatusOr<std::vector<StateTensor>> Describe(const Cancellation* cancellation) override;
  absl::StatusOr<Tensor> Find(const std::string& name, const Cancellation* cancellation) override;
  ~TrainingSession() override;

 private:
  explicit TrainingSession(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace quantgate
