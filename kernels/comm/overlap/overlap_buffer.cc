#include "kernels/comm/overlap/overlap_buffer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

/// Alignment of parts: suits 16-byte loads and copy engines, and is that of a device's allocations.
constexpr int64_t kPartAlignment = 256;

absl::StatusOr<int64_t> BytesOf(const BufferPart& part) {
  QG_ASSIGN_OR_RETURN(const int64_t count,
                      CheckedElementCount(part.shape, part.dtype, "buffer.shape"));
  return count * static_cast<int64_t>(DTypeBytes(part.dtype));
}

int64_t RoundedUp(int64_t bytes) {
  return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

}  // namespace

std::string_view BufferStateName(BufferState state) {
  switch (state) {
    case BufferState::kFree:
      return "FREE";
    case BufferState::kFilled:
      return "FILLED";
    case BufferState::kInFlight:
      return "IN_FLIGHT";
    case BufferState::kReadable:
      return "READABLE";
  }
  return "unknown";
}

absl::StatusOr<std::vector<Tensor>> BufferView::Read() const {
  if (buffer_ == nullptr) return tensors_;
  const std::lock_guard<std::mutex> lock(buffer_->mutex_);
  QG_RETURN_IF_ERROR(buffer_->CheckView(*this));
  return buffer_->parts_;
}

absl::Status BufferView::Release() {
  if (buffer_ == nullptr) return absl::OkStatus();
  const std::lock_guard<std::mutex> lock(buffer_->mutex_);
  QG_RETURN_IF_ERROR(buffer_->CheckView(*this));
  return buffer_->Move(BufferState::kReadable, BufferState::kFree);
}

absl::StatusOr<std::vector<Tensor>> BufferView::Take() {
  if (buffer_ == nullptr) return std::exchange(tensors_, {});
  const std::lock_guard<std::mutex> lock(buffer_->mutex_);
  QG_RETURN_IF_ERROR(buffer_->CheckView(*this));
  QG_RETURN_IF_ERROR(buffer_->Move(BufferState::kReadable, BufferState::kFree));
  buffer_->memory_ = Tensor();
  return std::exchange(buffer_->parts_, {});
}

absl::Status OverlapBuffer::CheckView(const BufferView& view) const {
  if (view.epoch_ != epoch_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "overlap buffer ", name_, ": the view of epoch ", view.epoch_, ", filled by ", view.owner_,
        ", is stale: the buffer is ", std::string(BufferStateName(state_)), " under epoch ", epoch_,
        ", filled by ", owner_));
  }
  if (state_ != BufferState::kReadable) {
    return absl::FailedPreconditionError(
        absl::StrCat("overlap buffer ", name_, ": the view of epoch ", view.epoch_, ", filled by ",
                     view.owner_, ", is of a buffer that is ", std::string(BufferStateName(state_)),
                     ": it must be READABLE"));
  }
  return absl::OkStatus();
}

absl::Status OverlapBuffer::Move(BufferState from, BufferState to) {
  if (state_ != from) {
    return absl::FailedPreconditionError(absl::StrCat(
        "overlap buffer ", name_, " is ", std::string(BufferStateName(state_)), " under epoch ",
        epoch_, ", filled by ", owner_, ": to be ", std::string(BufferStateName(to)),
        " it must be ", std::string(BufferStateName(from))));
  }
  state_ = to;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Tensor>> OverlapBuffer::Fill(const std::string& owner,
                                                        const std::vector<BufferPart>& parts) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (state_ != BufferState::kFree) {
    return absl::FailedPreconditionError(
        absl::StrCat("overlap buffer ", name_, ": ", owner, " cannot fill it: it is ",
                     std::string(BufferStateName(state_)), " under epoch ", epoch_, ", filled by ",
                     owner_, ", which has not released it"));
  }
  int64_t bytes = 0;
  for (const BufferPart& part : parts) {
    QG_ASSIGN_OR_RETURN(const int64_t part_bytes, BytesOf(part));
    bytes += RoundedUp(part_bytes);
  }
  if (!memory_.has_value() || memory_.element_count() < bytes) {
    QG_ASSIGN_OR_RETURN(memory_, engine_.Allocate(DType::kU8, {bytes}));
  }
  std::vector<Tensor> filled;
  int64_t begin = 0;
  for (const BufferPart& part : parts) {
    QG_ASSIGN_OR_RETURN(const int64_t part_bytes, BytesOf(part));
    QG_ASSIGN_OR_RETURN(const Tensor piece, memory_.RowRange(begin, part_bytes));
    QG_ASSIGN_OR_RETURN(filled.emplace_back(), piece.Reinterpret(part.dtype, part.shape));
    begin += RoundedUp(part_bytes);
  }
  QG_RETURN_IF_ERROR(Move(BufferState::kFree, BufferState::kFilled));
  owner_ = owner;
  ++epoch_;
  parts_ = std::move(filled);
  return parts_;
}

absl::Status OverlapBuffer::Start() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return Move(BufferState::kFilled, BufferState::kInFlight);
}

absl::StatusOr<BufferView> OverlapBuffer::Finish() {
  const std::lock_guard<std::mutex> lock(mutex_);
  QG_RETURN_IF_ERROR(Move(BufferState::kInFlight, BufferState::kReadable));
  return BufferView(shared_from_this(), owner_, epoch_);
}

BufferState OverlapBuffer::state() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return state_;
}

std::shared_ptr<OverlapBuffer> OverlapBuffers::BufferFor(const std::string& name,
                                                         const std::string& mode) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<OverlapBuffer>& buffer = buffers_[{name, mode}];
  if (buffer == nullptr) {
    buffer = std::make_shared<OverlapBuffer>(absl::StrCat(name, " (", mode, ")"), engine_);
  }
  return buffer;
}

}  // namespace quantgate
