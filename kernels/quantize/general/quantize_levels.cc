// Formats of levels on the CPU, by the steps of level_rule.h: first the scales of all groups, then
// the codes. And back.
#include "kernels/quantize/general/quantize_levels.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/base/round_up.h"
#include "kernels/base/status_macros.h"
#include "kernels/numerics/branch_free_cast.h"
#include "kernels/quantize/compiled_formats.h"
#include "kernels/quantize/element_count.h"
#include "kernels/quantize/general/level_forms.h"
#include "kernels/quantize/general/quantize_general.h"
#include "kernels/quantize/quantized_outline.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

constexpr int64_t kGrainElements = 1 << 13;

/// One direction of a request.
struct Direction {
  const FormatRequest& request;
  LevelRule rule;
  GeneralGrid grid;
  std::vector<LevelScale> scales = {};
};

template <class Source>
GroupExtremes ExtremesOf(const Direction& direction, const GeneralGrid::Unit& unit) {
  const auto* source = direction.request.source.as<typename Source::Storage>();
  GroupExtremes group;
  bool has_one = false;
  for (int64_t line = unit.line; line < unit.line_end; ++line) {
    for (int64_t i = unit.begin; i < unit.end; ++i) {
      const float value = DecodeFloat<Source>(source[direction.grid.SourceIndex(line, i)]);
      if (value != value) continue;
      if (!has_one || value < group.least) group.least = value;
      if (!has_one || value > group.most) group.most = value;
      if (!has_one || std::fabs(value) > std::fabs(group.first_largest)) {
        group.first_largest = value;
      }
      has_one = true;
    }
  }
  group.is_partial = unit.end - unit.begin < direction.grid.unit_length;
  return group;
}

void StoreZero(float zero, int64_t index, Tensor& zeros) {
  switch (zeros.dtype()) {
    case DType::kF32:
      zeros.as<float>()[index] = zero;
      return;
    case DType::kI8:
      zeros.as<int8_t>()[index] = static_cast<int8_t>(zero);
      return;
    default:
      zeros.as<uint8_t>()[index] = static_cast<uint8_t>(zero);
      return;
  }
}

float ZeroAt(const Tensor& zeros, int64_t index) {
  switch (zeros.dtype()) {
    case DType::kF32:
      return zeros.as<float>()[index];
    case DType::kI8:
      return zeros.as<int8_t>()[index];
    default:
      return zeros.as<uint8_t>()[index];
  }
}

template <class Source>
void MakeScales(Direction& direction, QuantizedCopy& copy) {
  const GeneralGrid& grid = direction.grid;
  direction.scales.resize(static_cast<size_t>(grid.units));
  const int64_t grain = std::max<int64_t>(kGrainElements / (grid.unit_lines * grid.unit_length), 1);
  ParallelFor(direction.request.context, grid.units, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const GeneralGrid::Unit place = grid.UnitAt(i);
      LevelScale& scale = direction.scales[static_cast<size_t>(i)];
      scale = MakeLevelScale(direction.rule, ExtremesOf<Source>(direction, place));
      const int64_t index = grid.ScaleIndex(place, place.line);
      copy.scale_inv.as<float>()[index] = scale.scale_inv;
      if (copy.zero_point.has_value()) StoreZero(scale.zero, index, copy.zero_point);
    }
  });
}

/// The kind of an element by the definition of QuantizationCounts; there are no subnormals.
ElementKind KindOfLevel(const LevelRule& rule, const LevelScale& scale, FloatClass source,
                        LevelCode code) {
  if (source == FloatClass::kNan) return ElementKind::kNan;
  if (source == FloatClass::kInfinite) return ElementKind::kInfinite;
  if (source == FloatClass::kZero) return ElementKind::kZero;
  if (code.is_beyond) return ElementKind::kSaturated;
  const float value =
      LevelValue(rule.levels, rule.zero_point, code.code, scale.scale_inv, scale.zero);
  return value == 0.0f ? ElementKind::kFlushedToZero : ElementKind::kNormal;
}

template <class Source>
QuantizationCounts Encode(const Direction& direction, Tensor& codes) {
  const LevelRule& rule = direction.rule;
  const int per_byte = 8 / BitsOf(rule.levels);
  const GeneralGrid& grid = direction.grid;
  const auto* source = direction.request.source.as<typename Source::Storage>();
  auto* bytes = codes.as<uint8_t>();
  std::mutex mutex;
  QuantizationCounts counts;
  ParallelFor(direction.request.context, grid.lines * grid.length / per_byte, kGrainElements,
              [&](int64_t begin, int64_t end) {
                QuantizationCounts part;
                for (int64_t i = begin; i < end; ++i) {
                  uint8_t byte = 0;
                  for (int j = 0; j < per_byte; ++j) {
                    const auto [line, element] = grid.PlaceOf(i * per_byte + j);
                    const auto bits = source[grid.SourceIndex(line, element)];
                    const LevelScale& scale =
                        direction.scales[static_cast<size_t>(grid.UnitOf(line, element))];
                    const LevelCode code = LevelCodeOf(rule, scale, DecodeFloat<Source>(bits));
                    AddKind(KindOfLevel(rule, scale, FloatClassOf<Source>(bits), code), part);
                    byte = static_cast<uint8_t>(byte | code.code << (4 * j));
                  }
                  bytes[i] = byte;
                }
                const std::lock_guard<std::mutex> lock(mutex);
                AddCounts(part, counts);
              });
  return counts;
}

/// Codes, scales and zero points of one direction.
template <class Source>
absl::StatusOr<QuantizationCounts> QuantizeDirection(const FormatRequest& request, Usage usage,
                                                     QuantizedTensor& quantized) {
  const QuantizerSpec& spec = request.spec;
  const Tensor& source = request.source;
  Direction direction = {
      request, MakeLevelRule(spec, source.dtype()),
      MakeLevelGrid(source.rows(), source.columns(), spec.format, spec.group, usage)};
  QG_ASSIGN_OR_RETURN(QuantizedCopy copy, OutlineCopy(spec, usage, source.dtype(), source.shape()));
  for (Tensor* const tensor : {&copy.data, &copy.scale_inv, &copy.zero_point}) {
    if (!tensor->has_value()) continue;
    QG_ASSIGN_OR_RETURN(*tensor, Tensor::Allocate(tensor->dtype(), tensor->shape()));
  }
  MakeScales<Source>(direction, copy);
  QG_RETURN_IF_ERROR(request.context.CheckCancelled());
  const QuantizationCounts counts = Encode<Source>(direction, copy.data);
  QG_RETURN_IF_ERROR(request.context.CheckCancelled());
  quantized.copy(usage) = std::move(copy);
  return counts;
}

template <class Out>
void Dequantize(const QuantizedCopy& copy, const GeneralGrid& grid, Tensor& out,
                const ExecutionContext& context) {
  const Levels levels = LevelsOf(copy.element);
  const int per_byte = 8 / BitsOf(levels);
  const bool has_zero = copy.zero_point.has_value();
  const ZeroPoint kind = !has_zero                                ? ZeroPoint::kNone
                         : copy.zero_point.dtype() == DType::kF32 ? ZeroPoint::kFloat
                                                                  : ZeroPoint::kInteger;
  const auto* bytes = copy.data.as<uint8_t>();
  const auto* scales = copy.scale_inv.as<float>();
  auto* to = out.as<typename Out::Storage>();
  ParallelFor(context, grid.lines * grid.length, kGrainElements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto [line, element] = grid.PlaceOf(i);
      const uint8_t byte = bytes[i / per_byte];
      const auto code = static_cast<uint8_t>(per_byte == 1 ? byte : byte >> (i % 2 * 4) & 15);
      const int64_t group = grid.UnitOf(line, element);
      const float zero = has_zero ? ZeroAt(copy.zero_point, group) : 0.0f;
      to[grid.SourceIndex(line, element)] =
          EncodeBranchFree<Out>(LevelValue(levels, kind, code, scales[group], zero));
    }
  });
}

}  // namespace

LevelRule MakeLevelRule(const QuantizerSpec& spec, DType source) {
  LevelRule rule;
  rule.rule = spec.scale_rule;
  rule.levels = LevelsOf(spec.element);
  rule.zero_point = spec.zero_point;
  rule.source = StepFormatOf(source);
  rule.operation_dtype = spec.operation_dtype;
  rule.is_whole = spec.group == kTensorGroup;
  return rule;
}

GeneralGrid MakeLevelGrid(int64_t rows, int64_t columns, QuantizerFormat format, int group,
                          Usage usage) {
  const bool has_runs = TraitsOf(format).has_runs;
  const bool is_rowwise = usage == Usage::kRowwise;
  GeneralGrid grid;
  grid.lines = has_runs ? 1 : is_rowwise ? rows : columns;
  grid.length = has_runs ? rows * columns : is_rowwise ? columns : rows;
  grid.line_stride = is_rowwise ? columns : 1;
  grid.element_stride = is_rowwise ? 1 : columns;
  grid.unit_length = group > 0 ? group : std::max<int64_t>(grid.length, 1);
  grid.unit_lines = group == kTensorGroup ? std::max<int64_t>(grid.lines, 1) : 1;
  // A tensor and a line have a scale without elements, too.
  grid.units_across = group > 0 ? DivideUp(grid.length, grid.unit_length) : 1;
  grid.units = group == kTensorGroup ? 1 : grid.lines * grid.units_across;
  grid.scale_line = grid.units_across;
  return grid;
}

absl::Status QuantizeLevels(const FormatRequest& request, QuantizedTensor& quantized) {
  absl::StatusOr<QuantizationCounts> counts = QuantizationCounts();
  for (const Usage usage : {Usage::kColumnwise, Usage::kRowwise}) {
    if (!HasUsage(request.usages, usage)) continue;
    VisitFormat<SourceFormats>(request.source.dtype(), [&]<class Source>() {
      counts = QuantizeDirection<Source>(request, usage, quantized);
    });
    QG_RETURN_IF_ERROR(counts.status());
  }
  quantized.counts = *counts;  // Of the rowwise copy if there is one.
  return absl::OkStatus();
}

absl::Status DequantizeLevels(const QuantizedCopy& copy, Usage usage, Tensor& out,
                              const ExecutionContext& context) {
  const GeneralGrid grid = MakeLevelGrid(out.rows(), out.columns(), copy.format, copy.group, usage);
  VisitFormat<SourceFormats>(out.dtype(),
                             [&]<class Out>() { Dequantize<Out>(copy, grid, out, context); });
  return context.CheckCancelled();
}

}  // namespace quantgate
