// Two ranks on a GPU each and NCCL's transport between them, for tests of what happens when one
// does not come.
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
  static const GroupDescription kGroup;  ///< "tp", of both.

  /// On engines of its own for devices[rank].
  explicit NcclRanks(absl::Duration deadline, CommunicatorCache* communicators = nullptr,
                     std::array<int, kSize> devices = {0, 1});

  Transport& transport() { return *transport_; }
  CudaDevice& device(int rank) { return engines_[rank]->device(); }
  /// All-gathers f32 [8] of `values` + its number from each rank on the threads of `callers`; what
  /// each of them got, which is to be believed after Settle alone.
  std::array<absl::Status, kSize> Gather(const std::vector<int>& callers, float values = 1);
  /// What `rank` gathered last: both ranks' values.
  void ExpectGathered(int rank, float values = 1);

 private:
  std::array<std::unique_ptr<CudaEngine>, kSize> engines_;
  std::unique_ptr<Transport> transport_;
  std::array<Tensor, kSize> gathered_;
};

/// Keeps a device's stream from what is asked of it later, until it is let go. The destructor waits
/// for the stream.
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
