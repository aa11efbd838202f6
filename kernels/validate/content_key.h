// What identifies the contents of several tensors.
#pragma once

#include <initializer_list>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"

namespace quantgate {

/// " FINGERPRINT" of each, " -" of an absent one. One wait for all of them.
absl::StatusOr<std::string> ContentKey(Engine& engine, std::initializer_list<const Tensor*> tensors,
                                       const Cancellation* cancellation);

}  // namespace quantgate
