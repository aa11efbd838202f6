#include "kernels/tensor/device/tensor_cuda.h"

#include <utility>

#include "kernels/base/cuda_status.h"
#include "kernels/tensor/fingerprint_facts.h"
#include "kernels/tensor/generate/generation_rule.h"
#include "kernels/tensor/tensor_checks.h"
#include "kernels/tensor/tensor_kernels_cuda.h"
#include "kernels/tensor/tensor_numbers.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

/// kColumnSumRows rows to one, until one is left. `from` has rows.
absl::StatusOr<Tensor> SumRows(CudaDevice& device, const Tensor& from) {
  Tensor rows = from;
  int64_t count = from.rows();
  for (bool is_first = true; is_first || count > 1; is_first = false) {
    const int64_t groups = (count + kColumnSumRows - 1) / kColumnSumRows;
    QG_ASSIGN_OR_RETURN(Tensor sums, device.Allocate(DType::kF32, {groups, from.columns()}));
    const ColumnSumParameters parameters = {.from = rows.data(),
                                            .encoding = NumbersOf(rows).encoding,
                                            .rows = count,
                                            .columns = from.columns(),
                                            .sums = sums.as<float>(),
                                            .canonical = groups == 1};
    QG_CUDA_RETURN_IF_ERROR(LaunchColumnSums(parameters, KernelPath::kTuned, device.stream()));
    rows = std::move(sums);
    count = groups;
  }
  return rows.Reinterpret(DType::kF32, {from.columns()});
}

}  // namespace

absl::StatusOr<Tensor> GenerateCuda(CudaDevice& device, const GeneratorSpec& spec) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_ASSIGN_OR_RETURN(const GenerationRule rule, GenerationRuleOf(spec));
  QG_ASSIGN_OR_RETURN(Tensor tensor, device.Allocate(spec.dtype, spec.shape));
  const GenerateParameters parameters = {.rule = rule,
                                         .out = tensor.data(),
                                         .format = FormatOf(spec.dtype),
                                         .count = tensor.element_count()};
  QG_CUDA_RETURN_IF_ERROR(LaunchGenerate(parameters, KernelPath::kTuned, device.stream()));
  return tensor;
}

absl::StatusOr<Tensor> CastTensorCuda(CudaDevice& device, const Tensor& tensor, DType out) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  if (tensor.dtype() == out) return tensor;
  QG_RETURN_IF_ERROR(CheckCast(tensor.dtype(), out));
  QG_ASSIGN_OR_RETURN(Tensor result, device.Allocate(out, tensor.shape()));
  const CastParameters parameters = {.from = NumbersOf(tensor),
                                     .to = result.data(),
                                     .format = FormatOf(out),
                                     .count = tensor.element_count()};
  QG_CUDA_RETURN_IF_ERROR(LaunchCast(parameters, KernelPath::kTuned, device.stream()));
  return result;
}

absl::StatusOr<Tensor> Transpose2dCuda(CudaDevice& device, const Tensor& tensor) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckTranspose(tensor.dtype()));
  QG_ASSIGN_OR_RETURN(Tensor out,
                      device.Allocate(tensor.dtype(), {tensor.columns(), tensor.rows()}));
  const TransposeParameters parameters = {.from = tensor.data(),
                                          .to = out.data(),
                                          .element_bytes = DTypeBytes(tensor.dtype()),
                                          .rows = tensor.rows(),
                                          .columns = tensor.columns()};
  QG_CUDA_RETURN_IF_ERROR(LaunchTranspose(parameters, KernelPath::kTuned, device.stream()));
  return out;
}

absl::StatusOr<Tensor> ColumnSumsCuda(CudaDevice& device, const Tensor& tensor, DType out) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  QG_RETURN_IF_ERROR(CheckColumnSums(tensor.dtype(), out));
  if (tensor.rows() == 0) return device.AllocateZeroed(out, {tensor.columns()});
  QG_ASSIGN_OR_RETURN(const Tensor sums, SumRows(device, tensor));
  return CastTensorCuda(device, sums, out);
}

absl::StatusOr<std::vector<Tensor>> FingerprintsCuda(CudaDevice& device,
                                                     std::span<const Tensor> tensors) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  if (tensors.empty()) return std::vector<Tensor>();
  constexpr size_t kBytes = 2 * sizeof(uint64_t);
  QG_ASSIGN_OR_RETURN(const std::shared_ptr<Buffer> sums,
                      device.AllocateZeroedBytes(tensors.size() * kBytes));
  std::vector<Tensor> started;
  std::vector<FingerprintJob> jobs;
  for (const Tensor& tensor : tensors) {
    const MixSum facts = FingerprintFacts(tensor);
    jobs.push_back({.data = tensor.data(),
                    .bytes = static_cast<int64_t>(tensor.byte_size()),
                    .high = facts.high,
                    .low = facts.low});
    QG_ASSIGN_OR_RETURN(started.emplace_back(),
                        Tensor::View(DType::kI64, {2}, sums, started.size() * kBytes));
  }
  QG_CUDA_RETURN_IF_ERROR(LaunchFingerprints(jobs, reinterpret_cast<uint64_t*>(sums->data()),
                                             device.facts().multiprocessors, KernelPath::kTuned,
                                             device.stream()));
  device.MarkResults();
  return started;
}

}  // namespace quantgate
