// A training session on several ranks, on engines like the one under test, and what it must give
// computed by hand: copies of a network that divide the rows of a batch, and parts of a weight.
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
#include "kernels/validate/scenarios/faults/faulty_communication.h"
#include "kernels/validate/scenarios/oracles/network_by_hand.h"
#include "kernels/validate/scenarios/scenario_context.h"

namespace quantgate {

/// Computes the expected outputs of a pass, by name.
using ExpectedOutputs = std::function<absl::StatusOr<NamedOutputs>()>;

/// The session under test. Every call compares its outputs with the expected ones. A call that the
/// session refuses counts as a difference; after the first difference, calls do nothing.
class RankSession {
 public:
  /// Every rank has the faults of the scenario's run. `context` must outlive it.
  explicit RankSession(ScenarioContext& context) : context_(context) {
    setting_.faults = context.faults();
    setting_.communicators = context.communicators();
    setting_.make_transport = TransportWith(context.faults(), context.communicators());
  }

  /// `parameters` are on the host.
  absl::Status Open(const SessionSpec& spec, const std::map<std::string, Tensor>& parameters);
  /// Continues from the session's own checkpoint under this spec, which may have other ranks.
  absl::Status ResumeAs(const SessionSpec& spec);
  absl::Status Forward(const ForwardStep& step, const ExpectedOutputs& expected);
  /// Does the wgrad step too, if the forward deferred the weights' gradients.
  absl::Status Backward(const BackwardStep& step, const ExpectedOutputs& expected);
  absl::Status Optimize();
  /// Moves what a microbatch saved to host memory and back.
  absl::Status OffloadAndReload(const std::string& microbatch);

 private:
  bool has_diverged() const { return session_ == nullptr || context_.difference_count() > 0; }
  SessionSpec Placed(SessionSpec spec) const;
  void Keep(const SessionSpec& spec, absl::StatusOr<std::unique_ptr<Session>> session);
  /// Whether the call succeeded and its records are as they should be.
  bool Accept(const std::string& call, const absl::StatusOr<SessionStepResult>& result);
  static std::string MetadataText(const TensorFile& file);
  /// Expects a checkpoint of the session to equal `file`, the checkpoint that it has just resumed
  /// from.
  absl::Status ExpectSameCheckpoint(const TensorFile& file);

  ScenarioContext& context_;
  RankSetting setting_;
  std::unique_ptr<Session> session_;
  std::set<std::string> deferred_;  // Microbatches in flight whose forwards deferred wgrad.
};

struct BatchShape {
  int64_t rows = 0, inputs = 0, outputs = 0;
};

/// Options of a ForwardStep.
struct ForwardFlags {
  bool trains = true, recomputes = false, defers_wgrad = false;
};

/// Drives a session on ranks together with its computation by hand. `ByHand` has the steps of
/// CopiesByHand. Tensors are generated from the seeds of the calls.
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

/// What each copy has of weights, masters and moments (docs/ranks.md sections 9.1 and 9.3).
enum class CopyDivision {
  kNone,      ///< All of all three.
  kRows,      ///< Rows of all three.
  kElements,  ///< Whole weights, and runs of elements of masters and moments.
};
inline constexpr CopyDivision kCopyDivisions[] = {CopyDivision::kNone, CopyDivision::kRows,
                                                  CopyDivision::kElements};
/// The spec with its copies divided so; a spec without `parallel` is returned as it is.
SessionSpec DividedOverCopies(SessionSpec spec, CopyDivision division);

/// Trains with microbatches that wait for their backwards while an update changes the weights that
/// their forwards read. One of them recomputes its forward; another is offloaded and defers its
/// wgrad.
template <typename ByHand>
absl::Status TrainOverAnUpdate(ComparedRanks<ByHand>& training) {
  QG_RETURN_IF_ERROR(training.Forward("a", 1));
  QG_RETURN_IF_ERROR(training.Forward("e", 2, {.trains = false}));
  QG_RETURN_IF_ERROR(training.Forward("b", 3, {.defers_wgrad = true}));
  QG_RETURN_IF_ERROR(training.Forward("c", 8, {.recomputes = true}));
  QG_RETURN_IF_ERROR(training.session().OffloadAndReload("b"));
  QG_RETURN_IF_ERROR(training.Backward("a", 4));
  QG_RETURN_IF_ERROR(training.Optimize());
  QG_RETURN_IF_ERROR(training.Backward("c", 9));
  QG_RETURN_IF_ERROR(training.Backward("b", 5));
  QG_RETURN_IF_ERROR(training.TrainStep(6));
  QG_RETURN_IF_ERROR(training.Optimize());
  return training.TrainStep(7);
}

/// Copies of a network by hand, each on its rows of the batch (docs/ranks.md section 9).
/// Gradients are summed over the copies, in their order, in fp32; delayed scaling's amaxes are
/// those of all copies.
class CopiesByHand {
 public:
  CopiesByHand(Engine& reference, const SessionSpec& spec,
               const std::map<std::string, Tensor>& parameters, int copies);

  absl::StatusOr<NamedOutputs> Forward(const ForwardStep& step);
  absl::StatusOr<NamedOutputs> Backward(const BackwardStep& step);
  absl::Status Optimize();
  /// Continues with so many copies; call between an update and the next forward.
  void ResumeAs(int copies);
  /// As NetworkByHand::DrawAsOneOf; every copy draws the same random numbers.
  void DrawAsOneOf(uint32_t place, uint32_t count);
  /// Every copy quantizes later rows of x and grad_output with the amaxes of all copies' rows. For
  /// one layer.
  void ShareAmaxes() { shares_amaxes_ = true; }
  /// As NetworkByHand::TakeAmaxesOf, for every copy.
  void TakeAmaxesOf(TensorRole role, const Tensor& whole);
  absl::StatusOr<Tensor> WeightSource(const std::string& name) const {
    return copies_[0].WeightSource(name);
  }
  /// Later passes only note amaxes; the caller updates the histories, over the networks of all
  /// ranks.
  void SkipHistoryUpdates() { skips_history_updates_ = true; }
  std::vector<NetworkByHand*> networks();

 private:
  int count() const { return static_cast<int>(copies_.size()); }

  Engine& reference_;
  std::vector<NetworkByHand> copies_;
  bool shares_amaxes_ = false;
  bool skips_history_updates_ = false;
};

/// One linear layer fc, column-parallel or row-parallel without bias, that tensor-parallel ranks
/// divide (docs/ranks.md section 2), by hand. `copies` copies have each place's part of the weight,
/// and partial products are summed in the order of the places. Delayed scaling's amaxes are those
/// of all ranks.
class PlacesByHand {
 public:
  PlacesByHand(Engine& reference, const SessionSpec& spec,
               const std::map<std::string, Tensor>& parameters, int copies);

  absl::StatusOr<NamedOutputs> Forward(const ForwardStep& step);
  absl::StatusOr<NamedOutputs> Backward(const BackwardStep& step);
  absl::Status Optimize();
  /// As CopiesByHand::DrawAsOneOf.
  void DrawAsOneOf(uint32_t place, uint32_t count);
  /// As CopiesByHand::ShareAmaxes; places also share the amaxes of their parts of the weight.
  void ShareAmaxes();

 private:
  absl::Status ShareAmaxOfWeight();
  void UpdateHistories(bool of_gradients);
  bool is_column() const { return mode_ == ParallelMode::kColumn; }
  /// The columns of one place; all places have equally many.
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

/// The weight storages that NetworkByHand models. Quantized weights under delayed scaling are left
/// out: sessions note their amaxes in updates, NetworkByHand in forward.
std::vector<WeightStorage> StoragesByHand(const Recipe& recipe);

/// Sums tensors of the same name over the parts, in this order.
absl::StatusOr<NamedOutputs> SumsOf(const std::vector<NamedOutputs>& parts);

}  // namespace quantgate
