// A request for a run, read and converted: as much of it as waits for nothing.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <mutex>
#include <optional>

#include "absl/status/statusor.h"
#include "quantgate/v1/engine_service.pb.h"
#include "server/layer_run.h"

namespace quantgate {

class PreparedRun {
 public:
  /// Of a serialized ExecuteRequest whose inline tensors may have so many bytes together.
  PreparedRun(const grpc::ByteBuffer& bytes, int64_t tensor_bytes_max)
      : bytes_(bytes), tensor_bytes_max_(tensor_bytes_max) {}

  // Each is made by whichever thread comes first; another one waits for it.
  const absl::StatusOr<v1::ExecuteRequest>& Request();
  /// What the request asks for; its status where it is none. Handed out once.
  absl::StatusOr<LayerRun> TakeRun();
  /// OutlineLayerRun of that run, whose tensors the loader has resolved. Handed out once.
  absl::StatusOr<Plan> TakeOutline(const LayerRun& run);
  /// Makes ready what these give.
  void Prepare();

 private:
  const grpc::ByteBuffer bytes_;
  const int64_t tensor_bytes_max_;
  std::once_flag parsed_, converted_;
  absl::StatusOr<v1::ExecuteRequest> request_;
  absl::StatusOr<LayerRun> run_;
  std::optional<absl::StatusOr<Plan>> outline_;  // Where the request says what its tensors are.
};

}  // namespace quantgate
