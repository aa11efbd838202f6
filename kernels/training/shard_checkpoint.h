// Checkpoints of tensors that are divided over ranks: each rank writes one safetensors file with
// its parts, and metadata that say where in the whole tensors they lie. Any number of ranks can go
// on from the files of any other number, byte for byte. Files come from untrusted hands: every
// number is checked before it is believed.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/seeded_fault.h"
#include "kernels/tensor/tensor_file.h"

namespace quantgate {

/// Rows [begin, begin + rows of tensor) of dim 0 of a tensor of `total` rows.
struct ShardPart {
  std::string name;
  Tensor tensor;  ///< On the host.
  int64_t begin = 0;
  int64_t total = 0;
};

/// What rank `rank` of `ranks` writes. What all ranks hold alike is one rank's to write.
TensorFile MakeShardFile(int rank, int ranks, std::span<const ShardPart> parts,
                         const std::map<std::string, std::string>& metadata);

class ShardCheckpoint {
 public:
  /// The files of all ranks, in any order. INVALID_ARGUMENT naming file, tensor and rule: one file
  /// of each rank; parts of one dtype and one row that lie side by side from row 0 to the last;
  /// the same metadata of the user.
  static absl::StatusOr<ShardCheckpoint> Open(std::span<const TensorFile> files,
                                              const SeededFaults& faults);

  int ranks() const { return ranks_; }  ///< That wrote it.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool Has(const std::string& name) const { return tensors_.count(name) != 0; }
  /// Rows [begin, begin + count) as one tensor on the host. NOT_FOUND, INVALID_ARGUMENT.
  absl::StatusOr<Tensor> Rows(const std::string& name, int64_t begin, int64_t count) const;
  absl::StatusOr<Tensor> Whole(const std::string& name) const;

 private:
  absl::Status AddFile(const TensorFile& file);
  absl::Status Check(const SeededFaults& faults);

  int ranks_ = 0;
  std::vector<bool> has_rank_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, std::vector<ShardPart>> tensors_;  ///< In the order of their places.
};

}  // namespace quantgate
