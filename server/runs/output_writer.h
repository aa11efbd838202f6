// OutputWriter: tensors that a call returns, inline while they are few bytes together, otherwise as
// blobs or by their fingerprints alone.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "kernels/engine/engine.h"
#include "kernels/tensor/fingerprint.h"
#include "kernels/tensor/tensor.h"
#include "quantgate/v1/tensor.pb.h"
#include "server/limits.h"
#include "server/tensor_source.h"

namespace quantgate {

/// What becomes of tensors that a message does not carry.
enum class KeepOutputs {
  kAll,    ///< Every tensor becomes a blob, the small ones too.
  kLarge,  ///< They become blobs.
  kNone,   ///< Their bytes stay where they are: the fingerprint is all that is told of them.
};

/// One for each message that is sent. Not thread-safe.
class OutputWriter {
 public:
  OutputWriter(Blobs& blobs, Engine& engine, KeepOutputs keep)
      : blobs_(blobs), engine_(engine), keep_(keep) {}

  /// The tensor is in the engine's memory or the host's. RESOURCE_EXHAUSTED for the disk or quota.
  /// A tensor without value leaves `proto` as it is. `read` gives the tensor's bytes sooner than
  /// the engine's ToHost; empty where that is all there is.
  absl::Status Write(const std::string& name, const Tensor& tensor, const Fingerprint& fingerprint,
                     v1::NamedTensor* proto, const Engine::HostRead& read = nullptr);
  /// All but its bytes.
  static void Describe(const std::string& name, const Tensor& tensor,
                       const Fingerprint& fingerprint, v1::NamedTensor* proto);

 private:
  Blobs& blobs_;
  Engine& engine_;
  const KeepOutputs keep_;
  int64_t inline_bytes_left_ = kInlineBytesMax;
};

}  // namespace quantgate
