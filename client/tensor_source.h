// TensorSources: turns tensors' names into what a request carries. Uploads tensors of files; passes
// on generator specs and digests.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "client/blob_transfer.h"
#include "client/connection.h"
#include "client/tensor_name.h"

namespace quantgate {

/// Where the bytes of a file go: into the server's store, where later requests find them, or along
/// with the request.
enum class Placement { kStored, kInlineWhenSmall };

/// Tensors up to this size travel inside a request, until those of one TensorSources are so many
/// bytes together: a request that carries all of them is within the message cap of 4 MiB.
inline constexpr int64_t kInlineTensorBytesMax = 256 << 10;
inline constexpr int64_t kInlineTogetherBytesMax = 3 << 20;

class TensorSources {
 public:
  /// Called during uploads with what is uploaded, the bytes done and the bytes in all, and with 0
  /// bytes for each tensor that the server generates.
  using Progress = std::function<void(const std::string& what, int64_t done, int64_t size)>;

  TensorSources(Connection& connection, Placement placement, Progress progress)
      : connection_(connection), placement_(placement), progress_(std::move(progress)) {}

  /// Parses `text` and makes the bytes available to the server. `field` is the option it came from.
  absl::StatusOr<v1::TensorSource> Resolve(std::string_view field, const std::string& text);
  /// The same for a tensor in memory.
  absl::StatusOr<v1::TensorSource> Place(const std::string& what, const Tensor& tensor);
  /// Stores and registers a tensor in memory; returns its record.
  absl::StatusOr<v1::TensorRecord> Store(const std::string& what, const Tensor& tensor);

  /// Files that were read, so that no output overwrites them.
  const std::set<std::string>& files() const { return files_; }
  /// Adds a file that the caller has read.
  void NoteFile(const std::string& path) { files_.insert(path); }
  int64_t bytes_sent() const { return bytes_sent_; }

 private:
  absl::StatusOr<v1::TensorSource> ResolveStored(const TensorName& name);

  Connection& connection_;
  const Placement placement_;
  const Progress progress_;
  std::set<std::string> files_;
  int64_t bytes_sent_ = 0;
  int64_t bytes_inline_ = 0;
};

/// dtype and shape of a tensor as the wire has them.
v1::TensorDescriptor DescriptorOf(const Tensor& tensor);
/// A one-element f32 tensor inside a request.
v1::TensorSource InlineScalar(float value);

}  // namespace quantgate
