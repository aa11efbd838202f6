// Worlds of CUDA ranks for tests: virtual ranks on one device, ranks on a device each, and ranks of
// NCCL where there are enough devices.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/comm/group/world.h"

namespace quantgate {

struct CudaWorldCase {
  int size = 1;
  bool is_on_one_device = true;
  CollectiveBackend backend = CollectiveBackend::kLocal;
};

/// All cases that this host can run. Those that need more devices are listed once on stderr.
std::vector<CudaWorldCase> CudaWorldCases();
/// The cases of one backend.
std::vector<CudaWorldCase> CudaWorldCases(CollectiveBackend backend);
/// "4 ranks by nccl".
std::string CaseText(const CudaWorldCase& world);

/// The world of a case. All worlds of the program share its engines, since opening one takes long.
class CudaRanks {
 public:
  explicit CudaRanks(const CudaWorldCase& world, WorldOptions options = {});

  World& world() { return *world_; }
  /// Runs `body` on every rank, expects it to succeed, and gives the ranks' tensors in host memory.
  std::vector<Tensor> TensorOfEach(const std::function<absl::StatusOr<Tensor>(Rank&)>& body);

 private:
  std::unique_ptr<World> world_;
};

}  // namespace quantgate
