// The tensors of a GEMM's description, each put through one function: copies to and from a device.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/gemm.h"

namespace quantgate {

/// `desc` with copy(tensor) (absl::StatusOr<Tensor>) in place of each tensor that it has.
template <typename Copy>
absl::StatusOr<GemmDesc> WithTensors(const GemmDesc& desc, Copy copy) {
  GemmDesc out = desc;
  for (Tensor* tensor : TensorsOf(out)) {
    if (!tensor->has_value()) continue;
    QG_ASSIGN_OR_RETURN(*tensor, copy(static_cast<const Tensor&>(*tensor)));
  }
  return out;
}

}  // namespace quantgate
