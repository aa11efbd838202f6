// Computes the fp32 accumulators of a GEMM on a GPU, before its epilogue: the counterpart of the
// CPU's accumulate.h.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/models/cuda_kernels.h"
#include "kernels/tensor/device/cuda_device.h"

namespace quantgate {

/// The kernels that compute accumulators. The bits are the same.
enum class CudaPath {
  kTuned,   ///< The kernels made for the rule; kScalar where there are none.
  kScalar,  ///< DotUnder with a thread for each output: any rule, slowly. Not for fp32.
};

/// Whether there are tuned kernels for a rule, as for all rules of kernels/gemm/models/rules.h.
bool HasTunedKernel(const FusedRule& rule, ScaleUse use);
/// How a rule uses the block scales of an operand; kNone where the operand has none.
ScaleUse ScaleUseOf(const FusedRule& rule, const CudaOperand& operand);

/// desc.a as m rows of k, and desc.b as n rows of k.
CudaOperand CudaOperandA(const GemmDesc& desc, const GemmShape& shape);
CudaOperand CudaOperandB(const GemmDesc& desc, const GemmShape& shape);

/// Computes the sums over k of a(m, k) * b(n, k) under desc's arithmetic, which is neither exact
/// nor cublaslt, to `accumulators` [m][n] in device memory. The desc must have passed CheckGemm; m
/// > 0.
absl::Status AccumulateCuda(CudaDevice& device, const GemmDesc& desc, const GemmShape& shape,
                            CudaPath path, const Cancellation* cancellation, float* accumulators);

/// GemmCuda by a given path, for tests.
absl::StatusOr<GemmResult> GemmCudaBy(CudaPath path, CudaDevice& device, const GemmDesc& desc,
                                      const Cancellation* cancellation);

}  // namespace quantgate
