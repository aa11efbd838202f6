#include "kernels/validate/run/content_key.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace quantgate {

absl::Status ContentKeys::Start(std::span<const Tensor> tensors, Memory memory) {
  std::map<Place, Tensor> starting;
  for (const Tensor& tensor : tensors) {
    if (!tensor.has_value() || known_.contains(PlaceOf(tensor))) continue;
    starting.emplace(PlaceOf(tensor), tensor);
  }
  if (starting.empty()) return absl::OkStatus();
  std::vector<Tensor> sources;
  for (const auto& [place, tensor] : starting) sources.push_back(tensor);
  QG_ASSIGN_OR_RETURN(const std::vector<Tensor> started,
                      engine_.StartFingerprints(sources, cancellation_));
  started_.insert(started_.end(), started.begin(), started.end());
  for (const auto& [place, tensor] : starting) {
    known_.emplace(place, Known{tensor, memory, std::nullopt});
    unread_.push_back(place);
  }
  return absl::OkStatus();
}

absl::Status ContentKeys::ReadStarted() {
  if (unread_.empty()) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(const std::vector<Fingerprint> fingerprints,
                      engine_.ReadFingerprints(started_));
  for (size_t i = 0; i < unread_.size(); ++i) {
    known_.at(unread_[i]).fingerprint = fingerprints[i];
  }
  unread_.clear();
  started_.clear();
  return absl::OkStatus();
}

void ContentKeys::Forget() {
  std::vector<Place> unread;
  std::vector<Tensor> started;
  for (size_t i = 0; i < unread_.size(); ++i) {
    if (known_.at(unread_[i]).memory != Memory::kForGood) continue;
    unread.push_back(std::move(unread_[i]));
    started.push_back(std::move(started_[i]));
  }
  unread_ = std::move(unread);
  started_ = std::move(started);
  std::erase_if(known_, [](const auto& one) { return one.second.memory != Memory::kForGood; });
}

absl::StatusOr<std::vector<Fingerprint>> ContentKeys::FingerprintsOf(
    std::span<const Tensor> tensors) {
  std::vector<Fingerprint> fingerprints(tensors.size());
  std::vector<Tensor> unknown;
  std::vector<size_t> places;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto found = known_.find(PlaceOf(tensors[i]));
    if (found != known_.end()) {
      if (!found->second.fingerprint.has_value()) QG_RETURN_IF_ERROR(ReadStarted());
      fingerprints[i] = *found->second.fingerprint;
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

absl::StatusOr<std::string> ContentKeys::KeyOf(std::span<const Tensor* const> tensors) {
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
