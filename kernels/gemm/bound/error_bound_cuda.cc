// StartCheckBoundCuda: the kernels of the exact GEMM compute AbsoluteGemm strip by strip, and a
// kernel takes the ratios of each strip.
#include <bit>
#include <utility>

#include "kernels/base/cuda_status.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/bound/bound_check.h"
#include "kernels/gemm/exact/exact_products.h"
#include "kernels/gemm/gemm_cuda.h"
#include "kernels/gemm/models/accumulate_cuda.h"
#include "kernels/gemm/scaling_check.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

/// The desc with the scales that BoundFor and ElementBoundOf read in host memory.
absl::StatusOr<GemmDesc> WithReadableScales(CudaDevice& device, const GemmDesc& desc,
                                            const Cancellation* cancellation) {
  GemmDesc readable = desc;
  for (GemmOperand* operand : {&readable.a, &readable.b}) {
    QG_ASSIGN_OR_RETURN(operand->amax, device.ToHost(operand->amax, cancellation));
    if (!IsFp8Block(operand->scaling)) continue;
    QG_ASSIGN_OR_RETURN(operand->scale_inv, device.ToHost(operand->scale_inv, cancellation));
  }
  QG_ASSIGN_OR_RETURN(readable.d_scale, device.ToHost(readable.d_scale, cancellation));
  return readable;
}

ExactCudaOperand WithFloors(const CudaOperand& operand, const AbsoluteFloors& floors) {
  return {operand, true, floors.element, floors.scale, floors.product};
}

absl::StatusOr<StartedReport<BoundCheck>> StartCheck(ExactCudaPath path, CudaDevice& device,
                                                     const GemmDesc& desc, const Tensor& subject,
                                                     const Tensor& exact,
                                                     const Cancellation* cancellation) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_ASSIGN_OR_RETURN(const GemmShape shape, CheckGemm(desc));
  QG_RETURN_IF_ERROR(CheckComparands(shape, subject, exact));
  QG_ASSIGN_OR_RETURN(const GemmDesc readable, WithReadableScales(device, desc, cancellation));
  BoundCheck check;
  QG_ASSIGN_OR_RETURN(check.bound, BoundFor(readable));
  BoundCheckTask task{};
  task.terms = ExactOutputTermsOf(desc);
  task.scaling = AbsoluteScalingOf(desc, shape);
  task.element = ElementBoundOf(readable, check.bound, subject.dtype());
  task.subject = subject.data();
  task.subject_format = FormatOf(subject.dtype());
  task.exact = exact.as<float>();
  QG_ASSIGN_OR_RETURN(Tensor memory, device.AllocateZeroed(DType::kU8, {sizeof(BoundTotals)}));
  task.totals = reinterpret_cast<BoundTotals*>(memory.data());
  const ExactCudaOperand a =
      WithFloors(CudaOperandA(desc, shape), AbsoluteFloorsOf(desc.a, desc.arithmetic));
  const ExactCudaOperand b =
      WithFloors(CudaOperandB(desc, shape), AbsoluteFloorsOf(desc.b, desc.arithmetic));
  QG_ASSIGN_OR_RETURN(const ExactProducts products, ExactProducts::Create(device, a, b, path));
  for (int64_t begin = 0; begin < shape.m; begin += products.strip_rows()) {
    if (cancellation != nullptr) QG_RETURN_IF_ERROR(cancellation->Check());
    QG_ASSIGN_OR_RETURN(task.strip, products.Strip(begin));
    QG_CUDA_RETURN_IF_ERROR(LaunchBoundCheck(task, device.stream()));
  }
  auto finish = [check](const std::byte* results) mutable -> absl::StatusOr<BoundCheck> {
    const auto& totals = *reinterpret_cast<const BoundTotals*>(results);
    check.violation_count = static_cast<int64_t>(totals.violation_count);
    check.worst_ratio = std::bit_cast<double>(totals.worst_ratio);
    check.pass = check.violation_count == 0;
    return check;
  };
  QG_ASSIGN_OR_RETURN(CudaDevice::PendingRead read, device.StartRead(memory));
  return StartedReport<BoundCheck>{std::move(read), std::move(finish)};
}

}  // namespace

absl::StatusOr<BoundCheck> CheckBoundCudaBy(ExactCudaPath path, CudaDevice& device,
                                            const GemmDesc& desc, const Tensor& subject,
                                            const Tensor& exact, const Cancellation* cancellation) {
  return ReadReport(device, StartCheck(path, device, desc, subject, exact, cancellation));
}

absl::StatusOr<StartedReport<BoundCheck>> StartCheckBoundCuda(CudaDevice& device,
                                                              const GemmDesc& desc,
                                                              const Tensor& subject,
                                                              const Tensor& exact,
                                                              const Cancellation* cancellation) {
  return StartCheck(ExactCudaPath::kTensorCores, device, desc, subject, exact, cancellation);
}

}  // namespace quantgate
