#include "kernels/layer/layer_saved.h"

#include "absl/strings/str_cat.h"

namespace quantgate {
namespace {

void AddParts(KeptOperand& kept, std::vector<SavedPart>& parts) {
  if (kept.mark == nullptr) return;
  const auto add = [&](const std::string& what, Tensor& tensor) {
    if (tensor.has_value()) parts.push_back({absl::StrCat(kept.mark->name, ".", what), &tensor});
  };
  add("original", kept.original);
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    std::optional<QuantizedCopy>& copy = kept.codes.copy(usage);
    if (!copy.has_value()) continue;
    const std::string name(UsageName(usage));
    add(name + "_data", copy->data);
    add(name + "_scale_inv", copy->scale_inv);
    add("amax_" + name, copy->amax);
  }
}

int64_t BytesOf(const std::vector<SavedPart>& parts) {
  int64_t bytes = 0;
  for (const SavedPart& part : parts) bytes += static_cast<int64_t>(part.tensor->byte_size());
  return bytes;
}

}  // namespace

std::vector<SavedPart> ForwardSaved::parts() {
  std::vector<SavedPart> parts;
  for (std::vector<OperationSaved>& program : operations) {
    for (OperationSaved& operation : program) {
      for (KeptOperand& kept : operation.operands) AddParts(kept, parts);
      if (!operation.linear.has_value()) continue;
      AddParts(operation.linear->x, parts);
      AddParts(operation.linear->weight, parts);
      AddParts(operation.linear->weight_workspace, parts);
    }
  }
  return parts;
}

int64_t ForwardSaved::bytes() const { return BytesOf(ForwardSaved(*this).parts()); }

std::vector<SavedPart> DeferredSaved::parts() {
  std::vector<SavedPart> parts;
  for (LinearWgrad& wgrad : wgrads) {
    AddParts(wgrad.x, parts);
    AddParts(wgrad.grad_output, parts);
  }
  return parts;
}

int64_t DeferredSaved::bytes() const { return BytesOf(DeferredSaved(*this).parts()); }

}  // namespace quantgate
