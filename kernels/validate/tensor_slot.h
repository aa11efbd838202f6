// Loading the tensors of a plan. A plan has outlines (dtype and shape, no memory) while it is
// checked; then the tensors replace them.
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// Gives the tensor of a slot of a plan. Slots have the names that errors use: "tensor",
/// "a.scale_inv".
using SlotLoader = absl::FunctionRef<absl::StatusOr<Tensor>(const std::string& slot)>;

/// Replaces the outline `tensor` by the loaded tensor, read as the outline's dtype and shape. Does
/// nothing if `tensor` is absent. Errors: those of `load`; INTERNAL for a tensor of another size.
absl::Status LoadSlot(const std::string& slot, SlotLoader load, Tensor& tensor);

}  // namespace quantgate
