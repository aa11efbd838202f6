// NCCL, loaded at run time: the program does not link it. Only the files of kernels/comm/nccl
// include nccl.h.
#pragma once

#include <nccl.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quantgate {

/// The functions of NCCL that are used, by their names without "nccl".
struct NcclFunctions {
  decltype(&::ncclGetUniqueId) GetUniqueId = nullptr;
  decltype(&::ncclCommInitRankConfig) CommInitRankConfig = nullptr;
  decltype(&::ncclCommFinalize) CommFinalize = nullptr;
  decltype(&::ncclCommDestroy) CommDestroy = nullptr;
  decltype(&::ncclCommAbort) CommAbort = nullptr;
  decltype(&::ncclCommGetAsyncError) CommGetAsyncError = nullptr;
  decltype(&::ncclGetErrorString) GetErrorString = nullptr;
  decltype(&::ncclGetLastError) GetLastError = nullptr;
  decltype(&::ncclGroupStart) GroupStart = nullptr;
  decltype(&::ncclGroupEnd) GroupEnd = nullptr;
  decltype(&::ncclAllGather) AllGather = nullptr;
  decltype(&::ncclBroadcast) Broadcast = nullptr;
  decltype(&::ncclAllReduce) AllReduce = nullptr;
  decltype(&::ncclReduce) Reduce = nullptr;
  decltype(&::ncclReduceScatter) ReduceScatter = nullptr;
  decltype(&::ncclSend) Send = nullptr;
  decltype(&::ncclRecv) Recv = nullptr;
};

class NcclLibrary {
 public:
  /// Loads libnccl.so.2 once, after setting NCCL_NVLS_ENABLE=0. NVLink multicast stays off, since
  /// its sums have another order and it can take a host's devices out of service.
  /// FAILED_PRECONDITION where the environment demands multicast, or without the library.
  static absl::StatusOr<const NcclLibrary*> Load();

  const NcclFunctions& call() const { return functions_; }
  /// "2.28.9".
  const std::string& version() const { return version_; }
  /// OK for ncclSuccess; for any other result of `call` an error with NCCL's words.
  absl::Status StatusOf(ncclResult_t result, std::string_view call) const;

 private:
  static absl::StatusOr<const NcclLibrary*> LoadOnce();
  NcclFunctions functions_;
  std::string version_;
};

/// Sets NCCL_NVLS_ENABLE=0 where the environment does not mention it. FAILED_PRECONDITION naming
/// the variable, the value and the rule where the environment asks for NVLink multicast.
absl::Status KeepMulticastOff();

/// "NCCL_NVLS_ENABLE=0 NCCL_PROTO=Simple": the environment's variables that NCCL reads, by name.
std::string NcclEnvironment();

}  // namespace quantgate
