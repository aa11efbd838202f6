// ExactGemmCuda: packs operands, takes fp64 dot products, certifies outputs and computes the rest
// in wide integers.
#include <algorithm>
#include <bit>
#include <span>
#include <utility>
#include <vector>

#include "kernels/base/cuda_status.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/exact/exact.h"
#include "kernels/gemm/exact/exact_operand.h"
#include "kernels/gemm/exact/exact_products.h"
#include "kernels/gemm/gemm_cuda.h"
#include "kernels/gemm/models/accumulate_cuda.h"

namespace quantgate {
namespace {

/// norm and lowest_bit of an operand's rows, one after the other.
struct RowBounds {
  std::shared_ptr<Buffer> memory;
  int64_t rows = 0;

  double* norm() const { return reinterpret_cast<double*>(memory->data()); }
  double* lowest_bit() const { return norm() + rows; }
};

absl::StatusOr<RowBounds> AllocateBounds(CudaDevice& device, int64_t rows) {
  RowBounds bounds;
  bounds.rows = rows;
  QG_ASSIGN_OR_RETURN(bounds.memory,
                      device.AllocateBytes(static_cast<size_t>(2 * rows) * sizeof(double)));
  return bounds;
}

absl::Status RoundStrip(CudaDevice& device, const ExactRoundTask& task) {
  if (task.strip.begin > 0) {
    QG_CUDA_RETURN_IF_ERROR(
        cudaMemsetAsync(&task.counts->doubts, 0, sizeof(task.counts->doubts), device.stream()));
  }
  QG_CUDA_RETURN_IF_ERROR(LaunchExactCertify(task, device.stream()));
  return QG_CUDA_STATUS(LaunchExactRedo(task, device.stream()));
}

/// Computes every strip and rounds it to each output type. The counts are in *task.counts once the
/// stream gets there.
absl::Status RunStrips(CudaDevice& device, const ExactProducts& products, int64_t m,
                       const Cancellation* cancellation, std::span<ExactRoundTask> tasks) {
  const ExactRoundTask& first = tasks.front();
  const int64_t strip_outputs = std::min(m, products.strip_rows()) * first.b.rows;
  QG_ASSIGN_OR_RETURN(const auto doubtful, device.AllocateBytes(static_cast<size_t>(strip_outputs) *
                                                                sizeof(*first.doubtful)));
  for (int64_t begin = 0; begin < m; begin += products.strip_rows()) {
    if (cancellation != nullptr) QG_RETURN_IF_ERROR(cancellation->Check());
    QG_ASSIGN_OR_RETURN(const ExactStrip strip, products.Strip(begin));
    for (ExactRoundTask& task : tasks) {
      task.doubtful = reinterpret_cast<int64_t*>(doubtful->data());
      task.strip = strip;
      QG_RETURN_IF_ERROR(RoundStrip(device, task));
    }
  }
  return absl::OkStatus();
}

/// The note: `bounded` has the ratios, `counts` the outputs of one rounding that took wide
/// integers.
std::string NoteOf(const ExactCounts& bounded, const ExactCounts& counts, const GemmShape& shape) {
  ExactStatistics statistics;
  statistics.largest_ratio =
      std::bit_cast<double>(bounded.ratio_max_a) * std::bit_cast<double>(bounded.ratio_max_b);
  statistics.outputs = shape.m * shape.n;
  statistics.wide_dots = static_cast<int64_t>(counts.wide_dots);
  statistics.wide_epilogues = static_cast<int64_t>(counts.wide_epilogues);
  return ExactNote(statistics);
}

absl::StatusOr<StartedExactGemm> StartExact(ExactCudaPath path, CudaDevice& device,
                                            const GemmDesc& given,
                                            const Cancellation* cancellation) {
  QG_RETURN_IF_ERROR(device.MakeCurrent());
  GemmDesc desc = given;
  desc.arithmetic = Arithmetic{ArithmeticFamily::kExact};
  QG_ASSIGN_OR_RETURN(const GemmShape shape, CheckGemm(desc));
  GemmResult result;
  result.arithmetic = desc.arithmetic;
  QG_ASSIGN_OR_RETURN(result.d, OutputOf(desc, shape, [&](DType dtype, Shape dims) {
                        return device.Allocate(dtype, std::move(dims));
                      }));
  ExactRoundTask task{};
  if (IsFp8(desc.out_dtype)) {
    QG_ASSIGN_OR_RETURN(result.amax, device.AllocateZeroed(DType::kF32, {1}));
    task.amax = result.amax.as<uint32_t>();
  }
  ExactCudaOperand a, b;
  a.operand = CudaOperandA(desc, shape);
  b.operand = CudaOperandB(desc, shape);
  QG_ASSIGN_OR_RETURN(const ExactProducts products, ExactProducts::Create(device, a, b, path));
  task.a = products.a();
  task.b = products.b();
  task.k = shape.k;
  task.has_block_scales = a.is_scaled();
  task.terms = ExactOutputTermsOf(desc);
  task.relative_error = ExactRelativeError(shape.k);
  task.output = ExactOutputOf(desc.out_dtype);
  task.d = result.d.data();
  std::vector<ExactRoundTask> tasks(desc.also_f32 ? 2 : 1);
  const auto count_bytes = static_cast<int64_t>(tasks.size() * sizeof(ExactCounts));
  QG_ASSIGN_OR_RETURN(Tensor counts_memory, device.AllocateZeroed(DType::kU8, {count_bytes}));
  task.counts = reinterpret_cast<ExactCounts*>(counts_memory.data());
  QG_ASSIGN_OR_RETURN(const RowBounds a_bounds, AllocateBounds(device, shape.m));
  QG_ASSIGN_OR_RETURN(const RowBounds b_bounds, AllocateBounds(device, shape.n));
  task.norm_a = a_bounds.norm();
  task.lowest_bit_a = a_bounds.lowest_bit();
  task.norm_b = b_bounds.norm();
  task.lowest_bit_b = b_bounds.lowest_bit();
  QG_CUDA_RETURN_IF_ERROR(LaunchExactRowBounds(
      {{{task.a, a_bounds.norm(), a_bounds.lowest_bit(), &task.counts->ratio_max_a},
        {task.b, b_bounds.norm(), b_bounds.lowest_bit(), &task.counts->ratio_max_b}},
       ExactNormInflation(shape.k)},
      device.stream()));
  std::fill(tasks.begin(), tasks.end(), task);
  if (desc.also_f32) {
    QG_ASSIGN_OR_RETURN(result.f32, device.Allocate(DType::kF32, {shape.m, shape.n}));
    ExactRoundTask& wide = tasks.back();
    wide.output = ExactOutput::kF32;
    wide.d = result.f32.data();
    ++wide.counts;
  }
  QG_RETURN_IF_ERROR(RunStrips(device, products, shape.m, cancellation, tasks));
  const auto note = [shape, last = tasks.size() -
                                   1](const std::byte* bytes) -> absl::StatusOr<std::string> {
    const auto* counts = reinterpret_cast<const ExactCounts*>(bytes);
    return NoteOf(counts[0], counts[last], shape);
  };
  QG_ASSIGN_OR_RETURN(CudaDevice::PendingRead read, device.StartRead(counts_memory));
  return StartedExactGemm{std::move(result), {std::move(read), note}};
}

}  // namespace

absl::StatusOr<GemmResult> ExactGemmCudaBy(ExactCudaPath path, CudaDevice& device,
                                           const GemmDesc& desc, const Cancellation* cancellation) {
  QG_ASSIGN_OR_RETURN(StartedExactGemm started, StartExact(path, device, desc, cancellation));
  QG_ASSIGN_OR_RETURN(started.result.note,
                      ReadReport<std::string>(device, std::move(started.note)));
  return std::move(started.result);
}

absl::StatusOr<StartedExactGemm> StartExactGemmCuda(CudaDevice& device, const GemmDesc& desc,
                                                    const Cancellation* cancellation) {
  return StartExact(ExactCudaPath::kTensorCores, device, desc, cancellation);
}

absl::StatusOr<GemmResult> ExactGemmCuda(CudaDevice& device, const GemmDesc& desc,
                                         const Cancellation* cancellation) {
  return ExactGemmCudaBy(ExactCudaPath::kTensorCores, device, desc, cancellation);
}

}  // namespace quantgate
