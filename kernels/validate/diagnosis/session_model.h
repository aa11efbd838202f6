// The model of a diagnosis that takes a step of a session again.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/training/training_session.h"
#include "kernels/validate/diagnosis/layer_hypotheses.h"

namespace quantgate {

/// A forward of a session on one rank, and perhaps its backward.
struct SessionSteps {
  SessionSpec spec;  ///< With the recipe that the session had before the forward.
  /// The session before the forward, as Session::Checkpoint gives it; called once at most.
  std::function<absl::StatusOr<TensorFile>()> before;
  ForwardStep forward;
  std::optional<BackwardStep> backward;  ///< The outputs are then this step's.
  /// The scales of delayed scaling, on the host, that an earlier forward began with, by the state's
  /// name: "fc1.input".
  std::map<std::string, Tensor> earlier_scales;
  int64_t bytes_max = 0;  ///< What a copy of the session may hold.
};

/// Takes the steps under each change on a session that goes on from the checkpoint. Where the same
/// steps without a change do not give the expected bits (another microbatch's backward came in
/// between), no change is tried. A part of backward can be changed alone only in a session of one
/// `linear`; an activation cannot be changed.
class SessionModel : public LayerModel {
 public:
  /// `expected`: outputs of the last step, in host memory. `caller`: whoever waits for the
  /// diagnosis; a step that has begun ends with `budget`. All must outlive the model.
  SessionModel(Engine& engine, SessionSteps steps, const TensorsByName& expected,
               const Cancellation* caller, const DiagnosisBudget& budget);

  absl::StatusOr<TensorsByName> Compute(const LayerChange& change) override;
  std::vector<std::string> Activations() const override;
  std::vector<std::string> Recipes() const override;
  std::vector<std::string> EarlierScales() override;

 private:
  absl::Status ReadBefore();
  /// That the steps, taken again, give the expected bits. Found once.
  absl::Status CheckRepeats();
  absl::StatusOr<TensorsByName> TakeSteps(const LayerChange& change);
  /// The checkpoint and the steps with the change's tensors in their places.
  absl::Status Put(const LayerChange& change, TensorFile& file, SessionSteps& steps) const;

  Engine& engine_;
  SessionSteps steps_;
  const TensorsByName& expected_;
  const Cancellation* const caller_;
  const Cancellation end_;
  std::optional<absl::StatusOr<TensorFile>> before_;
  std::optional<absl::Status> repeats_;
};

}  // namespace quantgate
