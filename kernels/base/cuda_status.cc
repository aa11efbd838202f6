#include "kernels/base/cuda_status.h"

#include <cstring>
#include <mutex>
#include <string>

#include "absl/strings/str_cat.h"

namespace quantgate {
namespace {

std::mutex health_mutex;
absl::Status& Health() {
  static absl::Status& health = *new absl::Status;
  return health;
}

absl::StatusCode CodeOf(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::StatusCode::kResourceExhausted;
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorNoKernelImageForDevice:
      return absl::StatusCode::kFailedPrecondition;
    default:
      return IsStickyCudaError(error) ? absl::StatusCode::kDataLoss : absl::StatusCode::kInternal;
  }
}

}  // namespace

bool IsStickyCudaError(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorContextIsDestroyed:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

absl::Status CudaStatus(cudaError_t error, const char* call, const char* file, int line) {
  if (error == cudaSuccess) return absl::OkStatus();
  const char* slash = std::strrchr(file, '/');
  absl::Status status(CodeOf(error), absl::StrCat("CUDA: ", cudaGetErrorString(error), " (",
                                                  cudaGetErrorName(error), ") from ", call, " at ",
                                                  slash == nullptr ? file : slash + 1, ":", line));
  if (IsStickyCudaError(error)) {
    const std::lock_guard<std::mutex> lock(health_mutex);
    if (Health().ok()) Health() = status;
  } else {
    // The runtime also keeps the error for the next cudaGetLastError, which asks about another
    // call.
    cudaGetLastError();
  }
  return status;
}

absl::Status CudaHealth() {
  const std::lock_guard<std::mutex> lock(health_mutex);
  return Health();
}

}  // namespace quantgate
