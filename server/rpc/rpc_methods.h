// Every RPC of the service, for metrics and admission.
#pragma once

#include <span>

#include "server/metrics.h"

namespace quantgate {

enum class Rpc : int {
  kGetCapabilities,
  kListRecipes,
  kListArithmetics,
  kCheckHardware,
  kFindMissing,
  kWrite,
  kQueryWrite,
  kRead,
  kPutTensor,
  kGenerateTensor,
  kDescribeTensor,
  kListTensors,
  kQuantize,
  kDequantize,
  kGemm,
  kCompare,
  kExplain,
  kExecute,
  kWaitRun,
  kGetRun,
  kListRuns,
  kCancelRun,
  kListScenarios,
  kRunScenarios,
  kOpenSession,
  kSessionStep,
  kGetSession,
  kListSessions,
  kCheckpoint,
  kRestoreSession,
  kCloseSession,
};

/// Indexed by Rpc.
std::span<const RpcMethod> AllRpcMethods();

}  // namespace quantgate
