// Tensors of a plan: outlines (dtype and shape, no memory) while the plan is checked, then the
// tensors themselves.
#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// The tensor behind a slot of a plan, by the name that its errors have: "tensor", "a.scale_inv".
using SlotLoader = absl::FunctionRef<absl::StatusOr<Tensor>(const std::string& slot)>;

/// Puts the tensor in place of its outline, read as the outline's dtype and shape; does nothing for
/// a slot without value. What `load` refuses, or INTERNAL for a tensor of another size.
absl::Status LoadSlot(const std::string& slot, SlotLoader load, Tensor& tensor);

}  // namespace quantgate
