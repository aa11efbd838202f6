// The module's only visible symbol, quantgate_cuda_entry (cuda_module.h).
#include "kernels/engine/cuda_module.h"

#include "kernels/engine/cuda_engine.h"

namespace quantgate {
namespace {

absl::StatusOr<std::unique_ptr<Engine>> Make(int ordinal) {
  absl::StatusOr<std::unique_ptr<CudaEngine>> engine = CudaEngine::Open(ordinal);
  if (!engine.ok()) return engine.status();
  return std::unique_ptr<Engine>(*std::move(engine));
}

constexpr CudaEntry kEntry = {&CudaDevice::Count, &Make, &ModuleCollectives};

}  // namespace
}  // namespace quantgate

extern "C" __attribute__((visibility("default"))) const quantgate::CudaEntry*
quantgate_cuda_entry() {
  return &quantgate::kEntry;
}
