// The bytes of what is saved for backward, and of what ranks gather for it, in the logical layouts
// of docs/file-formats.md section 2: without the padding and swizzling of a GEMM's kernel.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "kernels/tensor/tensor.h"

namespace quantgate {

/// Bytes of saved tensors.
struct SavedSize {
  int64_t data = 0;    ///< Codes, and values in high precision.
  int64_t scales = 0;  ///< scale_inv, and nvfp4's amax, which is a factor of every value.
  /// Those of data and scales that something holds anyway: a parameter, or a weight that is cached
  /// for later microbatches.
  int64_t held = 0;

  int64_t bytes() const { return data + scales; }
  void Add(const SavedSize& other) {
    data += other.data;
    scales += other.scales;
    held += other.held;
  }
  friend bool operator==(const SavedSize&, const SavedSize&) = default;
};

/// One tensor of a saved operand; it may be absent.
struct SavedTensor {
  Tensor tensor;
  bool is_scale = false;
};

/// Addresses of host or device memory.
class AddressRanges {
 public:
  struct Range {
    uintptr_t begin = 0, end = 0;
    int64_t bytes() const { return static_cast<int64_t>(end - begin); }
  };
  /// Adds a range; returns the parts of it that were not there before.
  std::vector<Range> Add(Range range);
  /// The parts of `range` that are not there.
  std::vector<Range> Missing(Range range) const;

 private:
  std::map<uintptr_t, uintptr_t> ends_;  ///< Ends by begins; no two ranges overlap.
};

/// Counts saved operands so that no byte counts twice. Storage is told by its addresses, so it must
/// live as long as operands are counted.
class StorageCount {
 public:
  struct Sizes {
    SavedSize all;      ///< Of the operand's own tensors.
    SavedSize counted;  ///< What no operand before it has.
  };

  /// Tells of storage that something holds anyway. Must precede the operands that share it.
  void HoldAnyway(const Tensor& tensor);
  Sizes Add(std::span<const SavedTensor> operand);

 private:
  AddressRanges held_, counted_;
};

/// The bytes of whole x and grad_output that a rank has gathered for a backward, and of whole
/// weights that it has gathered for a pass, and still holds. Copies have one count. Used by one
/// thread.
class GatheredBytes {
 public:
  /// The bytes are held until the last copy of the returned lease has gone, which may be after this
  /// object has.
  std::shared_ptr<const void> Hold(int64_t bytes);

  int64_t held() const { return count_->held; }
  int64_t peak() const { return count_->peak; }  ///< The most that was held at a time.

 private:
  struct Count {
    int64_t held = 0, peak = 0;
  };
  std::shared_ptr<Count> count_ = std::make_shared<Count>();
};

}  // namespace quantgate
