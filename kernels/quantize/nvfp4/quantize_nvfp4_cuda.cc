#include "kernels/quantize/nvfp4/quantize_nvfp4_cuda.h"

#include <cstdint>
#include <utility>

#include "kernels/base/cuda_status.h"
#include "kernels/quantize/nvfp4/nvfp4_kernels.h"
#include "kernels/quantize/nvfp4/nvfp4_tile_kernels.h"

namespace quantgate {
namespace {

constexpr int64_t kLength = 16;

Nvfp4Float FloatOf(DType dtype) {
  if (dtype == DType::kF32) return Nvfp4Float::kF32;
  return dtype == DType::kBF16 ? Nvfp4Float::kBF16 : Nvfp4Float::kF16;
}

/// Everything of a direction but its addresses.
Nvfp4Parameters ParametersOf(const Tensor& source, const QuantizerSpec& spec, Usage usage,
                             const QuantizeArguments& arguments) {
  const bool is_rowwise = usage == Usage::kRowwise;
  Nvfp4Parameters parameters;
  parameters.source = source.data();
  parameters.source_type = FloatOf(source.dtype());
  parameters.rows = source.rows();
  parameters.columns = source.columns();
  parameters.is_rowwise = is_rowwise;
  parameters.has_tiles = spec.block_dim == 2;
  parameters.hadamard = spec.hadamard && !is_rowwise;
  parameters.row_scaled = spec.row_scaled;
  parameters.picks = spec.four_over_six != FourOverSix::kNone;
  parameters.squares = spec.four_over_six == FourOverSix::kMse;
  parameters.scale_rule = ResolveScaleRule(spec.scale_rule, spec.format);
  parameters.rounding = spec.element_rounding;
  parameters.e4m3_max = spec.e4m3_max;
  parameters.stream = {arguments.seed, arguments.call_id, is_rowwise ? 0u : 1u};
  parameters.line_offset = is_rowwise ? arguments.row_offset : arguments.column_offset;
  parameters.block_offset = (is_rowwise ? arguments.column_offset : arguments.row_offset) / kLength;
  return parameters;
}

/// A copy as yet unwritten, but for the amax of a group, which it shares, and where the kernels
/// write it.
absl::Status AllocateCopy(CudaDevice& device, const Tensor& source, const QuantizerSpec& spec,
                          const Tensor& group_amax, Nvfp4Parameters& parameters,
                          QuantizedCopy& copy) {
  copy = {};
  copy.format = spec.format;
  copy.element = spec.element;
  copy.block_dim = spec.block_dim;
  copy.e4m3_max = spec.e4m3_max;
  copy.hadamard = parameters.hadamard;
  const int64_t lines = parameters.lines(), length = parameters.length();
  Shape shape = parameters.is_rowwise ? source.shape() : Shape{lines, length};
  shape.back() /= 2;
  QG_ASSIGN_OR_RETURN(copy.data, device.Allocate(spec.element, std::move(shape)));
  QG_ASSIGN_OR_RETURN(copy.scale_inv, device.Allocate(DType::kF8E4M3, {lines, length / kLength}));
  parameters.codes = copy.data.as<uint8_t>();
  parameters.scales = copy.scale_inv.as<uint8_t>();
  if (parameters.scale_rule == ScaleRule::kSingleLevel) return absl::OkStatus();
  if (!spec.row_scaled && group_amax.has_value()) {
    QG_ASSIGN_OR_RETURN(const Tensor group, device.ToDevice(group_amax));
    QG_ASSIGN_OR_RETURN(copy.amax, group.Reinterpret(DType::kF32, {1}));
  } else {
    QG_ASSIGN_OR_RETURN(copy.amax,
                        device.Allocate(DType::kF32, {spec.row_scaled ? lines : int64_t{1}}));
  }
  parameters.amax = copy.amax.as<float>();
  return absl::OkStatus();
}

/// One direction that is wanted.
struct Direction {
  Nvfp4Parameters parameters;
  bool finds_amax = false;  ///< It is given otherwise, or there is none.
};

absl::StatusOr<Direction> PrepareDirection(CudaDevice& device, const Tensor& source,
                                           const QuantizerSpec& spec, Usage usage,
                                           const QuantizeArguments& arguments,
                                           QuantizedCopy* copy) {
  Direction direction = {ParametersOf(source, spec, usage, arguments)};
  if (copy == nullptr) return direction;
  const Tensor& group_amax =
      usage == Usage::kRowwise ? arguments.group_amax_rowwise : arguments.group_amax_columnwise;
  QG_RETURN_IF_ERROR(AllocateCopy(device, source, spec, group_amax, direction.parameters, *copy));
  direction.finds_amax =
      direction.parameters.amax != nullptr && (spec.row_scaled || !group_amax.has_value());
  return direction;
}

absl::Status QuantizePlainly(CudaDevice& device, const Direction& direction) {
  if (direction.parameters.codes == nullptr) return absl::OkStatus();
  if (direction.finds_amax) {
    QG_CUDA_RETURN_IF_ERROR(LaunchNvfp4Amax(direction.parameters, device.stream()));
  }
  return QG_CUDA_STATUS(LaunchNvfp4Quantize(direction.parameters, device.stream()));
}

bool HasTunedKernels(const Nvfp4Parameters& parameters) {
  constexpr int64_t kRowsMax = 65535 * 512, kColumnsMax = int64_t{1} << 30;  // Of a grid.
  const bool is_empty = parameters.rows == 0 || parameters.columns == 0;
  return !is_empty && parameters.source_type == Nvfp4Float::kBF16 && parameters.rows <= kRowsMax &&
         parameters.columns <= kColumnsMax &&
         reinterpret_cast<uintptr_t>(parameters.source) % 16 == 0 &&
         parameters.scale_rule == ScaleRule::kTwoLevel && !parameters.picks &&
         !parameters.row_scaled && parameters.rounding != ElementRounding::kNearestAway;
}

absl::Status QuantizeByTiles(CudaDevice& device, const Direction& rowwise,
                             const Direction& columnwise, unsigned long long* counts) {
  Nvfp4TileParameters parameters = {rowwise.parameters, columnwise.parameters};
  parameters.finds_rowwise = rowwise.finds_amax;
  parameters.finds_columnwise = columnwise.finds_amax;
  QG_ASSIGN_OR_RETURN(Tensor tables, device.Allocate(DType::kU8, {sizeof(Nvfp4Tables)}));
  parameters.tables = tables.as<Nvfp4Tables>();
  parameters.counts = counts;
  parameters.multiprocessors = device.facts().multiprocessors;
  QG_CUDA_RETURN_IF_ERROR(LaunchNvfp4Survey(parameters, device.stream()));
  return QG_CUDA_STATUS(LaunchNvfp4Tiles(parameters, device.stream()));
}

}  // namespace

absl::Status QuantizeNvfp4Cuda(CudaDevice& device, const Tensor& source, const QuantizerSpec& spec,
                               QuantizedCopy* rowwise, QuantizedCopy* columnwise,
                               const QuantizeArguments& arguments, Tensor& device_counts,
                               Nvfp4Path path) {
  QG_ASSIGN_OR_RETURN(Direction rows,
                      PrepareDirection(device, source, spec, Usage::kRowwise, arguments, rowwise));
  QG_ASSIGN_OR_RETURN(Direction columns, PrepareDirection(device, source, spec, Usage::kColumnwise,
                                                          arguments, columnwise));
  auto* counts = device_counts.has_value() ? device_counts.as<unsigned long long>() : nullptr;
  (rowwise != nullptr ? rows : columns).parameters.counts = counts;
  if (path == Nvfp4Path::kTuned && HasTunedKernels(rows.parameters)) {
    return QuantizeByTiles(device, rows, columns, counts);
  }
  QG_RETURN_IF_ERROR(QuantizePlainly(device, rows));
  return QuantizePlainly(device, columns);
}

absl::Status DequantizeNvfp4Cuda(CudaDevice& device, const QuantizedCopy& copy, Tensor& out,
                                 Nvfp4Path path) {
  Nvfp4DequantizeParameters parameters;
  parameters.rows = out.rows();
  parameters.columns = out.columns();
  parameters.codes = copy.data.as<uint8_t>();
  parameters.scales = copy.scale_inv.as<uint8_t>();
  if (copy.amax.has_value()) parameters.amax = copy.amax.as<float>();
  parameters.row_scaled = copy.is_row_scaled();
  parameters.e4m3_max = copy.e4m3_max;
  parameters.out = out.data();
  parameters.out_type = FloatOf(out.dtype());
  const bool is_aligned = reinterpret_cast<uintptr_t>(parameters.out) % 16 == 0 &&
                          reinterpret_cast<uintptr_t>(parameters.codes) % 4 == 0;
  if (path == Nvfp4Path::kTuned && is_aligned) {
    return QG_CUDA_STATUS(LaunchNvfp4DequantizeEights(parameters, device.stream()));
  }
  return QG_CUDA_STATUS(LaunchNvfp4Dequantize(parameters, device.stream()));
}

}  // namespace quantgate
