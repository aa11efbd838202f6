// The general path of the CPU engine: every format by the steps of library_rule.h, first the scales
// of all units, then the codes.
#include "kernels/quantize/general/quantize_general.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/base/round_up.h"
#include "kernels/base/status_macros.h"
#include "kernels/quantize/compiled_formats.h"
#include "kernels/quantize/element_count.h"
#include "kernels/quantize/general/quantize_levels.h"
#include "kernels/quantize/quantized_outline.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

constexpr int64_t kGrainElements = 1 << 14;

/// One direction of a request.
struct Direction {
  const FormatRequest& request;
  LibraryRule rule;
  GeneralGrid grid;
  float tensor_amax = 0.0f;
  std::vector<UnitScale> units = {};
};

/// max |x| of a unit, exact; NaN as the rule has it.
template <class Source>
float UnitAmax(const Direction& direction, const GeneralGrid::Unit& unit) {
  const auto* source = direction.request.source.as<typename Source::Storage>();
  const bool takes_nan = UnitTakesNan(direction.rule);
  uint32_t amax = 0;
  for (int64_t line = unit.line; line < unit.line_end; ++line) {
    for (int64_t i = unit.begin; i < unit.end; ++i) {
      const uint32_t magnitude =
          source[direction.grid.SourceIndex(line, i)] & (FormatConstants<Source>::kSignMask - 1u);
      if (magnitude > amax && (takes_nan || magnitude <= kBeyondMaxFinite<Source>)) {
        amax = magnitude;
      }
    }
  }
  return DecodeFloat<Source>(static_cast<typename Source::Storage>(amax));
}

void StoreScale(const GeneralGrid& grid, const GeneralGrid::Unit& place, const UnitScale& unit,
                Tensor& scales) {
  for (int64_t i = 0; i < grid.ScaleCopies(place); ++i) {
    const int64_t index = grid.ScaleIndex(place, place.line + i);
    if (scales.dtype() == DType::kF32) {
      scales.as<float>()[index] = unit.scale_inv;
    } else {
      scales.as<uint8_t>()[index] = unit.code;
    }
  }
}

template <class Source, class Element>
void MakeScales(Direction& direction, Tensor& scales) {
  const GeneralGrid& grid = direction.grid;
  direction.units.resize(static_cast<size_t>(grid.units));
  const int64_t grain = std::max<int64_t>(kGrainElements / (grid.unit_lines * grid.unit_length), 1);
  ParallelFor(direction.request.context, grid.units, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const GeneralGrid::Unit place = grid.UnitAt(i);
      UnitScale& unit = direction.units[static_cast<size_t>(i)];
      unit = MakeUnitScale<Element>(direction.rule, UnitAmax<Source>(direction, place),
                                    direction.tensor_amax);
      StoreScale(grid, place, unit, scales);
    }
  });
}

/// Writes the codes in the order in which they are stored; two E2M1 codes share a byte.
template <class Source, class Element>
QuantizationCounts Encode(const Direction& direction, Tensor& codes) {
  constexpr int kPerByte = FormatConstants<Element>::kBits == 4 ? 2 : 1;
  const GeneralGrid& grid = direction.grid;
  const auto* source = direction.request.source.as<typename Source::Storage>();
  auto* bytes = codes.as<uint8_t>();
  std::mutex mutex;
  QuantizationCounts counts;
  ParallelFor(direction.request.context, grid.lines * grid.length / kPerByte, kGrainElements,
              [&](int64_t begin, int64_t end) {
                QuantizationCounts part;
                for (int64_t i = begin; i < end; ++i) {
                  uint8_t byte = 0;
                  for (int j = 0; j < kPerByte; ++j) {
                    const auto [line, element] = grid.PlaceOf(i * kPerByte + j);
                    const auto bits = source[grid.SourceIndex(line, element)];
                    const UnitScale& unit =
                        direction.units[static_cast<size_t>(grid.UnitOf(line, element))];
                    const float scaled =
                        ScaledElement(direction.rule, unit, DecodeFloat<Source>(bits));
                    const uint8_t code = ElementCode<Element>(direction.rule, scaled);
                    CountElement<Element>(FloatClassOf<Source>(bits), scaled, code,
                                          direction.rule.rounding, part);
                    byte = static_cast<uint8_t>(byte | code << (4 * j));
                  }
                  bytes[i] = byte;
                }
                const std::lock_guard<std::mutex> lock(mutex);
                AddCounts(part, counts);
              });
  return counts;
}

/// The scale of a per-tensor quantization, with its amax.
template <class Element>
absl::Status MakeTensorScale(Direction& direction, QuantizedCopy& copy) {
  const FormatRequest& request = direction.request;
  const Tensor& group = request.arguments.group_amax_rowwise;
  const bool is_delayed = request.spec.scaling == Scaling::kDelayed;
  const bool is_of_group = !is_delayed && group.has_value();
  const float amax = is_of_group ? *group.as<float>() : TensorAmax(request.source, request.context);
  UnitScale unit;
  if (is_delayed) {
    unit = GivenUnitScale(direction.rule, *request.arguments.scale.as<float>());
  } else if (request.source.element_count() == 0 && !is_of_group) {
    unit = GivenUnitScale(direction.rule, 1.0f);
  } else {
    unit = MakeUnitScale<Element>(direction.rule, amax, 0.0f);
  }
  direction.units = {unit};
  QG_ASSIGN_OR_RETURN(copy.amax, Tensor::FromScalar(amax));
  QG_ASSIGN_OR_RETURN(copy.scale_inv, Tensor::FromScalar(unit.scale_inv));
  QG_ASSIGN_OR_RETURN(copy.scale, Tensor::FromScalar(unit.scale));
  return absl::OkStatus();
}

absl::Status SetTensorAmax(Direction& direction, Usage usage, QuantizedCopy& copy) {
  if (!copy.amax.has_value()) return absl::OkStatus();
  const FormatRequest& request = direction.request;
  const Tensor& group = usage == Usage::kRowwise ? request.arguments.group_amax_rowwise
                                                 : request.arguments.group_amax_columnwise;
  direction.tensor_amax =
      group.has_value() ? *group.as<float>() : TensorAmax(request.source, request.context);
  QG_ASSIGN_OR_RETURN(copy.amax, Tensor::FromScalar(direction.tensor_amax));
  return absl::OkStatus();
}

/// Codes and scales of one direction.
template <class Source, class Element>
absl::StatusOr<QuantizationCounts> QuantizeDirection(const FormatRequest& request, Usage usage,
                                                     QuantizedTensor& quantized) {
  const QuantizerSpec& spec = request.spec;
  const Tensor& source = request.source;
  Direction direction = {request, MakeLibraryRule(spec, source.dtype()),
                         MakeGeneralGrid(source.rows(), source.columns(), spec, usage)};
  QG_ASSIGN_OR_RETURN(QuantizedCopy copy, OutlineCopy(spec, usage, source.dtype(), source.shape()));
  QG_ASSIGN_OR_RETURN(copy.data, CodesMemory(request, usage, copy.data.dtype(), copy.data.shape()));
  if (spec.traits().scales == ScaleKind::kTensor) {
    QG_RETURN_IF_ERROR(MakeTensorScale<Element>(direction, copy));
  } else {
    QG_ASSIGN_OR_RETURN(copy.scale_inv,
                        Tensor::Allocate(copy.scale_inv.dtype(), copy.scale_inv.shape()));
    QG_RETURN_IF_ERROR(SetTensorAmax(direction, usage, copy));
    MakeScales<Source, Element>(direction, copy.scale_inv);
  }
  QG_RETURN_IF_ERROR(request.context.CheckCancelled());
  const QuantizationCounts counts = Encode<Source, Element>(direction, copy.data);
  QG_RETURN_IF_ERROR(request.context.CheckCancelled());
  quantized.copy(usage) = std::move(copy);
  return counts;
}

}  // namespace

StepFormat StepFormatOf(DType source) {
  if (source == DType::kBF16) return StepFormat::kBF16;
  return source == DType::kF16 ? StepFormat::kF16 : StepFormat::kF32;
}

LibraryRule MakeLibraryRule(const QuantizerSpec& spec, DType source) {
  LibraryRule rule;
  rule.scales = spec.traits().scales;
  if (rule.scales == ScaleKind::kLine) rule.scales = ScaleKind::kF32;  // A line is one block.
  rule.options = {
      .rule = spec.scale_rule, .power_2 = spec.power_2_scale, .amax_epsilon = spec.amax_epsilon};
  if (rule.scales == ScaleKind::kF32) rule.options.value_for_infinity = LargestFiniteOf(source);
  rule.source = StepFormatOf(source);
  rule.scale_dtype = spec.scale_dtype;
  rule.operation_dtype = spec.operation_dtype;
  rule.operation = spec.element_operation;
  rule.zero_scale = spec.zero_scale;
  rule.zero_sign = spec.zero_sign;
  rule.rounding = spec.element_rounding;
  rule.overflow = spec.overflow;
  rule.subnormals = spec.subnormals();
  rule.is_whole = rule.scales == ScaleKind::kTensor;
  rule.e4m3_max = spec.e4m3_max;
  return rule;
}

GeneralGrid MakeGeneralGrid(int64_t rows, int64_t columns, const QuantizerSpec& spec, Usage usage) {
  const ScalingTraits& traits = spec.traits();
  const bool is_rowwise = usage == Usage::kRowwise;
  GeneralGrid grid;
  grid.lines = is_rowwise ? rows : columns;
  grid.length = is_rowwise ? columns : rows;
  grid.line_stride = is_rowwise ? columns : 1;
  grid.element_stride = is_rowwise ? 1 : columns;
  grid.stores_by_line = is_rowwise || traits.turns_columnwise;
  if (!traits.has_many_scales()) {
    // The whole tensor is one unit.
    grid.unit_lines = std::max<int64_t>(grid.lines, 1);
    grid.unit_length = std::max<int64_t>(grid.length, 1);
    grid.units_across = grid.units = 1;
    return grid;
  }
  grid.unit_length = traits.block_length;
  grid.unit_lines = spec.block_dim == 2 ? traits.block_length : 1;
  grid.units_across = DivideUp(grid.length, grid.unit_length);
  if (traits.scales == ScaleKind::kLine) {  // A line has a scale without elements, too.
    grid.unit_length = std::max<int64_t>(grid.length, 1);
    grid.units_across = 1;
  }
  grid.units = DivideUp(grid.lines, grid.unit_lines) * grid.units_across;
  grid.is_replicated = spec.block_dim == 1 || traits.is_micro;
  grid.scale_line = grid.stores_by_line ? grid.units_across : 1;
  grid.scale_block = grid.stores_by_line ? 1 : grid.lines;
  return grid;
}

absl::Status QuantizeGenerally(const FormatRequest& request, QuantizedTensor& quantized) {
  absl::StatusOr<QuantizationCounts> counts = QuantizationCounts();
  for (const Usage usage : {Usage::kColumnwise, Usage::kRowwise}) {
    if (!HasUsage(request.usages, usage)) continue;
    if (request.spec.traits().has_levels()) {
      counts = QuantizeLevels(request, usage, quantized);
    } else {
      VisitFormat<SourceFormats>(request.source.dtype(), [&]<class Source>() {
        VisitFormat<GeneralFormats>(request.spec.element, [&]<class Element>() {
          counts = QuantizeDirection<Source, Element>(request, usage, quantized);
        });
      });
    }
    QG_RETURN_IF_ERROR(counts.status());
  }
  quantized.counts = *counts;  // Of the rowwise copy if there is one.
  return absl::OkStatus();
}

}  // namespace quantgate
