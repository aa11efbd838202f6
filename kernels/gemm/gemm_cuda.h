// The arithmetic models and the exact oracle on a GPU's CUDA cores: the bits of GemmCpu, and of
// AbsoluteGemm and CheckBound. All tensors of a desc are in device memory; results are, and are
// written once the device's stream gets there. Errors as on the CPU, and those of CudaDevice.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kernels/base/cancellation.h"
#include "kernels/gemm/bound/error_bound.h"
#include "kernels/gemm/gemm.h"
#include "kernels/tensor/device/cuda_device.h"
#include "kernels/tensor/started_report.h"

namespace quantgate {

/// As GemmCpu, for every arithmetic but cublaslt (gemm_cublaslt.h). Cancellation is looked at
/// between kernels. Waits for the stream only to look at the values of fp32 scales of blocks under
/// sm100 and sm120, which must be powers of two, and for exact's note.
absl::StatusOr<GemmResult> GemmCuda(CudaDevice& device, const GemmDesc& desc,
                                    const Cancellation* cancellation);

/// As ExactGemm; part of GemmCuda. Waits for the counts of its note.
absl::StatusOr<GemmResult> ExactGemmCuda(CudaDevice& device, const GemmDesc& desc,
                                         const Cancellation* cancellation);

/// The same, begun: the result without its note, and the note.
struct StartedExactGemm {
  GemmResult result;
  StartedReport<std::string> note;
};
absl::StatusOr<StartedExactGemm> StartExactGemmCuda(CudaDevice& device, const GemmDesc& desc,
                                                    const Cancellation* cancellation);

/// As CheckBound, begun. Waits for scales where the bound depends on their values: nvfp4's amaxes
/// and the scales of FP8 blocks.
absl::StatusOr<StartedReport<BoundCheck>> StartCheckBoundCuda(CudaDevice& device,
                                                              const GemmDesc& desc,
                                                              const Tensor& subject,
                                                              const Tensor& exact,
                                                              const Cancellation* cancellation);

}  // namespace quantgate
