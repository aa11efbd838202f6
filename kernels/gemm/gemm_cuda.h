// The arithmetic models, the exact oracle and the bound check on a GPU, with the bits of GemmCpu,
// ExactGemm and CheckBound. All tensors of a desc and of the results are in device memory; results
// are written once the device's stream gets there. Errors are those of the CPU's functions and of
// CudaDevice.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/gemm/bound/error_bound.h"
#include "kernels/gemm/gemm.h"
#include "kernels/tensor/device/cuda_device.h"

namespace quantgate {

/// As GemmCpu, for every arithmetic but cublaslt (gemm_cublaslt.h). Cancellation is checked between
/// kernels. Waits for the stream only to check fp32 block scales under sm100 and sm120, which must
/// be powers of two, and for the note of exact.
absl::StatusOr<GemmResult> GemmCuda(CudaDevice& device, const GemmDesc& desc,
                                    const Cancellation* cancellation);

/// As ExactGemm; part of GemmCuda. Waits for the counts of its note.
absl::StatusOr<GemmResult> ExactGemmCuda(CudaDevice& device, const GemmDesc& desc,
                                         const Cancellation* cancellation);

/// An exact GEMM that was begun: the result without its note, and the note.
struct StartedExactGemm {
  GemmResult result;
  StartedReport<std::string> note;
};
absl::StatusOr<StartedExactGemm> StartExactGemmCuda(CudaDevice& device, const GemmDesc& desc,
                                                    const Cancellation* cancellation);

/// Begins what CheckBound does. Waits for scales where the bound depends on their values: the
/// amaxes of nvfp4 and the scales of FP8 blocks.
absl::StatusOr<StartedReport<BoundCheck>> StartCheckBoundCuda(CudaDevice& device,
                                                              const GemmDesc& desc,
                                                              const Tensor& subject,
                                                              const Tensor& exact,
                                                              const Cancellation* cancellation);

}  // namespace quantgate
