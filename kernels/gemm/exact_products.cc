#include "kernels/gemm/exact_products.h"

#include <algorithm>

#include "kernels/base/cuda_status.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/accumulate_cuda.h"
#include "kernels/gemm/exact_operand.h"

namespace quantgate {
namespace {

/// Outputs of a strip, unless 128 rows have more: 128 MiB of dot products.
constexpr int64_t kStripOutputs = int64_t{1} << 24;

int64_t TilesOf(int64_t rows) { return (rows + kExactTileRows - 1) / kExactTileRows; }

/// Whether every element is the upper half of an fp64 number: 21 bits hold the significand of an
/// element of up to 16 bits, times that of an E8M0 or E4M3 scale too.
bool IsNarrow(const ExactCudaOperand& source) {
  return !source.absolute && source.operand.format != OperandFormat::kF32 &&
         source.operand.scale_format != ScaleFormat::kF32;
}

absl::StatusOr<std::shared_ptr<Buffer>> Pack(CudaDevice& device, const ExactCudaOperand& source,
                                             int64_t k_padded, bool narrow) {
  const int64_t row_tiles = TilesOf(source.operand.rows);
  const int64_t words = row_tiles * kExactTileRows * k_padded;
  QG_ASSIGN_OR_RETURN(auto packed, device.AllocateBytes(words * (narrow ? 4 : 8)));
  QG_CUDA_RETURN_IF_ERROR(
      LaunchExactPack({source, row_tiles, k_padded, narrow, packed->data()}, device.stream()));
  return packed;
}

struct Scales {
  const float* values = nullptr;
  int stride = 0;
};
/// ScalesOf of exact_operand.h, where they are.
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
    terms.c_format = OperandFormatOf(desc.c.dtype());
  }
  if (desc.bias.has_value()) {
    terms.bias = desc.bias.data();
    terms.bias_format = OperandFormatOf(desc.bias.dtype());
  }
  if (desc.d_scale.has_value()) terms.d_scale = desc.d_scale.as<float>();
  terms.divisor = GlobalDivisor(desc);
  return terms;
}

absl::StatusOr<ExactProducts> ExactProducts::Create(CudaDevice& device, const ExactCudaOperand& a,
                                                    const ExactCudaOperand& b, ExactCudaPath path) {
  ExactProducts products(device);
  products.path_ = path;
  products.m_ = a.operand.rows;
  products.n_ = b.operand.rows;
  products.k_padded_ =
      (a.operand.k + kExactPackedDepth - 1) / kExactPackedDepth * kExactPackedDepth;
  products.narrow_ = IsNarrow(a) && IsNarrow(b);
  const int64_t tile_outputs = kExactTileRows * kExactTileRows * TilesOf(products.n_);
  products.strip_tiles_ = std::clamp<int64_t>(kStripOutputs / tile_outputs, 1,
                                              std::max<int64_t>(TilesOf(products.m_), 1));
  QG_ASSIGN_OR_RETURN(products.a_, Pack(device, a, products.k_padded_, products.narrow_));
  QG_ASSIGN_OR_RETURN(products.b_, Pack(device, b, products.k_padded_, products.narrow_));
  QG_ASSIGN_OR_RETURN(products.sums_,
                      device.AllocateBytes(products.strip_tiles_ * tile_outputs * sizeof(double)));
  return products;
}

absl::StatusOr<ExactStrip> ExactProducts::Strip(int64_t begin) const {
  const int64_t rows = std::min(strip_rows(), m_ - begin);
  ExactProductsTask task;
  task.a = a_->data() + begin * k_padded_ * (narrow_ ? 4 : 8);
  task.b = b_->data();
  task.row_tiles = TilesOf(rows);
  task.column_tiles = TilesOf(n_);
  task.k_padded = k_padded_;
  task.narrow = narrow_;
  task.sums = reinterpret_cast<double*>(sums_->data());
  QG_CUDA_RETURN_IF_ERROR(path_ == ExactCudaPath::kPlain
                              ? LaunchExactProductsPlain(task, device_->stream())
                              : LaunchExactProducts(task, device_->stream()));
  return ExactStrip{begin, rows, n_, task.sums, task.column_tiles * kExactTileRows};
}

}  // namespace quantgate
