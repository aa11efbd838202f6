#include "kernels/tensor/device/staging_memory.h"

#include <mutex>
#include <vector>

#include "kernels/base/cuda_status.h"

namespace quantgate {
namespace {

/// What four ranks have with three queues each.
constexpr size_t kIdlePiecesMax = 48;

/// Lives as long as the process: while static objects end, CUDA can free nothing any more.
struct IdlePieces {
  std::mutex mutex;
  std::vector<std::byte*> pieces;

  static IdlePieces& Get() {
    static IdlePieces& idle = *new IdlePieces;
    return idle;
  }
};

}  // namespace

absl::StatusOr<std::byte*> TakeStagingMemory() {
  IdlePieces& idle = IdlePieces::Get();
  {
    const std::lock_guard<std::mutex> lock(idle.mutex);
    if (!idle.pieces.empty()) {
      std::byte* const piece = idle.pieces.back();
      idle.pieces.pop_back();
      return piece;
    }
  }
  void* piece = nullptr;
  QG_CUDA_RETURN_IF_ERROR(cudaHostAlloc(&piece, kStagingBytes, cudaHostAllocPortable));
  return static_cast<std::byte*>(piece);
}

void ReturnStagingMemory(std::byte* piece) {
  if (piece == nullptr) return;
  IdlePieces& idle = IdlePieces::Get();
  {
    const std::lock_guard<std::mutex> lock(idle.mutex);
    if (idle.pieces.size() < kIdlePiecesMax) {
      idle.pieces.push_back(piece);
      return;
    }
  }
  (void)QG_CUDA_STATUS(cudaFreeHost(piece));
}

}  // namespace quantgate
