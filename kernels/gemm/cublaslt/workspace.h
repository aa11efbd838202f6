// Working memory and errors of GEMM threads.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "kernels/base/round_up.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// Typed memory from Buffer::Allocate, which gives a status where memory is short.
template <typename T>
class Workspace {
 public:
  absl::Status Resize(int64_t count) {
    QG_ASSIGN_OR_RETURN(buffer_, Buffer::Allocate(static_cast<size_t>(count) * sizeof(T)));
    return absl::OkStatus();
  }
  T* data() const { return reinterpret_cast<T*>(buffer_->data()); }

 private:
  std::shared_ptr<Buffer> buffer_;
};

/// The first error of several threads.
class FirstError {
 public:
  void Record(absl::Status status) {
    if (status.ok()) return;
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = std::move(status);
  }
  absl::Status status() const { return status_; }

 private:
  std::mutex mutex_;
  absl::Status status_;
};

}  // namespace quantgate
