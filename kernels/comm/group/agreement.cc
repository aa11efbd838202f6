// ProcessGroup::CheckAgreement: whether all members of a group hold the same value.
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/comm/group/process_group.h"

namespace quantgate {
namespace {

/// The place of the first element whose bytes differ; both are of one dtype and shape.
int64_t FirstDifferingElement(const Tensor& a, const Tensor& b) {
  const size_t bytes = static_cast<size_t>(DTypeBytes(a.dtype()));
  for (int64_t i = 0; i < a.element_count(); ++i) {
    if (std::memcmp(a.data() + i * bytes, b.data() + i * bytes, bytes) != 0) return i;
  }
  return -1;
}

/// "0x3f800000 (1)"; bytes of other types than f32 in hex alone.
std::string ElementText(const Tensor& tensor, int64_t index) {
  const int bytes = DTypeBytes(tensor.dtype());
  std::string hex = "0x";
  for (int i = bytes - 1; i >= 0; --i) {
    absl::StrAppend(
        &hex, absl::Hex(static_cast<uint8_t>(tensor.data()[index * bytes + i]), absl::kZeroPad2));
  }
  if (tensor.dtype() != DType::kF32) return hex;
  return absl::StrCat(hex, " (", tensor.as<float>()[index], ")");
}

absl::Status Difference(const std::string& what, const std::pair<int, std::string>& first,
                        const std::pair<int, std::string>& other, const std::string& where) {
  return absl::FailedPreconditionError(absl::StrCat(what, " differs between ranks", where,
                                                    ": rank ", first.first, " has ", first.second,
                                                    ", rank ", other.first, " has ", other.second));
}

}  // namespace

absl::Status ProcessGroup::CheckAgreement(const std::string& what, const Tensor& value) {
  const auto check = [&]() -> absl::Status {
    if (!value.has_value()) {
      return RefuseAbsent(what, "there is no value to agree on");
    }
    QG_ASSIGN_OR_RETURN(const Tensor on_host, engine_.ToHost(value, environment_.cancellation));
    CallSignature signature{.kind = CallKind::kCheckAgreement, .detail = what};
    Delay(environment_.noise, members()[place_], calls_++, NoisePoint::kBeforePosting);
    QG_ASSIGN_OR_RETURN(
        const Postings postings,
        environment_.transport.Meet(environment_.rendezvous, description_.id, place_,
                                    {std::move(signature), {{on_host}, nullptr}}));
    const Tensor& first = postings->front().contribution.tensors.front();
    for (int member = 1; member < size(); ++member) {
      const Tensor& other = (*postings)[member].contribution.tensors.front();
      if (first.dtype() != other.dtype() || first.shape() != other.shape()) {
        return Difference(what, {members()[0], TensorText(first)},
                          {members()[member], TensorText(other)}, "");
      }
      const int64_t at = FirstDifferingElement(first, other);
      if (at < 0) continue;
      return Difference(what, {members()[0], ElementText(first, at)},
                        {members()[member], ElementText(other, at)},
                        first.element_count() == 1 ? "" : absl::StrCat(" at ", at));
    }
    return absl::OkStatus();
  };
  const absl::Status status = check();
  return status.ok() ? status : Fail(status);
}

}  // namespace quantgate
