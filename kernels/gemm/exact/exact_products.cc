#include "kernels/gemm/exact/exact_products.h"

#include <algorithm>

#include "kernels/base/cuda_status.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/exact/exact_operand.h"
#include "kernels/gemm/models/accumulate_cuda.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

/// The most outputs of a strip, which is 128 MiB of dot products; a strip has at least 128 rows.
constexpr int64_t kStripOutputs = int64_t{1} << 24;

int64_t TilesOf(int64_t rows) { return (rows + kExactTileRows - 1) / kExactTileRows; }

/// Whether the upper half of an fp64 number holds every element: its 21 bits hold the significand
/// of an element of up to 16 bits, also times that of an E8M0 or E4M3 scale.
bool IsNarrow(const ExactCudaOperand& source) {
  return !source.absolute && source.operand.format != kFormatId<Float32> &&
         source.operand.scale_format != ScaleFormat::kF32;
}

struct Scales {
  const float* values = nullptr;
  int stride = 0;
};
/// The scales that ScalesOf of exact_operand.h gives, in device memory.
Scales WholeScalesOf(const GemmOperand& operand) {
  const bool is_whole =
      operand.scaling == ScaleMode::kTensor || operand.scaling == ScaleMode::kOuter;
  const bool is_nv16 = operand.scaling == ScaleMode::kNv16;
  const Tensor& given = is_nv16 ? operand.amax : operand.scale_inv;
  if ((!is_whole && !is_nv16) || !given.has_value()) return {};
  return {given.as<float>(), given.element_count() == 1 ? 0 : 1};
}

}  // namespace

ExactOutputTerms ExactOutputTermsOf(const GemmDesc& desc) {
  ExactOutputTerms terms;
  terms.alpha = desc.alpha;
  terms.beta = desc.beta;
  const Scales a = WholeScalesOf(desc.a), b = WholeScalesOf(desc.b);
  terms.a_scales = a.values;
  terms.a_scale_stride = a.stride;
  terms.b_scales = b.values;
  terms.b_scale_stride = b.stride;
  if (desc.beta != 0) {
    terms.c = desc.c.data();
    terms.c_format = FormatOf(desc.c.dtype());
  }
  if (desc.bias.has_value()) {
    terms.bias = desc.bias.data();
    terms.bias_format = FormatOf(desc.bias.dtype());
  }
  if (desc.d_scale.has_value()) terms.d_scale = desc.d_scale.as<float>();
  terms.divisor = GlobalDivisor(desc);
  return terms;
}

absl::StatusOr<std::shared_ptr<Buffer>> ExactProducts::Prepare(const ExactCudaOperand& source,
                                                               const ExactPackTask& task,
                                                               ExactPackedOperand& packing,
                                                               ExactPacked& packed) {
  const int64_t row_tiles = TilesOf(source.operand.rows);
  const int64_t words = row_tiles * kExactTileRows * task.k_padded;
  QG_ASSIGN_OR_RETURN(auto memory, device_->AllocateBytes(words * (task.narrow ? 4 : 8)));
  packing = {source, row_tiles, memory->data()};
  packed = {memory->data(), source.operand.rows, task.k_padded, task.narrow};
  return memory;
}

absl::StatusOr<ExactProducts> ExactProducts::Create(CudaDevice& device, const ExactCudaOperand& a,
                                                    const ExactCudaOperand& b, ExactCudaPath path) {
  ExactProducts products(device);
  products.path_ = path;
  ExactPackTask task{};
  task.k_padded = (a.operand.k + kExactPackedDepth - 1) / kExactPackedDepth * kExactPackedDepth;
  task.narrow = IsNarrow(a) && IsNarrow(b);
  QG_ASSIGN_OR_RETURN(products.a_memory_, products.Prepare(a, task, task.operands[0], products.a_));
  QG_ASSIGN_OR_RETURN(products.b_memory_, products.Prepare(b, task, task.operands[1], products.b_));
  QG_CUDA_RETURN_IF_ERROR(path == ExactCudaPath::kPlain
                              ? LaunchExactPackPlain(task, device.stream())
                              : LaunchExactPack(task, device.stream()));
  const int64_t tile_outputs = kExactTileRows * kExactTileRows * TilesOf(products.b_.rows);
  products.strip_tiles_ = std::clamp<int64_t>(kStripOutputs / tile_outputs, 1,
                                              std::max<int64_t>(TilesOf(products.a_.rows), 1));
  QG_ASSIGN_OR_RETURN(products.sums_,
                      device.AllocateBytes(products.strip_tiles_ * tile_outputs * sizeof(double)));
  return products;
}

absl::StatusOr<ExactStrip> ExactProducts::Strip(int64_t begin) const {
  const int64_t rows = std::min(strip_rows(), a_.rows - begin);
  ExactProductsTask task;
  task.a = a_memory_->data() + begin * a_.k_padded * (a_.narrow ? 4 : 8);
  task.b = b_.words;
  task.row_tiles = TilesOf(rows);
  task.column_tiles = TilesOf(b_.rows);
  task.k_padded = a_.k_padded;
  task.narrow = a_.narrow;
  task.sums = reinterpret_cast<double*>(sums_->data());
  QG_CUDA_RETURN_IF_ERROR(path_ == ExactCudaPath::kPlain
                              ? LaunchExactProductsPlain(task, device_->stream())
                              : LaunchExactProducts(task, device_->stream()));
  return ExactStrip{begin, rows, b_.rows, task.sums, task.column_tiles * kExactTileRows};
}

}  // namespace quantgate
