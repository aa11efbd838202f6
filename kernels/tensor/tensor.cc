#include "kernels/tensor/tensor.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/device/memory_pool.h"

namespace quantgate {
namespace {

constexpr size_t kAddressSpaceBytes = size_t{1} << 47;  // What x86-64 gives a process.

std::string TypeText(DType dtype, const Shape& shape) {
  return absl::StrCat(std::string(DTypeName(dtype)), "[", ShapeText(shape), "]");
}

}  // namespace

absl::StatusOr<std::shared_ptr<Buffer>> Buffer::Allocate(size_t bytes) {
  if (bytes > kAddressSpaceBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", bytes, " bytes"));
  }
  void* data = TakeMemory(bytes);
  if (data == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", bytes, " bytes"));
  }
  return std::shared_ptr<Buffer>(
      new Buffer(static_cast<std::byte*>(data), bytes, nullptr, MemorySpace::kHost));
}

std::shared_ptr<Buffer> Buffer::Wrap(std::byte* data, size_t bytes,
                                     std::shared_ptr<const void> owner, MemorySpace space) {
  // Without an owner the memory outlives the process: a sentinel keeps the destructor away from it.
  static const int kUnowned = 0;
  if (owner == nullptr) owner = std::shared_ptr<const void>(&kUnowned, [](const void*) {});
  return std::shared_ptr<Buffer>(new Buffer(data, bytes, std::move(owner), space));
}

Buffer::~Buffer() {
  if (owner_ == nullptr) ReturnMemory(data_, bytes_);
}

std::string ShapeText(const Shape& shape) {
  return shape.empty() ? "scalar" : absl::StrJoin(shape, "x");
}

absl::StatusOr<int64_t> CheckedElementCount(const Shape& shape, DType dtype,
                                            std::string_view field) {
  if (shape.size() > kRankMax) {
    return Refuse(field, absl::StrCat("of rank ", shape.size()),
                  absl::StrCat("its rank must be at most ", kRankMax));
  }
  // Zero dims are looked at last, so that {0, 2^62, 2^62} overflows as {2^62, 2^62} does.
  int64_t count = 1;
  bool is_empty = false;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] < 0) {
      return Refuse(absl::StrCat(std::string(field), "[", i, "]"), absl::StrCat(shape[i]),
                    "dims must not be negative");
    }
    if (shape[i] == 0) is_empty = true;
    if (shape[i] > 1 && __builtin_mul_overflow(count, shape[i], &count)) {
      return Refuse(
          field, ShapeText(shape),
          absl::StrCat("the product of its dims must fit int64; it overflows at dim ", i));
    }
  }
  int64_t bytes;
  if (__builtin_mul_overflow(count, int64_t{DTypeBytes(dtype)}, &bytes)) {
    return Refuse(field, absl::StrCat(ShapeText(shape), " of ", std::string(DTypeName(dtype))),
                  "the size in bytes must fit int64");
  }
  return is_empty ? 0 : count;
}

absl::StatusOr<Tensor> Tensor::Allocate(DType dtype, Shape shape) {
  QG_ASSIGN_OR_RETURN(const int64_t count, CheckedElementCount(shape, dtype, "shape"));
  Tensor tensor;
  QG_ASSIGN_OR_RETURN(tensor.buffer_,
                      Buffer::Allocate(static_cast<size_t>(count) * DTypeBytes(dtype)));
  tensor.dtype_ = dtype;
  tensor.shape_ = std::move(shape);
  tensor.element_count_ = count;
  return tensor;
}

absl::StatusOr<Tensor> Tensor::View(DType dtype, Shape shape, std::shared_ptr<Buffer> buffer,
                                    size_t offset) {
  QG_ASSIGN_OR_RETURN(const int64_t count, CheckedElementCount(shape, dtype, "shape"));
  const size_t bytes = static_cast<size_t>(count) * DTypeBytes(dtype);
  if (offset > buffer->size() || bytes > buffer->size() - offset) {
    return Refuse("offset", absl::StrCat(offset),
                  absl::StrCat(TypeText(dtype, shape), " takes ", bytes,
                               " bytes from there, past the end of a buffer of ", buffer->size()));
  }
  Tensor tensor;
  tensor.dtype_ = dtype;
  tensor.shape_ = std::move(shape);
  tensor.element_count_ = count;
  tensor.buffer_ = std::move(buffer);
  tensor.offset_ = offset;
  return tensor;
}

absl::StatusOr<Tensor> Tensor::FromBytes(DType dtype, Shape shape,
                                         std::span<const std::byte> bytes) {
  QG_ASSIGN_OR_RETURN(const int64_t count, CheckedElementCount(shape, dtype, "shape"));
  const size_t expected = static_cast<size_t>(count) * DTypeBytes(dtype);
  if (bytes.size() != expected) {
    return Refuse("bytes", absl::StrCat(bytes.size()),
                  absl::StrCat(TypeText(dtype, shape), " takes ", expected));
  }
  QG_ASSIGN_OR_RETURN(Tensor tensor, Allocate(dtype, std::move(shape)));
  if (!bytes.empty()) std::memcpy(tensor.data(), bytes.data(), bytes.size());
  return tensor;
}

absl::StatusOr<Tensor> Tensor::FromScalar(float value) {
  QG_ASSIGN_OR_RETURN(Tensor tensor, Allocate(DType::kF32, {1}));
  *tensor.as<float>() = value;
  return tensor;
}

int64_t Tensor::rows() const {
  int64_t rows = 1;
  for (int i = 0; i + 1 < rank(); ++i) rows *= shape_[i];
  return rows;
}

int64_t Tensor::columns() const { return shape_.empty() ? 1 : shape_.back(); }

absl::StatusOr<Tensor> Tensor::Reinterpret(DType dtype, Shape shape) const {
  QG_ASSIGN_OR_RETURN(const int64_t count, CheckedElementCount(shape, dtype, "shape"));
  const size_t bytes = static_cast<size_t>(count) * DTypeBytes(dtype);
  if (bytes != byte_size()) {
    return Refuse(
        "tensor", absl::StrCat(TensorText(*this), " (", byte_size(), " bytes)"),
        absl::StrCat("cannot be read as ", TypeText(dtype, shape), " (", bytes, " bytes)"));
  }
  return View(dtype, std::move(shape), buffer_, offset_);
}

absl::StatusOr<Tensor> Tensor::RowRange(int64_t begin, int64_t count) const {
  if (shape_.empty() || begin < 0 || count < 0 || begin > shape_[0] - count) {
    return Refuse("rows", absl::StrCat(count, " from ", begin),
                  absl::StrCat("must lie within the first dim of ", TensorText(*this)));
  }
  Shape shape = shape_;
  shape[0] = count;
  const size_t row_bytes = shape_[0] == 0 ? 0 : byte_size() / static_cast<size_t>(shape_[0]);
  return View(dtype_, std::move(shape), buffer_, offset_ + static_cast<size_t>(begin) * row_bytes);
}

bool HaveSameBytes(const Tensor& a, const Tensor& b) {
  const std::span<const std::byte> x = a.bytes(), y = b.bytes();
  return x.size() == y.size() && (x.empty() || std::memcmp(x.data(), y.data(), x.size()) == 0);
}

std::string TensorText(const Tensor& tensor) {
  if (!tensor.has_value()) return "absent";
  return TypeText(tensor.dtype(), tensor.shape());
}

}  // namespace quantgate
