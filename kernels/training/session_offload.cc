#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/training/session_checks.h"
#include "kernels/training/session_faults.h"
#include "kernels/training/session_step_run.h"

namespace quantgate {
namespace {

/// A copy in host memory that shares nothing with its source.
absl::StatusOr<Tensor> HostCopy(Engine& engine, const Tensor& tensor,
                                const Cancellation* cancellation) {
  QG_ASSIGN_OR_RETURN(const Tensor host, engine.ToHost(tensor, cancellation));
  if (host.data() != tensor.data()) return host;
  return Tensor::FromBytes(host.dtype(), host.shape(), host.bytes());
}

absl::StatusOr<Tensor> Zeroed(const Tensor& like) {
  const std::vector<std::byte> zeros(like.byte_size());
  return Tensor::FromBytes(like.dtype(), like.shape(), zeros);
}

bool IsScale(const std::string& part) { return part.find("scale_inv") != std::string::npos; }

/// A copy of what the microbatch keeps, with every tensor replaced by what MoveTensor gives.
using MoveTensor =
    absl::FunctionRef<absl::StatusOr<Tensor>(const std::string& name, const Tensor& tensor)>;

absl::StatusOr<std::shared_ptr<InFlight>> Moved(const InFlight& flight, MoveTensor move) {
  auto moved = std::make_shared<InFlight>(flight);
  for (std::shared_ptr<LayerSaved>& saved : moved->saved) {
    if (saved == nullptr) continue;
    saved = saved->Clone();
    for (const SavedPart& part : saved->parts()) {
      if (!part.tensor->has_value()) continue;
      QG_ASSIGN_OR_RETURN(*part.tensor, move(part.name, *part.tensor));
    }
  }
  if (flight.recomputation == nullptr) return moved;
  auto recomputation = std::make_shared<Recomputation>(*flight.recomputation);
  QG_ASSIGN_OR_RETURN(recomputation->step.x, move("x", recomputation->step.x));
  moved->recomputation = std::move(recomputation);
  return moved;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const InFlight>> FindInFlight(const SessionState& state,
                                                             const std::string& microbatch,
                                                             bool is_offloaded) {
  const auto found = state.in_flight.find(microbatch);
  if (found == state.in_flight.end()) {
    return RefusePrecondition("microbatch", microbatch, "no forward of it is in flight");
  }
  if (found->second->is_offloaded == is_offloaded) return found->second;
  return RefusePrecondition("microbatch", microbatch,
                            is_offloaded ? "it is not offloaded" : "it is offloaded already");
}

absl::Status OneRankSession::Offload(const std::string& microbatch,
                                     const Cancellation* cancellation) {
  SessionState next = state_->now;
  QG_ASSIGN_OR_RETURN(const auto flight, FindInFlight(next, microbatch, false));
  const auto move = [&](const std::string& name, const Tensor& tensor) -> absl::StatusOr<Tensor> {
    if (IsScale(name) && state_->faults.Has(kFaultOffloadDropsScales)) return Zeroed(tensor);
    return HostCopy(state_->engine, tensor, cancellation);
  };
  QG_ASSIGN_OR_RETURN(std::shared_ptr<InFlight> moved, Moved(*flight, move));
  moved->is_offloaded = true;
  next.in_flight[microbatch] = std::move(moved);
  return Commit(std::move(next), *state_);
}

absl::Status OneRankSession::Reload(const std::string& microbatch,
                                    const Cancellation* cancellation) {
  SessionState next = state_->now;
  QG_ASSIGN_OR_RETURN(const auto flight, FindInFlight(next, microbatch, true));
  const auto move = [&](const std::string&, const Tensor& tensor) {
    return state_->engine.ToDevice(tensor, cancellation);
  };
  QG_ASSIGN_OR_RETURN(std::shared_ptr<InFlight> moved, Moved(*flight, move));
  moved->is_offloaded = false;
  next.in_flight[microbatch] = std::move(moved);
  return Commit(std::move(next), *state_);
}

}  // namespace quantgate
