#include "kernels/comm/parallel_spec.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/parse_name.h"

namespace quantgate {
namespace {

constexpr std::string_view kBackendNames[] = {"local", "nccl"};

}  // namespace

std::string_view CollectiveBackendName(CollectiveBackend backend) {
  return kBackendNames[static_cast<size_t>(backend)];
}

absl::StatusOr<CollectiveBackend> ParseCollectiveBackend(std::string_view name) {
  return ParseName<CollectiveBackend>(kBackendNames, "backend", name);
}

std::string ParallelSpec::Label() const {
  std::string text = absl::StrCat("tp", tensor_parallel);
  if (expert_parallel != 1) {
    text = tensor_parallel == 1 ? "" : text + " ";
    absl::StrAppend(&text, "ep", expert_parallel);
  }
  if (data_parallel != 1) absl::StrAppend(&text, " dp", data_parallel);
  if (fully_sharded) absl::StrAppend(&text, reshard_after_forward ? " fsdp" : " fsdp:keep");
  if (distributed_optimizer) absl::StrAppend(&text, " distopt");
  if (sequence_parallel) absl::StrAppend(&text, " sp");
  if (profile != ReductionProfile{}) absl::StrAppend(&text, " ", ReductionProfileName(profile));
  if (backend != CollectiveBackend::kLocal) {
    absl::StrAppend(&text, " ", std::string(CollectiveBackendName(backend)));
  }
  if (overlap.has_value()) absl::StrAppend(&text, " overlap:", overlap->Text());
  if (const std::string groups = AmaxGroupsText(amax_groups); !groups.empty()) {
    absl::StrAppend(&text, " amax:", groups);
  }
  return text;
}

}  // namespace quantgate
