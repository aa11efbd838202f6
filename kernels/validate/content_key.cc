#include "kernels/validate/content_key.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace quantgate {

absl::Status ContentKeys::Prepare(std::span<const Tensor> tensors) {
  QG_RETURN_IF_ERROR(StartPreparing(tensors));
  return FinishPreparing();
}

absl::Status ContentKeys::StartPreparing(std::span<const Tensor> tensors) {
  known_.clear();
  starting_.clear();
  std::copy_if(tensors.begin(), tensors.end(), std::back_inserter(starting_),
               [](const Tensor& tensor) { return tensor.has_value(); });
  QG_ASSIGN_OR_RETURN(started_, engine_.StartFingerprints(starting_, cancellation_));
  return absl::OkStatus();
}

absl::Status ContentKeys::FinishPreparing() {
  QG_ASSIGN_OR_RETURN(const std::vector<Fingerprint> fingerprints,
                      engine_.ReadFingerprints(started_));
  for (size_t i = 0; i < starting_.size(); ++i) {
    known_.try_emplace(PlaceOf(starting_[i]), starting_[i], fingerprints[i]);
  }
  starting_.clear();
  started_.clear();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Fingerprint>> ContentKeys::FingerprintsOf(
    std::span<const Tensor> tensors) {
  std::vector<Fingerprint> fingerprints(tensors.size());
  std::vector<Tensor> unknown;
  std::vector<size_t> places;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto found = known_.find(PlaceOf(tensors[i]));
    if (found != known_.end()) {
      fingerprints[i] = found->second.second;
      continue;
    }
    unknown.push_back(tensors[i]);
    places.push_back(i);
  }
  if (unknown.empty()) return fingerprints;
  QG_ASSIGN_OR_RETURN(const std::vector<Fingerprint> computed,
                      engine_.FingerprintsOf(unknown, cancellation_));
  for (size_t i = 0; i < places.size(); ++i) fingerprints[places[i]] = computed[i];
  return fingerprints;
}

absl::StatusOr<Fingerprint> ContentKeys::FingerprintOf(const Tensor& tensor) {
  QG_ASSIGN_OR_RETURN(const std::vector<Fingerprint> fingerprints, FingerprintsOf({&tensor, 1}));
  return fingerprints.front();
}

absl::StatusOr<std::string> ContentKeys::KeyOf(std::initializer_list<const Tensor*> tensors) {
  std::vector<Tensor> held;
  for (const Tensor* tensor : tensors) {
    if (tensor->has_value()) held.push_back(*tensor);
  }
  QG_ASSIGN_OR_RETURN(const std::vector<Fingerprint> fingerprints, FingerprintsOf(held));
  std::string key;
  auto next = fingerprints.begin();
  for (const Tensor* tensor : tensors) {
    absl::StrAppend(&key, " ", tensor->has_value() ? (next++)->Hex() : "-");
  }
  return key;
}

}  // namespace quantgate
