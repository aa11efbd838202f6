// ExactProducts: the fp64 dot products of an exact GEMM on a GPU, a strip of rows at a time.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/base/execution.h"
#include "kernels/gemm/exact/exact_cuda_kernels.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_cuda.h"
#include "kernels/tensor/device/cuda_device.h"

namespace quantgate {

/// The kernels that pack operands and compute dot products. The bits are the same.
enum class ExactCudaPath {
  kTensorCores,
  kPlain,  ///< A thread for each element and each output.
};

/// The terms of desc's outputs, in device memory.
ExactOutputTerms ExactOutputTermsOf(const GemmDesc& desc);

class ExactProducts {
 public:
  /// Packs the operands. RESOURCE_EXHAUSTED where there is no memory for them (up to 8 bytes an
  /// element) or for a strip.
  static absl::StatusOr<ExactProducts> Create(CudaDevice& device, const ExactCudaOperand& a,
                                              const ExactCudaOperand& b, ExactCudaPath path);

  const ExactPacked& a() const { return a_; }
  const ExactPacked& b() const { return b_; }

  /// The number of rows of every strip but the last. Strips begin at multiples of it.
  int64_t strip_rows() const { return strip_tiles_ * kExactTileRows; }
  /// Computes the strip that begins at row `begin`. It is in this object's memory until the next
  /// call.
  absl::StatusOr<ExactStrip> Strip(int64_t begin) const;

 private:
  explicit ExactProducts(CudaDevice& device) : device_(&device) {}
  /// Allocates memory for an operand and describes how it will be packed.
  absl::StatusOr<std::shared_ptr<Buffer>> Prepare(const ExactCudaOperand& source,
                                                  const ExactPackTask& task,
                                                  ExactPackedOperand& packing, ExactPacked& packed);

  CudaDevice* device_;
  ExactCudaPath path_ = ExactCudaPath::kTensorCores;
  int64_t strip_tiles_ = 0;
  ExactPacked a_{}, b_{};
  std::shared_ptr<Buffer> a_memory_, b_memory_, sums_;
};

/// ExactGemmCuda and StartCheckBoundCuda by a given path, for tests; the latter waits for its
/// result.
absl::StatusOr<GemmResult> ExactGemmCudaBy(ExactCudaPath path, CudaDevice& device,
                                           const GemmDesc& desc, const Cancellation* cancellation);
absl::StatusOr<BoundCheck> CheckBoundCudaBy(ExactCudaPath path, CudaDevice& device,
                                            const GemmDesc& desc, const Tensor& subject,
                                            const Tensor& exact, const Cancellation* cancellation);

}  // namespace quantgate
