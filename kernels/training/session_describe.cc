#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/training/session_state.h"

namespace quantgate {
void VisitHeldTensors(const SessionSpec& spec, SessionState& state, TensorVisitor visit) {
  const auto visit_held = [&](const std::string& name, Tensor& tensor) {
    if (tensor.has_value()) visit(name, tensor);
  };
  VisitTensors(spec, state, visit_held);
  VisitTensorsInFlight(spec, state, visit_held);
}

int64_t BytesOf(const SessionSpec& spec, SessionState& state) {
  // Tensors share buffers: a saved operand is often the parameter itself.
  std::set<std::pair<const std::byte*, size_t>> counted;
  int64_t bytes = 0;
  VisitHeldTensors(spec, state, [&](const std::string&, const Tensor& held) {
    if (!counted.insert({held.data(), held.byte_size()}).second) return;
    bytes += static_cast<int64_t>(held.byte_size());
  });
  return bytes;
}

std::shared_ptr<const SessionState> TrainingSession::Remember() const {
  return std::make_shared<const SessionState>(state_->now);
}

void TrainingSession::GoBack(const std::shared_ptr<const SessionState>& moment) {
  state_->now = *moment;
}

std::function<void()> TrainingSession::WayBack() {
  return [this, moment = Remember()] { GoBack(moment); };
}

int64_t TrainingSession::bytes() const { return BytesOf(state_->spec, state_->now); }

void TrainingSession::LimitBytes(int64_t bytes_max) { state_->bytes_max = bytes_max; }

absl::StatusOr<std::vector<StateTensor>> TrainingSession::Describe(
    const Cancellation* cancellation) {
  SessionState state = state_->now;
  std::vector<StateTensor> tensors;
  std::vector<Tensor> held;
  VisitHeldTensors(state_->spec, state, [&](const std::string& name, Tensor& tensor) {
    tensors.push_back({name, tensor.dtype(), tensor.shape(), {}});
    held.push_back(tensor);
  });
  QG_ASSIGN_OR_RETURN(const std::vector<Fingerprint> fingerprints,
                      state_->engine.FingerprintsOf(held, cancellation));
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].fingerprint = fingerprints[i];
  return tensors;
}

absl::StatusOr<Tensor> TrainingSession::Find(const std::string& name,
                                             const Cancellation* cancellation) {
  SessionState state = state_->now;
  for (size_t i = 0; i < state.layers.size(); ++i) {
    for (const auto& [parameter_name, parameter] : state.layers[i].state.parameters) {
      if (absl::StrCat(state_->spec.layers[i].name, ".", parameter_name) != name) continue;
      if (!parameter.is_quantized()) return parameter.value;
      const QuantizedTensor& quantized = parameter.quantized;
      const Usage usage = quantized.rowwise.has_value() ? Usage::kRowwise : Usage::kColumnwise;
      return state_->engine.Dequantize(quantized, usage, quantized.source_dtype, cancellation);
    }
  }
  Tensor found;
  VisitHeldTensors(state_->spec, state, [&](const std::string& candidate, Tensor& tensor) {
    if (candidate == name) found = tensor;
  });
  if (found.has_value()) return found;
  return StatusOf({.code = absl::StatusCode::kNotFound,
                   .field = "tensor",
                   .value = name,
                   .rule = "the session has none of that name"});
}

}  // namespace quantgate
