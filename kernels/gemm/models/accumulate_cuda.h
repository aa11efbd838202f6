// The fp32 accumulators of a GEMM on a GPU, before its epilogue: what accumulate.h is on the CPU.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/cancellation.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/models/cuda_kernels.h"
#include "kernels/tensor/device/cuda_device.h"

namespace quantgate {

/// Which kernels compute accumulators; the bits are the same.
enum class CudaPath {
  kTuned,   ///< Those made for the rule; kScalar where there are none.
  kScalar,  ///< DotUnder, one thread an output: any rule at all, slowly. Not for fp32.
};

/// Whether there are tuned kernels for a rule: for all of the registry.
bool HasTunedKernel(const FusedRule& rule, ScaleUse use);
/// What a rule does with the block scales of an operand; kNone where it has none.
ScaleUse ScaleUseOf(const FusedRule& rule, const CudaOperand& operand);

/// desc.a as m rows of k, and desc.b as n rows of k.
CudaOperand CudaOperandA(const GemmDesc& desc, const GemmShape& shape);
CudaOperand CudaOperandB(const GemmDesc& desc, const GemmShape& shape);

/// sum over k of a(m, k) * b(n, k) under desc's arithmetic, which is neither exact nor cublaslt, to
/// `accumulators` [m][n] in device memory. The desc must have passed CheckGemm; m > 0.
absl::Status AccumulateCuda(CudaDevice& device, const GemmDesc& desc, const GemmShape& shape,
                            CudaPath path, const Cancellation* cancellation, float* accumulators);

/// GemmCuda by a given path.
absl::StatusOr<GemmResult> GemmCudaBy(CudaPath path, CudaDevice& device, const GemmDesc& desc,
                                      const Cancellation* cancellation);

}  // namespace quantgate
