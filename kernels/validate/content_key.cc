#include "kernels/validate/content_key.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace quantgate {

absl::StatusOr<std::string> ContentKey(Engine& engine, std::initializer_list<const Tensor*> tensors,
                                       const Cancellation* cancellation) {
  std::vector<Tensor> held;
  for (const Tensor* tensor : tensors) {
    if (tensor->has_value()) held.push_back(*tensor);
  }
  QG_ASSIGN_OR_RETURN(const std::vector<Fingerprint> fingerprints,
                      engine.FingerprintsOf(held, cancellation));
  std::string key;
  auto next = fingerprints.begin();
  for (const Tensor* tensor : tensors) {
    absl::StrAppend(&key, " ", tensor->has_value() ? (next++)->Hex() : "-");
  }
  return key;
}

}  // namespace quantgate
