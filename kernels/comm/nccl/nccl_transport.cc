#include "kernels/comm/nccl/nccl_transport.h"

#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/comm/nccl/nccl_group.h"
#include "kernels/engine/cuda_module.h"
#include "kernels/engine/forwarding_engine.h"

namespace quantgate {
namespace {

ncclDataType_t NcclTypeOf(DType dtype) {
  if (dtype == DType::kBF16) return ncclBfloat16;
  return dtype == DType::kF16 ? ncclFloat16 : ncclFloat32;
}

/// The CUDA engine behind any engines that forward to it; null where there is none.
CudaEngine* CudaEngineOf(Engine* engine) {
  while (auto* forwarding = dynamic_cast<ForwardingEngine*>(engine)) {
    engine = &forwarding->forwarded();
  }
  return dynamic_cast<CudaEngine*>(engine);
}

absl::StatusOr<std::vector<CudaEngine*>> CudaEnginesOf(std::span<Engine* const> engines) {
  const auto refuse = [](const std::string& rule) {
    return RefusePrecondition("backend", "nccl", rule);
  };
  std::vector<CudaEngine*> cuda;
  std::map<int, size_t> rank_of_device;
  for (size_t rank = 0; rank < engines.size(); ++rank) {
    CudaEngine* engine = CudaEngineOf(engines[rank]);
    if (engine == nullptr) {
      return refuse(absl::StrCat("rank ", rank, " is on ", engines[rank]->Describe().id,
                                 "; it needs a CUDA device for each rank"));
    }
    const int ordinal = engine->device().facts().ordinal;
    const auto [other, is_new] = rank_of_device.emplace(ordinal, rank);
    if (!is_new) {
      return refuse(absl::StrCat("ranks ", other->second, " and ", rank, " are both on cuda:",
                                 ordinal, "; it needs a device for each rank"));
    }
    cuda.push_back(engine);
  }
  return cuda;
}

/// NCCL's kernels read and write the tensors of peers directly.
absl::Status ReachEachOther(const std::vector<CudaEngine*>& engines) {
  for (CudaEngine* engine : engines) {
    const std::unique_lock<std::mutex> stream = engine->HoldStream();
    QG_RETURN_IF_ERROR(engine->device().MakeCurrent());
    for (CudaEngine* peer : engines) {
      QG_RETURN_IF_ERROR(engine->device().ReachMemoryOf(peer->device().facts().ordinal).status());
    }
  }
  return absl::OkStatus();
}

class NcclTransport final : public Transport {
 public:
  NcclTransport(const NcclLibrary& library, std::vector<CudaEngine*> engines,
                absl::Duration deadline, CommunicatorCache* communicators)
      : library_(library),
        nccl_(library.call()),
        engines_(std::move(engines)),
        deadline_(deadline),
        own_communicators_(nullptr, 0),
        communicators_(communicators == nullptr ? own_communicators_ : *communicators),
        watch_([this] { Watch(); }) {}

  ~NcclTransport() override {
    {
      const std::scoped_lock lock(mutex_);
      is_ending_ = true;
    }
    ending_.notify_all();
    watch_.join();
  }

  std::string name() const override {
    return absl::StrCat("nccl ", library_.version(), " (", NcclEnvironment(), ")");
  }

  absl::Status AddGroup(const GroupDescription& description) override {
    if (description.size() < 2) return absl::OkStatus();  // Nothing moves.
    std::vector<CudaEngine*> members;
    for (const int rank : description.members) members.push_back(engines_[rank]);
    QG_ASSIGN_OR_RETURN(
        std::unique_ptr<NcclGroup> group,
        NcclGroup::Create(library_, description, std::move(members), deadline_, communicators_));
    const std::scoped_lock lock(mutex_);
    groups_[description.id] = std::move(group);
    return absl::OkStatus();
  }

  absl::StatusOr<Contribution> Contribute(Engine& engine, std::vector<Tensor> tensors) override {
    return ContributionOf(engine, std::move(tensors));
  }

  absl::Status AllGather(const AgreedCall& call, const Tensor& whole) override {
    Tensor target = whole;
    const Tensor& own = call.tensor(call.place);
    if (call.group.size() == 1) return call.engine.Copy(own, whole, 0);
    if (AreOfOneSize(call)) {
      return On(call, [&](ncclComm_t communicator, cudaStream_t stream) {
        return nccl_.AllGather(own.data(), target.data(), own.byte_size(), ncclUint8, communicator,
                               stream);
      });
    }
    std::vector<void*> places;
    std::byte* at = target.data();
    for (int member = 0; member < call.group.size(); ++member) {
      places.push_back(at);
      at += call.tensor(member).byte_size();
    }
    return BroadcastEach(call, places);
  }

  absl::StatusOr<std::vector<Tensor>> AllGatherParts(const AgreedCall& call) override {
    QG_ASSIGN_OR_RETURN(std::vector<Tensor> parts, Parts(call, 0));
    if (call.group.size() == 1) return parts;
    std::vector<void*> places;
    for (Tensor& part : parts) places.push_back(part.data());
    QG_RETURN_IF_ERROR(BroadcastEach(call, places));
    return parts;
  }

  absl::StatusOr<std::vector<Tensor>> AllToAll(const AgreedCall& call) override {
    QG_ASSIGN_OR_RETURN(std::vector<Tensor> parts, Parts(call, static_cast<size_t>(call.place)));
    if (call.group.size() == 1) return parts;
    const std::vector<Tensor>& sent = call.contribution(call.place).tensors;
    QG_RETURN_IF_ERROR(On(call, [&](ncclComm_t communicator, cudaStream_t stream) {
      for (int peer = 0; peer < call.group.size(); ++peer) {
        if (peer == call.place) continue;
        const ncclResult_t result = Exchange(sent[peer], parts[peer], peer, communicator, stream);
        if (!IsUnderWay(result)) return result;
      }
      return ncclSuccess;
    }));
    return parts;
  }

  absl::StatusOr<Tensor> Maximum(const AgreedCall& call) override {
    const Tensor& own = call.tensor(call.place);
    if (call.group.size() == 1) return call.engine.Maximum({&own, 1}, call.cancellation);
    return AllReduce(call, ncclMax);
  }

  absl::StatusOr<Tensor> LibrarySum(const AgreedCall& call) override {
    if (call.group.size() == 1) return call.tensor(0);
    return AllReduce(call, ncclSum);
  }

  absl::StatusOr<Tensor> LibraryReduceScatter(const AgreedCall& call) override {
    const std::vector<Tensor>& blocks = call.contribution(call.place).tensors;
    if (call.group.size() == 1) return blocks[0];
    const Tensor& own = blocks[call.place];
    const ncclDataType_t type = NcclTypeOf(own.dtype());
    QG_ASSIGN_OR_RETURN(Tensor sum, call.engine.Allocate(own.dtype(), own.shape()));
    bool is_even = true;
    for (const Tensor& block : blocks) is_even = is_even && block.shape() == own.shape();
    if (is_even) {
      QG_ASSIGN_OR_RETURN(const Tensor all, call.engine.ConcatenateRows(blocks, call.cancellation));
      QG_RETURN_IF_ERROR(On(call, [&](ncclComm_t communicator, cudaStream_t stream) {
        return nccl_.ReduceScatter(all.data(), sum.data(), static_cast<size_t>(own.element_count()),
                                   type, ncclSum, communicator, stream);
      }));
      return sum;
    }
    QG_RETURN_IF_ERROR(On(call, [&](ncclComm_t communicator, cudaStream_t stream) {
      for (int owner = 0; owner < call.group.size(); ++owner) {
        const Tensor& block = blocks[owner];
        if (block.element_count() == 0) continue;
        const ncclResult_t result =
            nccl_.Reduce(block.data(), sum.data(), static_cast<size_t>(block.element_count()), type,
                         ncclSum, owner, communicator, stream);
        if (!IsUnderWay(result)) return result;
      }
      return ncclSuccess;
    }));
    return sum;
  }

  void Abort(const GroupDescription& group, const absl::Status& cause) override {
    const std::scoped_lock lock(mutex_);
    const auto found = groups_.find(group.id);
    if (found != groups_.end()) found->second->Abort(cause);
  }

  absl::Status Settle() override {
    while (!PollAll()) absl::SleepFor(kSettlePeriod);
    for (NcclGroup* group : Groups()) QG_RETURN_IF_ERROR(group->health());
    return absl::OkStatus();
  }

 private:
  static constexpr absl::Duration kSettlePeriod = absl::Microseconds(50);
  static constexpr std::chrono::milliseconds kWatchPeriod{20};

  static bool IsUnderWay(ncclResult_t result) {
    return result == ncclSuccess || result == ncclInProgress;
  }

  absl::Status On(const AgreedCall& call, NcclGroup::Part part) {
    NcclGroup* group = nullptr;
    {
      const std::scoped_lock lock(mutex_);
      group = groups_.at(call.group.id).get();
    }
    return group->Call(call.place, part);
  }

  static bool AreOfOneSize(const AgreedCall& call) {
    for (int member = 1; member < call.group.size(); ++member) {
      if (call.tensor(member).byte_size() != call.tensor(0).byte_size()) return false;
    }
    return true;
  }

  /// The members' tensors `index` as this one sees them: its own, and memory for those of others.
  static absl::StatusOr<std::vector<Tensor>> Parts(const AgreedCall& call, size_t index) {
    std::vector<Tensor> parts;
    for (int member = 0; member < call.group.size(); ++member) {
      Tensor part = call.contribution(member).tensors[index];
      if (member != call.place) {
        QG_ASSIGN_OR_RETURN(part, call.engine.Allocate(part.dtype(), part.shape()));
      }
      parts.push_back(std::move(part));
    }
    return parts;
  }

  /// Sends the tensor of each member to its place in the memory of every member.
  absl::Status BroadcastEach(const AgreedCall& call, const std::vector<void*>& places) {
    return On(call, [&](ncclComm_t communicator, cudaStream_t stream) {
      for (int root = 0; root < call.group.size(); ++root) {
        const size_t bytes = call.tensor(root).byte_size();
        if (bytes == 0) continue;
        const void* from = root == call.place ? call.tensor(root).data() : places[root];
        const ncclResult_t result =
            nccl_.Broadcast(from, places[root], bytes, ncclUint8, root, communicator, stream);
        if (!IsUnderWay(result)) return result;
      }
      return ncclSuccess;
    });
  }

  ncclResult_t Exchange(const Tensor& sent, Tensor& received, int peer, ncclComm_t communicator,
                        cudaStream_t stream) const {
    if (sent.byte_size() != 0) {
      const ncclResult_t result =
          nccl_.Send(sent.data(), sent.byte_size(), ncclUint8, peer, communicator, stream);
      if (!IsUnderWay(result)) return result;
    }
    if (received.byte_size() == 0) return ncclSuccess;
    return nccl_.Recv(received.data(), received.byte_size(), ncclUint8, peer, communicator, stream);
  }

  absl::StatusOr<Tensor> AllReduce(const AgreedCall& call, ncclRedOp_t operation) {
    const Tensor& own = call.tensor(call.place);
    QG_ASSIGN_OR_RETURN(Tensor reduced, call.engine.Allocate(own.dtype(), own.shape()));
    QG_RETURN_IF_ERROR(On(call, [&](ncclComm_t communicator, cudaStream_t stream) {
      return nccl_.AllReduce(own.data(), reduced.data(), static_cast<size_t>(own.element_count()),
                             NcclTypeOf(own.dtype()), operation, communicator, stream);
    }));
    return reduced;
  }

  std::vector<NcclGroup*> Groups() {
    const std::scoped_lock lock(mutex_);
    std::vector<NcclGroup*> groups;
    for (const auto& [id, group] : groups_) groups.push_back(group.get());
    return groups;
  }

  /// Whether nothing is under way.
  bool PollAll() {
    bool is_done = true;
    for (NcclGroup* group : Groups()) is_done = group->Poll() && is_done;
    return is_done;
  }

  void Watch() {
    std::unique_lock lock(mutex_);
    while (!ending_.wait_for(lock, kWatchPeriod, [this] { return is_ending_; })) {
      lock.unlock();
      PollAll();
      for (NcclGroup* group : Groups()) group->AbortFailed();
      lock.lock();
    }
  }

  const NcclLibrary& library_;
  const NcclFunctions& nccl_;
  const std::vector<CudaEngine*> engines_;  // By rank.
  const absl::Duration deadline_;
  CommunicatorCache
      own_communicators_;  // Used without a cache of the caller's; keeps nothing idle.
  CommunicatorCache& communicators_;
  std::mutex mutex_;
  std::condition_variable ending_;
  bool is_ending_ = false;
  std::map<int, std::unique_ptr<NcclGroup>> groups_;  // By id; none is taken away.
  std::thread watch_;                                 // Last, because it reads everything above.
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeNcclTransport(std::span<Engine* const> engines,
                                                             absl::Duration deadline,
                                                             CommunicatorCache* communicators) {
  QG_ASSIGN_OR_RETURN(std::vector<CudaEngine*> cuda, CudaEnginesOf(engines));
  QG_ASSIGN_OR_RETURN(const NcclLibrary* library, NcclLibrary::Load());
  QG_RETURN_IF_ERROR(ReachEachOther(cuda));
  return std::make_unique<NcclTransport>(*library, std::move(cuda), deadline, communicators);
}

absl::Status CheckNccl() { return NcclLibrary::Load().status(); }

const CudaCollectives* ModuleCollectives() {
  static constexpr CudaCollectives kCollectives = {&MakeNcclTransport, &CheckNccl};
  return &kCollectives;
}

}  // namespace quantgate
