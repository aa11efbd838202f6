// Two ranks on a GPU each with NCCL's transport between them, for tests in which a rank does not
// come to a call.
#pragma once

#include <array>
#include <future>
#include <memory>
#include <vector>

#include "kernels/comm/nccl/communicator_cache.h"
#include "kernels/comm/nccl/nccl_transport.h"
#include "kernels/engine/cuda_engine.h"

namespace quantgate {

class NcclRanks {
 public:
  static constexpr int kSize = 2;
  static const GroupDescription kGroup;  ///< The group "tp" of both ranks.

  /// Opens an engine on devices[rank] for each rank.
  explicit NcclRanks(absl::Duration deadline, CommunicatorCache* communicators = nullptr,
                     std::array<int, kSize> devices = {0, 1});

  Transport& transport() { return *transport_; }
  CudaDevice& device(int rank) { return engines_[rank]->device(); }
  /// All-gathers f32 [8] of `values` + rank from each rank, on the threads of `callers`. Gives the
  /// status of each; the gathered values may be used only after Transport::Settle.
  std::array<absl::Status, kSize> Gather(const std::vector<int>& callers, float values = 1);
  /// Expects that `rank` gathered both ranks' values in the last Gather.
  void ExpectGathered(int rank, float values = 1);

 private:
  std::array<std::unique_ptr<CudaEngine>, kSize> engines_;
  std::unique_ptr<Transport> transport_;
  std::array<Tensor, kSize> gathered_;
};

/// Blocks a device's stream before everything that is asked of it later, until LetGo. The
/// destructor waits for the stream.
class StreamHold {
 public:
  explicit StreamHold(CudaDevice& device);
  ~StreamHold();
  void LetGo();

 private:
  CudaDevice& device_;
  std::promise<void> let_go_;
  std::shared_future<void> is_let_go_;
  bool has_let_go_ = false;
};

}  // namespace quantgate
