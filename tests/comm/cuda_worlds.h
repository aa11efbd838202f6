// Worlds of CUDA ranks for tests: virtual ranks on one device, ranks on the devices there are, and
// NCCL's where there are as many.
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

/// All that this host can have; on stderr, once, what is left out for want of devices.
std::vector<CudaWorldCase> CudaWorldCases();
/// Those of one backend.
std::vector<CudaWorldCase> CudaWorldCases(CollectiveBackend backend);
/// "4 ranks by nccl".
std::string CaseText(const CudaWorldCase& world);

/// The world of a case. Its engines are the program's: opening one takes its time.
class CudaRanks {
 public:
  explicit CudaRanks(const CudaWorldCase& world, WorldOptions options = {});

  World& world() { return *world_; }
  /// A run in which every body must succeed, with what each gives, in host memory.
  std::vector<Tensor> TensorOfEach(const std::function<absl::StatusOr<Tensor>(Rank&)>& body);

 private:
  std::unique_ptr<World> world_;
};

}  // namespace quantgate
