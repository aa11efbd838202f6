#include "kernels/validate/tensor_slot.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace quantgate {

absl::Status LoadSlot(const std::string& slot, SlotLoader load, Tensor& tensor) {
  if (!tensor.has_value()) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(const Tensor loaded, load(slot));
  absl::StatusOr<Tensor> read = loaded.Reinterpret(tensor.dtype(), tensor.shape());
  if (!read.ok()) {
    return absl::InternalError(
        absl::StrCat(slot, " was planned as ", TensorText(tensor), " and is ", TensorText(loaded)));
  }
  tensor = *std::move(read);
  return absl::OkStatus();
}

}  // namespace quantgate
