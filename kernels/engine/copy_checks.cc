#include "kernels/engine/copy_checks.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"

namespace quantgate {

absl::Status CheckCopy(const Tensor& source, const Tensor& to, int64_t offset) {
  if (!source.has_value()) return RefuseAbsent("copy.source", "it must be given");
  if (!to.has_value()) return RefuseAbsent("copy.to", "it must be given");
  const auto bytes = static_cast<int64_t>(source.byte_size());
  const auto room = static_cast<int64_t>(to.byte_size());
  if (offset >= 0 && offset <= room && bytes <= room - offset) return absl::OkStatus();
  return Refuse("copy.source",
                absl::StrCat(bytes, " bytes of ", TensorText(source), " at byte ", offset),
                absl::StrCat("must lie within the ", room, " bytes of ", TensorText(to)));
}

absl::Status CheckRead(const Tensor& tensor, std::span<const std::byte> bytes) {
  if (bytes.size() == tensor.byte_size()) return absl::OkStatus();
  return Refuse("bytes", absl::StrCat(bytes.size()),
                absl::StrCat(TensorText(tensor), " has ", tensor.byte_size()));
}

absl::Status OtherKindOfMoment() {
  return Refuse("moment", "of another kind of engine", "must be of this one's");
}

}  // namespace quantgate
