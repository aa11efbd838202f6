// SessionOutline: a session without the values of its tensors, on which a sequence of steps is
// checked before any of them is done. The checks are those of the steps themselves.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/training/training_session.h"

namespace quantgate {

/// Tensors of arguments may be outlines (kernels/quantize/quantized_outline.h). Each step is
/// refused as Session's step of that name would be, as far as neither values nor the parts of
/// several ranks decide it, and is then taken as done.
class SessionOutline {
 public:
  /// Errors as OpenSession.
  static absl::StatusOr<SessionOutline> Open(
      Engine& engine, SessionSpec spec, std::map<std::string, Tensor> parameters,
      const std::map<std::string, QuantizedTensor>& codes = {});

  absl::Status Forward(const ForwardStep& step);
  absl::Status Backward(const BackwardStep& step);
  absl::Status Wgrad();
  absl::Status Optimize(const OptimizerStep& step);
  absl::Status ChangeRecipe(const Recipe& recipe);
  absl::Status Offload(const std::string& microbatch);
  absl::Status Reload(const std::string& microbatch);
  /// A checkpoint, and a session of `spec` that continues from it.
  absl::Status Restart(SessionSpec spec);

  const Recipe& recipe() const;

 private:
  struct State;  ///< Private to session_outline.cc.
  explicit SessionOutline(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace quantgate
