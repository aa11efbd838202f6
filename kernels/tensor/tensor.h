// Tensor: a dense row-major array of one element type in a shared buffer. Copying a Tensor shares
// the buffer. Thread-safe for reading; a writer must be alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/tensor/dtype.h"

namespace quantgate {

/// Where the bytes of a buffer live. Functions take and give kHost unless they say otherwise; only
/// the CUDA engine reads kDevice.
enum class MemorySpace { kHost, kDevice };

/// A block of memory in either space, owned or wrapped.
class Buffer {
 public:
  /// Host memory aligned to 64 bytes, not initialised. RESOURCE_EXHAUSTED naming the size when
  /// there is not enough.
  static absl::StatusOr<std::shared_ptr<Buffer>> Allocate(size_t bytes);
  /// Wraps memory that `owner` keeps alive (a mapped file, a received message, a block of a
  /// device's pool).
  static std::shared_ptr<Buffer> Wrap(std::byte* data, size_t bytes,
                                      std::shared_ptr<const void> owner,
                                      MemorySpace space = MemorySpace::kHost);

  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }
  MemorySpace space() const { return space_; }

 private:
  Buffer(std::byte* data, size_t bytes, std::shared_ptr<const void> owner, MemorySpace space)
      : data_(data), bytes_(bytes), space_(space), owner_(std::move(owner)) {}
  std::byte* data_;
  size_t bytes_;
  MemorySpace space_;
  std::shared_ptr<const void> owner_;  // Null when data_ came from Allocate.
};

/// Dims, outermost first.
using Shape = std::vector<int64_t>;

/// The dims as text: "256x512"; "scalar" for rank 0.
std::string ShapeText(const Shape& shape);

/// Largest rank of any tensor, a bound on untrusted input.
inline constexpr int kRankMax = 8;

/// Product of the dims. INVALID_ARGUMENT naming `field`, the offending dim and the rule when the
/// rank is over kRankMax, a dim is negative, or the product or its size in bytes overflows int64.
/// Zero dims are valid.
absl::StatusOr<int64_t> CheckedElementCount(const Shape& shape, DType dtype,
                                            std::string_view field);

class Tensor {
 public:
  /// An absent tensor: has_value() is false.
  Tensor() = default;

  /// Host memory for `shape`, not initialised.
  static absl::StatusOr<Tensor> Allocate(DType dtype, Shape shape);
  /// Views bytes [offset, offset + size) of `buffer`. INVALID_ARGUMENT when they do not fit.
  static absl::StatusOr<Tensor> View(DType dtype, Shape shape, std::shared_ptr<Buffer> buffer,
                                     size_t offset = 0);
  /// A copy of `bytes`. INVALID_ARGUMENT unless their count fits dtype and shape.
  static absl::StatusOr<Tensor> FromBytes(DType dtype, Shape shape,
                                          std::span<const std::byte> bytes);
  /// A one-element f32 tensor of shape [1].
  static absl::StatusOr<Tensor> FromScalar(float value);

  bool has_value() const { return buffer_ != nullptr; }
  /// Only for a tensor that has a value. For kDevice, data(), as() and bytes() give addresses in
  /// device memory.
  MemorySpace space() const { return buffer_->space(); }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return static_cast<int>(shape_.size()); }
  int64_t element_count() const { return element_count_; }
  size_t byte_size() const { return static_cast<size_t>(element_count_) * DTypeBytes(dtype_); }
  /// Product of all dims but the last (M); 1 for rank 0 and rank 1.
  int64_t rows() const;
  /// The last dim (K); 1 for rank 0.
  int64_t columns() const;

  std::byte* data() { return buffer_->data() + offset_; }
  const std::byte* data() const { return buffer_->data() + offset_; }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data());
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data());
  }
  std::span<const std::byte> bytes() const { return {data(), byte_size()}; }

  /// A view of the same bytes under another shape or element type. INVALID_ARGUMENT unless the size
  /// in bytes is the same.
  absl::StatusOr<Tensor> Reinterpret(DType dtype, Shape shape) const;
  /// Entries [begin, begin + count) of the first dim: a view of the same buffer. INVALID_ARGUMENT
  /// for a scalar and when the range does not lie within the dim.
  absl::StatusOr<Tensor> RowRange(int64_t begin, int64_t count) const;

 private:
  DType dtype_ = DType::kF32;
  Shape shape_;
  int64_t element_count_ = 0;
  std::shared_ptr<Buffer> buffer_;
  size_t offset_ = 0;
};

/// Whether two tensors in host memory have the same bytes, whatever dtype and shape say of them.
bool HaveSameBytes(const Tensor& a, const Tensor& b);

/// Dtype and shape as text: "bf16[256x512]"; "absent" without a value.
std::string TensorText(const Tensor& tensor);

}  // namespace quantgate
