// What engines refuse of one another's tensors and moments. Private to kernels/engine.
#pragma once

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// What Engine::Copy refuses.
absl::Status CheckCopy(const Tensor& source, const Tensor& to, int64_t offset);

/// What an Engine::HostRead refuses: other than all bytes of the tensor.
absl::Status CheckRead(const Tensor& tensor, std::span<const std::byte> bytes);

/// What Engine::WaitFor says of a moment that is not of its own kind of engine.
absl::Status OtherKindOfMoment();

}  // namespace quantgate
