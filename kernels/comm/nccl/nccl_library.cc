#include "kernels/comm/nccl/nccl_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/engine/device_readings.h"

namespace quantgate {
namespace {

constexpr char kMulticast[] = "NCCL_NVLS_ENABLE";
constexpr char kAlgorithms[] = "NCCL_ALGO";

std::string ValueOf(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

/// Whether a list like "ring,nvls" asks for multicast; "^nvls" excludes it.
bool AsksForNvls(const std::string& algorithms) {
  const std::string lower = absl::AsciiStrToLower(algorithms);
  return !absl::StartsWith(lower, "^") && absl::StrContains(lower, "nvls");
}

template <class Function>
absl::Status Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("NCCL: ", kNcclLibrary, " has no ", name));
}

absl::Status FindAll(void* library, NcclFunctions& functions) {
#define QG_FIND(name) QG_RETURN_IF_ERROR(Find(library, "nccl" #name, functions.name))
  QG_FIND(GetUniqueId);
  QG_FIND(CommInitRankConfig);
  QG_FIND(CommFinalize);
  QG_FIND(CommDestroy);
  QG_FIND(CommAbort);
  QG_FIND(CommGetAsyncError);
  QG_FIND(GetErrorString);
  QG_FIND(GetLastError);
  QG_FIND(GroupStart);
  QG_FIND(GroupEnd);
  QG_FIND(AllGather);
  QG_FIND(Broadcast);
  QG_FIND(AllReduce);
  QG_FIND(Reduce);
  QG_FIND(ReduceScatter);
  QG_FIND(Send);
  QG_FIND(Recv);
#undef QG_FIND
  return absl::OkStatus();
}

}  // namespace

absl::Status KeepMulticastOff() {
  const std::string multicast = ValueOf(kMulticast);
  if (multicast.empty()) {
    setenv(kMulticast, "0", 1);
  } else if (multicast != "0") {
    return RefusePrecondition(kMulticast, multicast,
                              "must be 0: collectives run without NVLink multicast");
  }
  const std::string algorithms = ValueOf(kAlgorithms);
  if (!AsksForNvls(algorithms)) return absl::OkStatus();
  return RefusePrecondition(kAlgorithms, algorithms,
                            "must not name NVLS: collectives run without NVLink multicast");
}

std::string NcclEnvironment() {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (absl::StartsWith(*variable, "NCCL_")) variables.push_back(*variable);
  }
  std::sort(variables.begin(), variables.end());
  return absl::StrJoin(variables, " ");
}

absl::StatusOr<const NcclLibrary*> NcclLibrary::LoadOnce() {
  void* library = dlopen(kNcclLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* error = dlerror();
    return RefusePrecondition(
        "backend", "nccl",
        absl::StrCat(
            error == nullptr ? kNcclLibrary : error,
            "; NCCL must be installed where the CUDA engine's module looks for libraries"));
  }
  auto loaded = std::make_unique<NcclLibrary>();
  QG_RETURN_IF_ERROR(FindAll(library, loaded->functions_));
  loaded->version_ = NcclVersion();
  return loaded.release();  // As long as the process, as NCCL itself.
}

absl::StatusOr<const NcclLibrary*> NcclLibrary::Load() {
  // Each time: NCCL reads some of its variables at each communicator.
  QG_RETURN_IF_ERROR(KeepMulticastOff());
  static const auto& library = *new absl::StatusOr<const NcclLibrary*>(LoadOnce());
  return library;
}

absl::Status NcclLibrary::StatusOf(ncclResult_t result, std::string_view call) const {
  if (result == ncclSuccess) return absl::OkStatus();
  const char* last = functions_.GetLastError(nullptr);
  const std::string message = absl::StrCat(
      "NCCL ", version_, ": ", functions_.GetErrorString(result), " from ", std::string(call),
      last == nullptr || *last == 0 ? "" : ": ", last == nullptr ? "" : last);
  // After a failure of CUDA or of the other side of a link no result can be trusted.
  const bool is_lost = result == ncclUnhandledCudaError || result == ncclRemoteError;
  return is_lost ? absl::DataLossError(message) : absl::InternalError(message);
}

}  // namespace quantgate
