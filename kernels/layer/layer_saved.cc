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

void AddOperand(const KeptOperand& kept, std::vector<HeldOperand>& operands) {
  if (kept.mark == nullptr) return;
  operands.push_back({kept.mark->name, kept.Format(), kept.SavedTensors()});
}

/// Visits every operand, kept or not, in the order of the operations.
template <typename Programs, typename Visitor>
void VisitOperands(Programs& programs, Visitor visit) {
  for (auto& program : programs) {
    for (auto& operation : program) {
      for (auto& kept : operation.operands) visit(kept);
      if (!operation.linear.has_value()) continue;
      visit(operation.linear->x);
      visit(operation.linear->weight);
      visit(operation.linear->weight_workspace);
    }
  }
}

}  // namespace

std::vector<SavedPart> ForwardSaved::parts() {
  std::vector<SavedPart> parts;
  VisitOperands(operations, [&](KeptOperand& kept) { AddParts(kept, parts); });
  return parts;
}

std::vector<HeldOperand> ForwardSaved::operands() const {
  std::vector<HeldOperand> held;
  VisitOperands(operations, [&](const KeptOperand& kept) { AddOperand(kept, held); });
  return held;
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

std::vector<HeldOperand> DeferredSaved::operands() const {
  std::vector<HeldOperand> held;
  for (const LinearWgrad& wgrad : wgrads) {
    AddOperand(wgrad.x, held);
    AddOperand(wgrad.grad_output, held);
  }
  return held;
}

int64_t DeferredSaved::bytes() const { return BytesOf(DeferredSaved(*this).parts()); }

}  // namespace quantgate
