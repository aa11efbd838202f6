// DequantizeCuda and UpdateUsagesCuda: what can be made from a quantized tensor on a GPU.
#include <bit>

#include "kernels/base/cuda_status.h"
#include "kernels/quantize/cuda/quantize_cuda.h"
#include "kernels/quantize/cuda/quantize_tiles_cuda.h"
#include "kernels/quantize/cuda/scale_kernels_cuda.h"
#include "kernels/quantize/format_quantizers.h"
#include "kernels/quantize/general/quantize_levels_cuda.h"
#include "kernels/quantize/nvfp4/quantize_nvfp4_cuda.h"
#include "kernels/tensor/device/tensor_cuda.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

absl::Status DequantizeTiles(CudaDevice& device, const QuantizedCopy& copy, Usage usage,
                             Tensor& out) {
  TileDequantization job;
  job.codes = copy.data.as<uint8_t>();
  job.element = FormatOf(copy.element);
  const ScalingTraits& traits = TraitsOf(copy.format);
  job.scales = traits.scales;
  job.block_bits = std::countr_zero(static_cast<uint32_t>(traits.block_length));
  job.has_tiles = copy.block_dim == 2;
  job.is_columnwise = usage == Usage::kColumnwise;
  job.is_turned = job.is_columnwise && traits.turns_columnwise;
  job.scale_inv = copy.scale_inv.data();
  job.rows = out.rows();
  job.columns = out.columns();
  job.out = out.data();
  job.out_format = FormatOf(out.dtype());
  return QG_CUDA_STATUS(
      LaunchDequantizeTiles(job, device.facts().multiprocessors, device.stream()));
}

absl::StatusOr<Tensor> TransposeCodes(CudaDevice& device, const QuantizedCopy& rowwise) {
  if (rowwise.element != DType::kF4E2M1x2) return Transpose2dCuda(device, rowwise.data);
  const int64_t rows = rowwise.data.rows(), columns = rowwise.data.columns() * 2;
  QG_ASSIGN_OR_RETURN(Tensor turned, device.Allocate(rowwise.data.dtype(), {columns, rows / 2}));
  QG_CUDA_RETURN_IF_ERROR(LaunchTransposeNibbles(rowwise.data.as<uint8_t>(), turned.as<uint8_t>(),
                                                 rows, columns, device.stream()));
  return turned;
}

absl::StatusOr<Tensor> TransposeReplicated(CudaDevice& device, const Tensor& scales, int side) {
  const int64_t rows = scales.rows(), tiles = scales.columns();
  QG_ASSIGN_OR_RETURN(Tensor turned, device.Allocate(scales.dtype(), {tiles * side, rows / side}));
  QG_CUDA_RETURN_IF_ERROR(LaunchTransposeReplicated(scales.as<uint8_t>(), turned.as<uint8_t>(),
                                                    rows, tiles, side, device.stream()));
  return turned;
}

absl::StatusOr<QuantizedCopy> MakeColumnwise(CudaDevice& device, const QuantizedCopy& rowwise) {
  QuantizedCopy columnwise = rowwise;
  QG_ASSIGN_OR_RETURN(columnwise.data, TransposeCodes(device, rowwise));
  const ScalingTraits& traits = TraitsOf(rowwise.format);
  if (traits.is_micro) {
    QG_ASSIGN_OR_RETURN(columnwise.scale_inv,
                        TransposeReplicated(device, rowwise.scale_inv, traits.block_length));
  } else if (traits.has_blocks()) {
    QG_ASSIGN_OR_RETURN(columnwise.scale_inv, Transpose2dCuda(device, rowwise.scale_inv));
  }
  return columnwise;
}

}  // namespace

absl::StatusOr<Tensor> DequantizeCuda(CudaDevice& device, const QuantizedTensor& quantized,
                                      Usage usage, DType out_dtype) {
  QG_RETURN_IF_ERROR(CheckDequantization(quantized, usage, out_dtype));
  const QuantizedCopy& copy = *quantized.copy(usage);
  if (TraitsOf(copy.format).scales == ScaleKind::kNone) {
    return CastTensorCuda(device, copy.data, out_dtype);
  }
  QG_ASSIGN_OR_RETURN(Tensor out, device.Allocate(out_dtype, quantized.shape));
  if (TraitsOf(copy.format).has_levels()) {
    QG_RETURN_IF_ERROR(DequantizeLevelsCuda(device, copy, usage, out));
    return out;
  }
  QG_RETURN_IF_ERROR(TraitsOf(copy.format).scales == ScaleKind::kTwoLevel
                         ? DequantizeNvfp4Cuda(device, copy, out)
                         : DequantizeTiles(device, copy, usage, out));
  return out;
}

absl::Status UpdateUsagesCuda(CudaDevice& device, QuantizedTensor& quantized, Usages usages) {
  return UpdateUsages(quantized, usages, [&](const QuantizedCopy& rowwise) {
    return MakeColumnwise(device, rowwise);
  });
}

}  // namespace quantgate
