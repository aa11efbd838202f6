// What can be made from a quantized tensor on a GPU: values, and the other direction.
#include "kernels/base/cuda_status.h"
#include "kernels/quantize/format_quantizers.h"
#include "kernels/quantize/quantize_cuda.h"
#include "kernels/quantize/quantize_nvfp4_cuda.h"
#include "kernels/quantize/scale_kernels_cuda.h"
#include "kernels/quantize/tile_formats_cuda.h"
#include "kernels/tensor/tensor_cuda.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

absl::Status DequantizeTiles(CudaDevice& device, const QuantizedCopy& copy, Usage usage,
                             Tensor& out) {
  TileDequantization job;
  job.codes = copy.data.as<uint8_t>();
  job.element = FormatOf(copy.element);
  job.scales = TileScalesOf(copy.format);
  job.has_tiles = copy.block_dim == 2;
  job.is_columnwise = usage == Usage::kColumnwise;
  job.scale_inv = copy.scale_inv.data();
  job.rows = out.rows();
  job.columns = out.columns();
  job.out = out.data();
  job.out_format = FormatOf(out.dtype());
  return QG_CUDA_STATUS(
      LaunchDequantizeTiles(job, device.facts().multiprocessors, device.stream()));
}

absl::Status MakeColumnwiseNvfp4(CudaDevice& device, const QuantizedCopy& rowwise,
                                 QuantizedCopy& columnwise) {
  const int64_t rows = rowwise.data.rows(), columns = rowwise.data.columns() * 2;
  const int64_t tiles = rowwise.scale_inv.columns();
  QG_ASSIGN_OR_RETURN(columnwise.data, device.Allocate(rowwise.data.dtype(), {columns, rows / 2}));
  QG_CUDA_RETURN_IF_ERROR(LaunchTransposeNibbles(
      rowwise.data.as<uint8_t>(), columnwise.data.as<uint8_t>(), rows, columns, device.stream()));
  QG_ASSIGN_OR_RETURN(columnwise.scale_inv,
                      device.Allocate(rowwise.scale_inv.dtype(),
                                      {columns, rows / BlockLength(QuantizerFormat::kNvfp4)}));
  return QG_CUDA_STATUS(LaunchTransposeReplicated(rowwise.scale_inv.as<uint8_t>(),
                                                  columnwise.scale_inv.as<uint8_t>(), rows, tiles,
                                                  device.stream()));
}

absl::StatusOr<QuantizedCopy> MakeColumnwise(CudaDevice& device, const QuantizedCopy& rowwise) {
  QuantizedCopy columnwise = rowwise;
  if (rowwise.format == QuantizerFormat::kNvfp4) {
    QG_RETURN_IF_ERROR(MakeColumnwiseNvfp4(device, rowwise, columnwise));
    return columnwise;
  }
  QG_ASSIGN_OR_RETURN(columnwise.data, Transpose2dCuda(device, rowwise.data));
  if (rowwise.format == QuantizerFormat::kFp8Block) {
    QG_ASSIGN_OR_RETURN(columnwise.scale_inv, Transpose2dCuda(device, rowwise.scale_inv));
  }
  return columnwise;
}

}  // namespace

absl::StatusOr<Tensor> DequantizeCuda(CudaDevice& device, const QuantizedTensor& quantized,
                                      Usage usage, DType out_dtype) {
  QG_RETURN_IF_ERROR(CheckDequantization(quantized, usage, out_dtype));
  const QuantizedCopy& copy = *quantized.copy(usage);
  if (copy.format == QuantizerFormat::kIdentity) {
    return CastTensorCuda(device, copy.data, out_dtype);
  }
  QG_ASSIGN_OR_RETURN(Tensor out, device.Allocate(out_dtype, quantized.shape));
  QG_RETURN_IF_ERROR(copy.format == QuantizerFormat::kNvfp4
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
