#include "kernels/gemm/gemm_cuda.h"

#include "absl/strings/str_cat.h"
#include "kernels/base/cuda_status.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/epilogue.h"
#include "kernels/gemm/integer_gemm.h"
#include "kernels/gemm/models/accumulate_cuda.h"
#include "kernels/gemm/scaling_check.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

/// Checks the values of the scales, which CheckGemm cannot see in device memory.
absl::Status CheckPowersOfTwo(CudaDevice& device, std::string_view operand, const Tensor& scale) {
  if (scale.element_count() == 0) return absl::OkStatus();
  const uint64_t none = static_cast<uint64_t>(scale.element_count());
  uint64_t first = none;
  QG_ASSIGN_OR_RETURN(const auto found, device.AllocateBytes(sizeof(first)));
  QG_RETURN_IF_ERROR(device.Write(&first, found->data(), sizeof(first)));
  QG_CUDA_RETURN_IF_ERROR(LaunchFindScaleOffE8M0(
      scale.as<float>(), scale.element_count(),
      reinterpret_cast<unsigned long long*>(found->data()), device.stream()));
  QG_RETURN_IF_ERROR(device.Read(found->data(), &first, sizeof(first)));
  if (first == none) return absl::OkStatus();
  float value = 0;
  QG_RETURN_IF_ERROR(device.Read(scale.as<float>() + first, &value, sizeof(value)));
  return ScaleNotE8M0Error(operand, value, static_cast<int64_t>(first));
}

absl::Status CheckScaleValues(CudaDevice& device, const GemmDesc& desc) {
  if (!NeedsPowersOfTwo(desc)) return absl::OkStatus();
  QG_RETURN_IF_ERROR(CheckPowersOfTwo(device, "a", desc.a.scale_inv));
  return CheckPowersOfTwo(device, "b", desc.b.scale_inv);
}

/// `rows` rows of k codes, which lie one after the other or, turned, side by side.
IntegerOperand IntegersOf(const GemmOperand& operand, int64_t rows, int64_t k, bool is_turned) {
  IntegerOperand integers;
  integers.codes = operand.data.as<uint8_t>();
  integers.is_signed = operand.data.dtype() == DType::kI8;
  integers.row_stride = is_turned ? 1 : k;
  integers.k_stride = is_turned ? rows : 1;
  if (operand.scaling != ScaleMode::kNone) integers.scales = operand.scale_inv.as<float>();
  if (operand.zero_point.has_value()) integers.zeros = operand.zero_point.as<uint8_t>();
  integers.has_scale_per_row = operand.scaling == ScaleMode::kOuter;
  return integers;
}

absl::Status AccumulateIntegers(CudaDevice& device, const GemmDesc& desc, const GemmShape& shape,
                                float* accumulators) {
  IntegerTask task;
  task.a = IntegersOf(desc.a, shape.m, shape.k, desc.layout == GemmLayout::kNT);
  task.b = IntegersOf(desc.b, shape.n, shape.k, desc.layout != GemmLayout::kTN);
  task.m = shape.m;
  task.n = shape.n;
  task.k = shape.k;
  task.accumulators = accumulators;
  return QG_CUDA_STATUS(LaunchIntegers(task, device.facts().multiprocessors, device.stream()));
}

const float* ValuesOf(const Tensor& tensor) {
  return tensor.has_value() ? tensor.as<float>() : nullptr;
}

/// Sets where the epilogue's kernel finds the factors of the coefficient, by the mode of scaling.
void SetScales(const GemmDesc& desc, EpilogueTask& task) {
  task.reciprocal = 1;
  switch (desc.a.scaling) {
    case ScaleMode::kOuter:
      task.row_scales = desc.a.scale_inv.as<float>();
      task.column_scales = desc.b.scale_inv.as<float>();
      return;
    case ScaleMode::kNv16: {
      task.reciprocal = Nvfp4Reciprocal(desc);
      const bool is_row_scaled = IsRowScaled(desc.a);
      (is_row_scaled ? task.row_amaxes : task.scale_a) = ValuesOf(desc.a.amax);
      (is_row_scaled ? task.column_amax : task.scale_b) = ValuesOf(desc.b.amax);
      return;
    }
    default:
      if (desc.a.scaling == ScaleMode::kTensor) task.scale_a = ValuesOf(desc.a.scale_inv);
      if (desc.b.scaling == ScaleMode::kTensor) task.scale_b = ValuesOf(desc.b.scale_inv);
  }
}

EpilogueTask EpilogueOf(const GemmDesc& desc, const GemmShape& shape, const float* accumulators,
                        GemmResult& result) {
  EpilogueTask task{};
  task.m = shape.m;
  task.n = shape.n;
  task.accumulators = accumulators;
  task.d = result.d.data();
  task.out_format = FormatOf(desc.out_dtype);
  task.combination = CombinationOf(desc);
  task.keeps_negative_zero = KeepsNegativeZero(desc);
  task.alpha = desc.alpha;
  task.beta = desc.beta;
  SetScales(desc, task);
  if (desc.c.has_value()) {
    task.c = desc.c.data();
    task.c_format = FormatOf(desc.c.dtype());
  }
  if (desc.bias.has_value()) {
    task.bias = desc.bias.data();
    task.bias_format = FormatOf(desc.bias.dtype());
  }
  task.d_scale = ValuesOf(desc.d_scale);
  if (result.amax.has_value()) task.amax = result.amax.as<uint32_t>();
  return task;
}

}  // namespace

absl::StatusOr<GemmResult> GemmCudaBy(CudaPath path, CudaDevice& device, const GemmDesc& desc,
                                      const Cancellation* cancellation) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_ASSIGN_OR_RETURN(const GemmShape shape, CheckGemm(desc));
  if (cancellation != nullptr) QG_RETURN_IF_ERROR(cancellation->Check());
  const Arithmetic arithmetic = ResolvedFor(desc);
  if (arithmetic.family == ArithmeticFamily::kExact) {
    return ExactGemmCuda(device, desc, cancellation);
  }
  if (arithmetic.family == ArithmeticFamily::kCublasLt) {
    return Refuse("arithmetic", arithmetic.ToString(), "it is hardware, not a model");
  }
  QG_RETURN_IF_ERROR(CheckScaleValues(device, desc));

  // Integers are scaled before the epilogue, in their own order.
  const bool adds_integers = HasIntegers(desc);
  GemmDesc unscaled = desc;
  if (adds_integers) {
    unscaled.arithmetic.family = ArithmeticFamily::kInt32;
    unscaled.a.scaling = unscaled.b.scaling = ScaleMode::kNone;
  }
  GemmResult result;
  result.arithmetic = adds_integers ? unscaled.arithmetic : arithmetic;
  QG_ASSIGN_OR_RETURN(result.d, OutputOf(desc, shape, [&](DType dtype, Shape dims) {
                        return device.Allocate(dtype, std::move(dims));
                      }));
  if (IsFp8(desc.out_dtype)) {
    QG_ASSIGN_OR_RETURN(result.amax, device.AllocateZeroed(DType::kF32, {1}));
  }
  if (shape.m == 0) return result;
  // An fp32 output uses the memory of the accumulators.
  Tensor accumulators = result.d;
  if (desc.out_dtype != DType::kF32) {
    QG_ASSIGN_OR_RETURN(accumulators, device.Allocate(DType::kF32, {shape.m, shape.n}));
  }
  QG_RETURN_IF_ERROR(
      adds_integers
          ? AccumulateIntegers(device, desc, shape, accumulators.as<float>())
          : AccumulateCuda(device, desc, shape, path, cancellation, accumulators.as<float>()));
  QG_CUDA_RETURN_IF_ERROR(LaunchEpilogue(
      EpilogueOf(unscaled, shape, accumulators.as<float>(), result), device.stream()));
  return result;
}

absl::StatusOr<GemmResult> GemmCuda(CudaDevice& device, const GemmDesc& desc,
                                    const Cancellation* cancellation) {
  return GemmCudaBy(CudaPath::kTuned, device, desc, cancellation);
}

}  // namespace quantgate
