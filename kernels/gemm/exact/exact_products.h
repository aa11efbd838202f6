// The fp64 dot products of an exact GEMM on a GPU, a strip of rows at a time.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/base/cancellation.h"
#include "kernels/gemm/exact/exact_cuda_kernels.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_cuda.h"
#include "kernels/tensor/device/cuda_device.h"

namespace quantgate {

/// Which kernels pack operands and compute dot products; the bits are the same.
enum class ExactCudaPath {
  kTensorCores,
  kPlain,  ///< One thread an element and an output.
};

/// The terms of desc's outputs, in device memory.
ExactOutputTerms ExactOutputTermsOf(const GemmDesc& desc);

class ExactProducts {
 public:
  /// Packs the operands. RESOURCE_EXHAUSTED for their memory, up to 8 bytes an element, or that of
  /// a strip.
  static absl::StatusOr<ExactProducts> Create(CudaDevice& device, const ExactCudaOperand& a,
                                              const ExactCudaOperand& b, ExactCudaPath path);

  const ExactPacked& a() const { return a_; }
  const ExactPacked& b() const { return b_; }

  /// Rows of the strips but the last, which begin at multiples of it.
  int64_t strip_rows() const { return strip_tiles_ * kExactTileRows; }
  /// The strip that begins there, in this object's memory until the next one.
  absl::StatusOr<ExactStrip> Strip(int64_t begin) const;

 private:
  explicit ExactProducts(CudaDevice& device) : device_(&device) {}
  /// Memory for an operand, and how it will be packed.
  absl::StatusOr<std::shared_ptr<Buffer>> Prepare(const ExactCudaOperand& source,
                                                  const ExactPackTask& task,
                                                  ExactPackedOperand& packing, ExactPacked& packed);

  CudaDevice* device_;
  ExactCudaPath path_ = ExactCudaPath::kTensorCores;
  int64_t strip_tiles_ = 0;
  ExactPacked a_{}, b_{};
  std::shared_ptr<Buffer> a_memory_, b_memory_, sums_;
};

/// ExactGemmCuda and StartCheckBoundCuda by a given path, the latter waited for.
absl::StatusOr<GemmResult> ExactGemmCudaBy(ExactCudaPath path, CudaDevice& device,
                                           const GemmDesc& desc, const Cancellation* cancellation);
absl::StatusOr<BoundCheck> CheckBoundCudaBy(ExactCudaPath path, CudaDevice& device,
                                            const GemmDesc& desc, const Tensor& subject,
                                            const Tensor& exact, const Cancellation* cancellation);

}  // namespace quantgate
