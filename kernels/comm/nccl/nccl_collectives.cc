#include "kernels/comm/nccl/cuda_collectives.h"
#include "kernels/comm/nccl/nccl_transport.h"
#include "kernels/engine/cuda_entry.h"

namespace quantgate {

const CudaCollectives* Collectives() {
  static constexpr CudaCollectives kCollectives = {&MakeNcclTransport, &CheckNccl};
  return &kCollectives;
}

}  // namespace quantgate
