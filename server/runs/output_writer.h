// OutputWriter: writes the tensors that a call returns into its message: inline as long as their
// bytes together do not exceed kInlineBytesMax, otherwise as blobs or as fingerprints only.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/engine/engine.h"
#include "kernels/tensor/files/tensor_file.h"
#include "kernels/tensor/fingerprint.h"
#include "kernels/tensor/tensor.h"
#include "quantgate/v1/tensor.pb.h"
#include "server/limits.h"
#include "server/store_interfaces.h"

namespace quantgate {

/// Which tensors become blobs.
enum class KeepOutputs {
  kAll,    ///< Every tensor, also the small ones.
  kLarge,  ///< Tensors that the message does not carry.
  kNone,   ///< None: a tensor that the message does not carry has only its fingerprint there.
};

/// One for each message. Not thread-safe.
class OutputWriter {
 public:
  OutputWriter(Blobs& blobs, Engine& engine, KeepOutputs keep)
      : blobs_(blobs), engine_(engine), keep_(keep) {}

  /// Writes a tensor in the engine's or the host's memory. RESOURCE_EXHAUSTED for the disk or
  /// quota. A tensor without value leaves `proto` as it is. `read`, where not empty, gives the
  /// tensor's bytes sooner than the engine's ToHost.
  absl::Status Write(const std::string& name, const Tensor& tensor, const Fingerprint& fingerprint,
                     v1::NamedTensor* proto, const Engine::HostRead& read = nullptr);
  /// Writes all but the bytes.
  static void Describe(const std::string& name, const Tensor& tensor,
                       const Fingerprint& fingerprint, v1::NamedTensor* proto);

  using Protos = google::protobuf::RepeatedPtrField<v1::NamedTensor>;
  /// Adds tensors to `protos`, each as Write does, and waits once for all their fingerprints.
  absl::Status WriteAll(const std::vector<NamedTensor>& tensors, const Cancellation* cancellation,
                        Protos& protos);
  /// The same as Describe does.
  static absl::Status DescribeAll(Engine& engine, const std::vector<NamedTensor>& tensors,
                                  const Cancellation* cancellation, Protos& protos);

 private:
  Blobs& blobs_;
  Engine& engine_;
  const KeepOutputs keep_;
  int64_t inline_bytes_left_ = kInlineBytesMax;
};

}  // namespace quantgate
