// A training session on several ranks, on engines like the one that is looked at, and by hand what
// it must give: copies of a network that divide the rows of a batch, and parts of a weight.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/comm/group/world.h"
#include "kernels/training/training_session.h"
#include "kernels/validate/scenarios/faults/faulty_transport.h"
#include "kernels/validate/scenarios/oracles/network_by_hand.h"
#include "kernels/validate/scenarios/scenario_context.h"

namespace quantgate {

/// What a pass of the expected side gives, by name.
using ExpectedOutputs = std::function<absl::StatusOr<NamedOutputs>()>;

/// The session. Every call compares what it gives; a call that the session refuses is a difference
/// too, and after the first difference calls do nothing.
class RankSession {
 public:
  /// With the faults of the scenario's run on every rank. `context` must outlive it.
  explicit RankSession(ScenarioContext& context) : context_(context) {
    setting_.faults = context.faults();
    setting_.communicators = context.communicators();
    setting_.make_transport = TransportWith(context.faults(), context.communicators());
  }

  /// Parameters on the host.
  absl::Status Open(const SessionSpec& spec, const std::map<std::string, Tensor>& parameters);
  /// Goes on from its own checkpoint under this spec, which may have other ranks.
  absl::Status GoOnAs(const SessionSpec& spec);
  absl::Status Forward(const ForwardStep& step, const ExpectedOutputs& expected);
  /// With the weights' gradients of the wgrad step, where its forward deferred them.
  absl::Status Backward(const BackwardStep& step, const ExpectedOutputs& expected);
  absl::Status Optimize();
  /// To the host and back.
  absl::Status MoveAwayAndBack(const std::string& microbatch);

 private:
  bool has_parted() const { return session_ == nullptr || context_.difference_count() > 0; }
  SessionSpec Placed(SessionSpec spec) const;
  void Keep(const SessionSpec& spec, absl::StatusOr<std::unique_ptr<Session>> session);
  /// Whether the call was done, and what it did was what it should.
  bool Accept(const std::string& call, const absl::StatusOr<SessionStepResult>& result);
  static std::string MetadataText(const TensorFile& file);
  /// The next checkpoint is the one that the session began with.
  absl::Status ExpectSameCheckpoint(const TensorFile& file);

  ScenarioContext& context_;
  RankSetting setting_;
  std::unique_ptr<Session> session_;
  std::set<std::string> deferred_;  // Microbatches in flight.
};

struct BatchShape {
  int64_t rows = 0, inputs = 0, outputs = 0;
};

/// Of ForwardStep.
struct ForwardFlags {
  bool trains = true, recomputes = false, defers_wgrad = false;
};

/// A session on ranks and what it is compared with, driven together: `ByHand` has the steps of
/// CopiesByHand. Tensors are made from the seeds of the calls.
template <typename ByHand>
class ComparedRanks {
 public:
  ComparedRanks(ScenarioContext& context, const BatchShape& shape, ByHand by_hand)
      : context_(context), shape_(shape), session_(context), by_hand_(std::move(by_hand)) {}

  RankSession& session() { return session_; }
  ByHand& by_hand() { return by_hand_; }

  absl::Status Forward(const std::string& microbatch, uint64_t seed, ForwardFlags flags = {}) {
    ForwardStep step;
    step.microbatch = microbatch;
    step.train = flags.trains;
    step.recompute = flags.recomputes;
    step.defer_wgrad = flags.defers_wgrad;
    QG_ASSIGN_OR_RETURN(step.x, Batch(1000 + seed, shape_.inputs, 1.0f));
    return session_.Forward(step, [&] { return by_hand_.Forward(step); });
  }
  absl::Status Backward(const std::string& microbatch, uint64_t seed) {
    BackwardStep step{microbatch, {}};
    QG_ASSIGN_OR_RETURN(step.grad_output, Batch(2000 + seed, shape_.outputs, 0x1p-6f));
    return session_.Backward(step, [&] { return by_hand_.Backward(step); });
  }
  absl::Status TrainStep(uint64_t seed) {
    QG_RETURN_IF_ERROR(Forward("0", seed));
    return Backward("0", seed);
  }
  absl::Status Optimize() {
    QG_RETURN_IF_ERROR(session_.Optimize());
    if (context_.difference_count() > 0) return absl::OkStatus();
    return by_hand_.Optimize();
  }

 private:
  absl::StatusOr<Tensor> Batch(uint64_t seed, int64_t columns, float scale) {
    return context_.Generate(Distribution::kNormal, seed, DType::kBF16, {shape_.rows, columns},
                             scale);
  }

  ScenarioContext& context_;
  const BatchShape shape_;
  RankSession session_;
  ByHand by_hand_;
};

/// What copies have of weights, masters and moments (docs/distributed.md sections 9.1 and 9.3).
enum class CopyDivision {
  kNone,      ///< All of it.
  kRows,      ///< Rows of all three.
  kElements,  ///< Runs of elements of masters and moments.
};
inline constexpr CopyDivision kCopyDivisions[] = {CopyDivision::kNone, CopyDivision::kRows,
                                                  CopyDivision::kElements};
/// A session of several copies so; of one rank as it is.
SessionSpec DividedOverCopies(SessionSpec spec, CopyDivision division);

/// Microbatches wait for their backwards while an update changes the weights that their forwards
/// read: one forwards again for it, another is moved to the host and defers its wgrad.
template <typename ByHand>
absl::Status TrainOverAnUpdate(ComparedRanks<ByHand>& training) {
  QG_RETURN_IF_ERROR(training.Forward("a", 1));
  QG_RETURN_IF_ERROR(training.Forward("e", 2, {.trains = false}));
  QG_RETURN_IF_ERROR(training.Forward("b", 3, {.defers_wgrad = true}));
  QG_RETURN_IF_ERROR(training.Forward("c", 8, {.recomputes = true}));
  QG_RETURN_IF_ERROR(training.session().MoveAwayAndBack("b"));
  QG_RETURN_IF_ERROR(training.Backward("a", 4));
  QG_RETURN_IF_ERROR(training.Optimize());
  QG_RETURN_IF_ERROR(training.Backward("c", 9));
  QG_RETURN_IF_ERROR(training.Backward("b", 5));
  QG_RETURN_IF_ERROR(training.TrainStep(6));
  QG_RETURN_IF_ERROR(training.Optimize());
  return training.TrainStep(7);
}

/// docs/distributed.md section 9: every copy by hand on its rows of the batch. Gradients, and under
/// delayed scaling amaxes, are those of all copies, summed in their order in fp32.
class CopiesByHand {
 public:
  CopiesByHand(Engine& reference, const SessionSpec& spec,
               const std::map<std::string, Tensor>& parameters, int copies);

  absl::StatusOr<NamedOutputs> Forward(const ForwardStep& step);
  absl::StatusOr<NamedOutputs> Backward(const BackwardStep& step);
  absl::Status Optimize();
  /// From now on so many, between an update and the next forward.
  void GoOnAs(int copies);
  /// As NetworkByHand's; every copy draws the same random numbers.
  void DrawAsOneOf(uint32_t place, uint32_t count);
  /// From now on every copy quantizes its rows of x and of grad_output under the amaxes of all
  /// copies'. Of one layer.
  void ShareAmaxes() { shares_amaxes_ = true; }
  /// As NetworkByHand's, which every copy is.
  void TakeAmaxesOf(TensorRole role, const Tensor& whole);
  absl::StatusOr<Tensor> WeightSource(const std::string& name) const {
    return copies_[0].WeightSource(name);
  }
  /// From now on passes note amaxes, and who has all ranks updates the histories.
  void LeaveUpdates() { leaves_updates_ = true; }
  std::vector<NetworkByHand*> networks();

 private:
  int count() const { return static_cast<int>(copies_.size()); }

  Engine& reference_;
  std::vector<NetworkByHand> copies_;
  bool shares_amaxes_ = false;
  bool leaves_updates_ = false;
};

/// docs/distributed.md section 2: one linear layer fc, row-parallel without bias, which the spec's
/// tensor-parallel ranks divide, by hand: every place's part of the weight on so many copies, and
/// sums of partial products in the order of the places. Delayed scaling's amaxes are those of all
/// ranks.
class PlacesByHand {
 public:
  PlacesByHand(Engine& reference, const SessionSpec& spec,
               const std::map<std::string, Tensor>& parameters, int copies);

  absl::StatusOr<NamedOutputs> Forward(const ForwardStep& step);
  absl::StatusOr<NamedOutputs> Backward(const BackwardStep& step);
  absl::Status Optimize();
  /// As CopiesByHand's.
  void DrawAsOneOf(uint32_t place, uint32_t count);
  /// Likewise; and places share those of their parts of the weight.
  void ShareAmaxes();

 private:
  absl::Status ShareAmaxOfWeight();
  void UpdateHistories(bool of_gradients);
  bool is_column() const { return mode_ == ParallelMode::kColumn; }
  /// A place's columns, as many as every other's.
  absl::StatusOr<Tensor> ColumnsOf(const Tensor& whole, size_t place) const;
  absl::StatusOr<Tensor> JoinColumns(const std::vector<NamedOutputs>& parts,
                                     const std::string& name) const;
  absl::StatusOr<Tensor> JoinRows(const std::vector<NamedOutputs>& parts,
                                  const std::string& name) const;

  Engine& reference_;
  const ParallelMode mode_;
  std::vector<CopiesByHand> places_;
  bool shares_amaxes_ = false;
};

/// How weights can be held that NetworkByHand follows. Under delayed scaling an update of quantized
/// ones notes their amaxes, which it does in forward.
std::vector<WeightStorage> StoragesByHand(const Recipe& recipe);

/// Under the names of one: sums of tensors of the same name in this order.
absl::StatusOr<NamedOutputs> SumsOf(const std::vector<NamedOutputs>& parts);

}  // namespace quantgate
