// OverlapBuffer: memory of one rank into which an overlapped call gathers. Layers of one kind share
// a buffer, so its content lasts until the next of them fills it. Each filling has an owner and an
// epoch, and reading through a view of an earlier epoch is an error instead of giving another
// layer's data. What must outlive the GEMM is copied or taken out (docs/ranks.md section 10.3).
//
//     FREE --Fill--> FILLED(owner, epoch) --Start--> IN_FLIGHT --Finish--> READABLE(epoch)
//      ^------------------------------------------Release-----------------------'
//
// Thread-safe. A call that fails leaves its buffer IN_FLIGHT for good, since peers may still write
// to it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"

namespace quantgate {

enum class BufferState { kFree, kFilled, kInFlight, kReadable };
std::string_view BufferStateName(BufferState state);  ///< "FREE", "FILLED", ...

class OverlapBuffer;

/// The tensors of one filling of a buffer, readable until the buffer is released.
class BufferView {
 public:
  BufferView() = default;
  /// A view of tensors that are in no buffer and never become stale.
  explicit BufferView(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {}

  /// The parts in the order of Fill, for operations that are started before Release.
  /// FAILED_PRECONDITION naming the buffer, both owners and both epochs where the view is stale,
  /// and the state where the buffer is not READABLE.
  absl::StatusOr<std::vector<Tensor>> Read() const;
  /// Gives the buffer back: READABLE to FREE. FAILED_PRECONDITION as Read.
  absl::Status Release();
  /// As Read and Release, but the caller keeps the memory of the parts, and the next filling gets
  /// other memory: parts outlast the buffer without a copy.
  absl::StatusOr<std::vector<Tensor>> Take();

 private:
  friend class OverlapBuffer;
  BufferView(std::shared_ptr<OverlapBuffer> buffer, std::string owner, uint64_t epoch)
      : buffer_(std::move(buffer)), owner_(std::move(owner)), epoch_(epoch) {}

  std::vector<Tensor> tensors_;
  std::shared_ptr<OverlapBuffer> buffer_;
  std::string owner_;
  uint64_t epoch_ = 0;
};

struct BufferPart {
  DType dtype;
  Shape shape;
};

class OverlapBuffer : public std::enable_shared_from_this<OverlapBuffer> {
 public:
  OverlapBuffer(std::string name, Engine& engine) : name_(std::move(name)), engine_(engine) {}

  /// FREE to FILLED: memory for `parts`, the same as the last time where it suffices, under a new
  /// epoch. FAILED_PRECONDITION naming the buffer, both owners and the epoch where it is not FREE.
  absl::StatusOr<std::vector<Tensor>> Fill(const std::string& owner,
                                           const std::vector<BufferPart>& parts);
  absl::Status Start();                 ///< FILLED to IN_FLIGHT.
  absl::StatusOr<BufferView> Finish();  ///< IN_FLIGHT to READABLE.

  const std::string& name() const { return name_; }  ///< "fc1_fprop (fp8_tensor)".
  BufferState state() const;

 private:
  friend class BufferView;
  absl::Status CheckView(const BufferView& view) const;  ///< mutex_ is held.
  absl::Status Move(BufferState from, BufferState to);   ///< mutex_ is held.

  const std::string name_;
  Engine& engine_;
  mutable std::mutex mutex_;
  BufferState state_ = BufferState::kFree;
  std::string owner_;
  uint64_t epoch_ = 0;
  Tensor memory_;  ///< u8, as large as the largest filling so far.
  std::vector<Tensor> parts_;
};

/// The buffers of one rank, by name ("fc1_fprop") and quantization mode ("fp8_tensor").
/// Thread-safe.
class OverlapBuffers {
 public:
  explicit OverlapBuffers(Engine& engine) : engine_(engine) {}

  /// The buffer of that name and mode, made at the first call.
  std::shared_ptr<OverlapBuffer> BufferFor(const std::string& name, const std::string& mode);

 private:
  Engine& engine_;
  std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<OverlapBuffer>> buffers_;
};

}  // namespace quantgate
