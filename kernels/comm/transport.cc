#include "kernels/comm/transport.h"

namespace quantgate {

absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(CollectiveBackend backend,
                                                         std::span<Engine* const>) {
  if (backend == CollectiveBackend::kLocal) return MakeLocalTransport();
  return absl::UnimplementedError("collective backend nccl: this build does not have it");
}

}  // namespace quantgate
