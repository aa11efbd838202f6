#include "kernels/comm/group/transport.h"

#include <utility>

#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/comm/group/rendezvous.h"
#include "kernels/comm/nccl/nccl_transport.h"
#include "kernels/engine/cuda_module.h"

namespace quantgate {
namespace {

absl::Status NoLibrary() {
  return StatusOf({.code = absl::StatusCode::kUnimplemented,
                   .field = "reduction_profile",
                   .value = "nccl",
                   .rule = "ranks that copy within the process have no library that sums; take the "
                           "collective backend nccl"});
}

class LocalTransport final : public Transport {
 public:
  std::string name() const override { return "local"; }
  absl::Status AddGroup(const GroupDescription&) override { return absl::OkStatus(); }

  absl::StatusOr<Contribution> Contribute(Engine& engine, std::vector<Tensor> tensors) override {
    return ContributionOf(engine, std::move(tensors));
  }

  absl::Status AllGather(const AgreedCall& call, const Tensor& whole) override {
    int64_t offset = 0;
    for (int member = 0; member < call.group.size(); ++member) {
      const Tensor& part = call.tensor(member);
      if (part.byte_size() == 0) continue;
      QG_RETURN_IF_ERROR(WaitUntilWritten(call, member));
      QG_RETURN_IF_ERROR(call.engine.Copy(part, whole, offset));
      offset += static_cast<int64_t>(part.byte_size());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<Tensor>> AllGatherParts(const AgreedCall& call) override {
    return ImportOfEach(call, 0);
  }

  absl::StatusOr<std::vector<Tensor>> AllToAll(const AgreedCall& call) override {
    return ImportOfEach(call, call.place);
  }

  absl::StatusOr<Tensor> Maximum(const AgreedCall& call) override {
    QG_ASSIGN_OR_RETURN(const std::vector<Tensor> parts, AllGatherParts(call));
    return call.engine.Maximum(parts, call.cancellation);
  }

  absl::StatusOr<Tensor> LibrarySum(const AgreedCall&) override { return NoLibrary(); }
  absl::StatusOr<Tensor> LibraryReduceScatter(const AgreedCall&) override { return NoLibrary(); }

 private:
  static absl::Status WaitUntilWritten(const AgreedCall& call, int member) {
    if (member == call.place) return absl::OkStatus();
    return call.engine.WaitFor(*call.contribution(member).moment);
  }

  static absl::StatusOr<Tensor> Import(const AgreedCall& call, int member, size_t index) {
    const Tensor& tensor = call.contribution(member).tensors[index];
    if (member == call.place) return tensor;
    QG_RETURN_IF_ERROR(WaitUntilWritten(call, member));
    return call.engine.Import(tensor);
  }

  static absl::StatusOr<std::vector<Tensor>> ImportOfEach(const AgreedCall& call, size_t index) {
    std::vector<Tensor> tensors;
    for (int member = 0; member < call.group.size(); ++member) {
      QG_ASSIGN_OR_RETURN(Tensor tensor, Import(call, member, index));
      tensors.push_back(std::move(tensor));
    }
    return tensors;
  }
};

}  // namespace

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

std::unique_ptr<Transport> MakeLocalTransport() { return std::make_unique<LocalTransport>(); }

}  // namespace quantgate
