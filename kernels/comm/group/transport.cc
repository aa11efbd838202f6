#include "kernels/comm/group/transport.h"

#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/comm/group/rendezvous.h"
#include "kernels/comm/nccl/nccl_transport.h"
#include "kernels/engine/cuda_module.h"

namespace quantgate {

absl::StatusOr<Contribution> ContributionOf(Engine& engine, std::vector<Tensor> tensors) {
  Contribution contribution;
  for (const Tensor& tensor : tensors) {
    QG_ASSIGN_OR_RETURN(Tensor on_device, engine.ToDevice(tensor, nullptr));
    contribution.tensors.push_back(std::move(on_device));
  }
  QG_ASSIGN_OR_RETURN(contribution.moment, engine.MarkMoment());
  return contribution;
}

absl::StatusOr<Postings> Transport::Meet(Rendezvous& rendezvous, int group, int place,
                                         Posting posting) {
  return rendezvous.Meet(group, place, std::move(posting));
}

absl::Status CheckCollectiveBackend(CollectiveBackend backend) {
  if (backend == CollectiveBackend::kLocal) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(const CudaCollectives* collectives, FindCudaCollectives());
  return collectives->check_nccl();
}

absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(CollectiveBackend backend,
                                                         std::span<Engine* const> engines,
                                                         absl::Duration deadline,
                                                         CommunicatorCache* communicators) {
  if (backend == CollectiveBackend::kLocal) return MakeLocalTransport();
  QG_ASSIGN_OR_RETURN(const CudaCollectives* collectives, FindCudaCollectives());
  return collectives->make_nccl_transport(engines, deadline, communicators);
}

}  // namespace quantgate
