// Formats of levels on the CPU, by the steps of level_rule.h: first the scales of all groups, then
// the codes. And back. Where there are vector loops, groups are measured and encoded one by one,
// while they are in the caches.
#include "kernels/quantize/general/quantize_levels.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/base/round_up.h"
#include "kernels/base/status_macros.h"
#include "kernels/numerics/branch_free_cast.h"
#include "kernels/quantize/compiled_formats.h"
#include "kernels/quantize/cpu/block_kernels.h"
#include "kernels/quantize/cpu/quantize_kernels.h"
#include "kernels/quantize/element_count.h"
#include "kernels/quantize/general/level_forms.h"
#include "kernels/quantize/general/quantize_general.h"
#include "kernels/quantize/quantized_outline.h"
#include "kernels/tensor/transpose.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

constexpr int64_t kGrainElements = 1 << 13;

/// One direction of a request.
struct Direction {
  const FormatRequest& request;
  Tensor source;  ///< That of the request, or its transpose.
  LevelRule rule;
  GeneralGrid grid;
  std::vector<LevelScale> scales = {};
};

template <class Source>
GroupExtremes ExtremesOf(const Direction& direction, const GeneralGrid::Unit& unit) {
  const auto* source = direction.source.as<typename Source::Storage>();
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

/// Groups and their scales are in one order (MakeLevelGrid).
void StoreScale(int64_t unit, const LevelScale& scale, QuantizedCopy& copy) {
  copy.scale_inv.as<float>()[unit] = scale.scale_inv;
  if (copy.zero_point.has_value()) StoreZero(scale.zero, unit, copy.zero_point);
}

template <class Source>
void MakeScales(Direction& direction, QuantizedCopy& copy) {
  const GeneralGrid& grid = direction.grid;
  direction.scales.resize(static_cast<size_t>(grid.units));
  const int64_t grain = std::max<int64_t>(kGrainElements / (grid.unit_lines * grid.unit_length), 1);
  ParallelFor(direction.request.context, grid.units, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      LevelScale& scale = direction.scales[static_cast<size_t>(i)];
      scale = MakeLevelScale(direction.rule, ExtremesOf<Source>(direction, grid.UnitAt(i)));
      StoreScale(i, scale, copy);
    }
  });
}

/// The code of an element, which is counted.
template <class Source>
uint8_t EncodeElement(const LevelRule& rule, const LevelScale& scale, typename Source::Storage bits,
                      QuantizationCounts& counts) {
  const LevelCode code = LevelCodeOf(rule, scale, DecodeFloat<Source>(bits));
  AddKind(KindOfLevel(rule, scale, FloatClassOf<Source>(bits), code), counts);
  return code.code;
}

template <class Source>
QuantizationCounts Encode(const Direction& direction, Tensor& codes) {
  const LevelRule& rule = direction.rule;
  const int per_byte = 8 / BitsOf(rule.levels);
  const GeneralGrid& grid = direction.grid;
  const auto* source = direction.source.as<typename Source::Storage>();
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
                    const LevelScale& scale =
                        direction.scales[static_cast<size_t>(grid.UnitOf(line, element))];
                    const uint8_t code = EncodeElement<Source>(
                        rule, scale, source[grid.SourceIndex(line, element)], part);
                    byte = static_cast<uint8_t>(byte | code << (4 * j));
                  }
                  bytes[i] = byte;
                }
                const std::lock_guard<std::mutex> lock(mutex);
                AddCounts(part, counts);
              });
  return counts;
}

// ---- with vector loops

/// What a piece of a group of the whole tensor has.
constexpr int64_t kPieceElements = 1 << 16;
/// How many groups are measured before they are encoded, and at most about how many elements.
constexpr int64_t kBatchRuns = 256, kBatchElements = 1 << 14;

/// The vector loops of a direction: those of the usual rules, of integers without zero points by
/// products in fp32, and of bitsandbytes' tables. Null where there are none.
LevelFunctions VectorLoops(const FormatRequest& request, const LevelRule& rule,
                           const GeneralGrid& grid) {
  const bool is_table = IsTable(rule.levels);
  const ScaleRule usual = is_table ? ScaleRule::kBitsandbytes : ScaleRule::kTorchao;
  // A group whose codes begin within a byte is left to the scalar code.
  const bool is_whole_bytes = BitsOf(rule.levels) == 8 || grid.unit_length % 2 == 0;
  if (rule.rule != usual || rule.zero_point != ZeroPoint::kNone ||
      rule.operation_dtype != StepDType::kF32 || !is_whole_bytes) {
    return {};
  }
  switch (request.context.isa) {
    case Isa::kAvx2:
      return Avx2Levels(request.source.dtype(), rule.levels);
    case Isa::kAvx512:
      return Avx512Levels(request.source.dtype(), rule.levels);
    default:
      return {};
  }
}

/// The scales of runs by their amaxes, of a rule that has loops: MakeLevelScale compiled for the
/// one rule, without its choices.
template <class Source, Levels kLevels>
[[gnu::flatten]] void MakeRunScales(const float* amaxes, int64_t runs, float* scale_invs,
                                    float* factors) {
  LevelRule rule;
  rule.rule = IsTable(kLevels) ? ScaleRule::kBitsandbytes : ScaleRule::kTorchao;
  rule.levels = kLevels;
  rule.zero_point = ZeroPoint::kNone;
  rule.source = std::is_same_v<Source, BFloat16>  ? StepFormat::kBF16
                : std::is_same_v<Source, Float16> ? StepFormat::kF16
                                                  : StepFormat::kF32;
  rule.operation_dtype = StepDType::kF32;
  for (int64_t i = 0; i < runs; ++i) {
    // The scale depends on the larger of the extremes alone.
    const LevelScale scale =
        MakeLevelScale(rule, {.least = -amaxes[i], .most = amaxes[i], .first_largest = amaxes[i]});
    scale_invs[i] = scale.scale_inv;
    factors[i] = scale.factor;
  }
}
using RunScalesFunction = void (*)(const float*, int64_t, float*, float*);
template <class Source>
RunScalesFunction RunScales(Levels levels) {
  switch (levels) {
    case Levels::kI8:
      return &MakeRunScales<Source, Levels::kI8>;
    case Levels::kI4:
      return &MakeRunScales<Source, Levels::kI4>;
    case Levels::kNf4:
      return &MakeRunScales<Source, Levels::kNf4>;
    default:
      return &MakeRunScales<Source, Levels::kBnbFp4>;
  }
}

/// Adds what the loops have counted of `count` elements.
void AddLevelTally(const TileTally& tally, int64_t count, QuantizationCounts& counts) {
  AddTally({.source_zero = tally.source_zero,
            .code_zero = tally.code_zero,
            .code_below_normal = tally.code_below_normal,
            .saturated = tally.saturated},
           count, counts);
}

/// A direction whose groups lie one after the other in the source and in the codes.
template <class Source>
class RunQuantizer {
 public:
  RunQuantizer(const Direction& direction, const LevelFunctions& loops, QuantizedCopy& copy)
      : direction_(direction),
        loops_(loops),
        make_scales_(RunScales<Source>(direction.rule.levels)),
        copy_(copy) {}

  QuantizationCounts operator()() {
    const GeneralGrid& grid = direction_.grid;
    const int64_t count = grid.lines * grid.length;
    if (direction_.rule.is_whole) {
      QuantizeWhole(count);
    } else {
      const int64_t grain = std::max<int64_t>(kPieceElements / grid.unit_length, 1);
      ParallelFor(direction_.request.context, grid.units, grain, [&](int64_t begin, int64_t end) {
        QuantizationCounts part;
        const int64_t step = std::clamp<int64_t>(kBatchElements / grid.unit_length, 1, kBatchRuns);
        for (int64_t i = begin; i < end; i += step) {
          QuantizeBatch(i, std::min(i + step, end), part);
        }
        Add(part);
      });
    }
    return counts_;
  }

 private:
  using Storage = typename Source::Storage;

  void Add(const QuantizationCounts& part) {
    const std::lock_guard<std::mutex> lock(mutex_);
    AddCounts(part, counts_);
  }

  LevelRuns RunsAt(int64_t first, int64_t runs, int64_t length, const float* factors) const {
    const int per_byte = 8 / BitsOf(direction_.rule.levels);
    return {direction_.source.template as<Storage>() + first, runs, length, factors,
            copy_.data.template as<uint8_t>() + first / per_byte};
  }
  /// The first element of a group.
  int64_t FirstOf(const GeneralGrid::Unit& place) const {
    return place.line * direction_.grid.length + place.begin;
  }

  /// Whether the loops encode a group: elements are finite, and no code but that of 0 has a value
  /// that rounds to 0.
  static bool IsForLoops(uint32_t amax_code, float scale_inv) {
    constexpr float kLeastScale = 0x1p-100f;  // 1 / 192 of it is a normal number.
    return amax_code < kBeyondMaxFinite<Source> && (amax_code == 0 || scale_inv >= kLeastScale);
  }

  /// Elements [begin, end) of the codes, which begin and end with a byte.
  void EncodeScalar(const LevelScale& scale, int64_t begin, int64_t end,
                    QuantizationCounts& counts) {
    const auto* source = direction_.source.template as<Storage>();
    auto* bytes = copy_.data.template as<uint8_t>();
    const int per_byte = 8 / BitsOf(direction_.rule.levels);
    for (int64_t i = begin; i < end; i += per_byte) {
      uint8_t byte = 0;
      for (int j = 0; j < per_byte; ++j) {
        const uint8_t code = EncodeElement<Source>(direction_.rule, scale, source[i + j], counts);
        byte = static_cast<uint8_t>(byte | code << (4 * j));
      }
      bytes[i / per_byte] = byte;
    }
  }

  /// A group that the loops do not take.
  void QuantizeScalar(int64_t unit, QuantizationCounts& counts) {
    const GeneralGrid::Unit place = direction_.grid.UnitAt(unit);
    const LevelScale scale = MakeLevelScale(direction_.rule, ExtremesOf<Source>(direction_, place));
    StoreScale(unit, scale, copy_);
    EncodeScalar(scale, FirstOf(place), FirstOf(place) + place.count(), counts);
  }

  /// Groups [begin, end), at most kBatchRuns.
  void QuantizeBatch(int64_t begin, int64_t end, QuantizationCounts& counts) {
    const GeneralGrid& grid = direction_.grid;
    for (int64_t i = begin; i < end;) {
      // Whole groups up to the end of the line, then its last one, if that is shorter.
      const GeneralGrid::Unit first = grid.UnitAt(i);
      const int64_t whole = (grid.length - first.begin) / grid.unit_length;
      // Where all groups are whole, lines follow one another.
      const int64_t runs = grid.length % grid.unit_length == 0 ? end - i : std::min(whole, end - i);
      if (runs == 0) {
        QuantizeScalar(i, counts);
        ++i;
        continue;
      }
      QuantizeRuns(i, runs, counts);
      i += runs;
    }
  }

  /// Whole groups.
  void QuantizeRuns(int64_t unit, int64_t runs, QuantizationCounts& counts) {
    const GeneralGrid& grid = direction_.grid;
    const int64_t length = grid.unit_length, from = FirstOf(grid.UnitAt(unit));
    uint32_t amax_codes[kBatchRuns];
    float amaxes[kBatchRuns], factors[kBatchRuns];
    float* const scale_invs = copy_.scale_inv.as<float>() + unit;
    loops_.amaxes(RunsAt(from, runs, length, nullptr), amax_codes);
    for (int64_t i = 0; i < runs; ++i) {
      amaxes[i] = DecodeFloat<Source>(static_cast<Storage>(amax_codes[i]));
    }
    make_scales_(amaxes, runs, scale_invs, factors);
    int64_t begin = 0;  // Of the groups that have scales and no codes.
    const auto encode = [&](int64_t end) {
      if (begin == end) return;
      TileTally tally;
      loops_.encode(RunsAt(from + begin * length, end - begin, length, factors + begin), tally);
      AddLevelTally(tally, (end - begin) * length, counts);
    };
    for (int64_t i = 0; i < runs; ++i) {
      if (IsForLoops(amax_codes[i], scale_invs[i])) continue;
      encode(i);
      QuantizeScalar(unit + i, counts);
      begin = i + 1;
    }
    encode(runs);
  }

  /// One group of all elements.
  void QuantizeWhole(int64_t count) {
    const ExecutionContext& context = direction_.request.context;
    uint32_t amax = 0;
    ParallelFor(context, count, kPieceElements, [&](int64_t begin, int64_t end) {
      uint32_t of_piece = 0;
      loops_.amaxes(RunsAt(begin, 1, end - begin, nullptr), &of_piece);
      const std::lock_guard<std::mutex> lock(mutex_);
      amax = std::max(amax, of_piece);
    });
    const float number = DecodeFloat<Source>(static_cast<Storage>(amax));
    LevelScale scale;
    make_scales_(&number, 1, &scale.scale_inv, &scale.factor);
    const bool is_for_loops = IsForLoops(amax, scale.scale_inv);
    if (!is_for_loops) {
      scale = MakeLevelScale(direction_.rule,
                             ExtremesOf<Source>(direction_, direction_.grid.UnitAt(0)));
    }
    StoreScale(0, scale, copy_);
    ParallelFor(context, count, kPieceElements, [&](int64_t begin, int64_t end) {
      QuantizationCounts part;
      if (is_for_loops) {
        TileTally tally;
        loops_.encode(RunsAt(begin, 1, end - begin, &scale.factor), tally);
        AddLevelTally(tally, end - begin, part);
      } else {
        EncodeScalar(scale, begin, end, part);
      }
      Add(part);
    });
  }

  const Direction& direction_;
  const LevelFunctions loops_;
  const RunScalesFunction make_scales_;
  QuantizedCopy& copy_;
  std::mutex mutex_;
  QuantizationCounts counts_;
};

/// Codes, scales and zero points of one direction.
template <class Source>
absl::StatusOr<QuantizationCounts> QuantizeLevelsOf(const FormatRequest& request, Usage usage,
                                                    QuantizedTensor& quantized) {
  const QuantizerSpec& spec = request.spec;
  const Tensor& source = request.source;
  Direction direction = {
      request, source, MakeLevelRule(spec, source.dtype()),
      MakeLevelGrid(source.rows(), source.columns(), spec.format, spec.group, usage)};
  const LevelFunctions loops = VectorLoops(request, direction.rule, direction.grid);
  const bool has_loops = loops.encode != nullptr && source.element_count() > 0;
  if (has_loops && usage == Usage::kColumnwise) {  // The loops take lines that are rows.
    QG_ASSIGN_OR_RETURN(direction.source, Transpose2d(source, request.context));
    direction.grid.line_stride = direction.grid.length;
    direction.grid.element_stride = 1;
  }
  QG_ASSIGN_OR_RETURN(QuantizedCopy copy, OutlineCopy(spec, usage, source.dtype(), source.shape()));
  QG_ASSIGN_OR_RETURN(copy.data, CodesMemory(request, usage, copy.data.dtype(), copy.data.shape()));
  for (Tensor* const tensor : {&copy.scale_inv, &copy.zero_point}) {
    if (!tensor->has_value()) continue;
    QG_ASSIGN_OR_RETURN(*tensor, Tensor::Allocate(tensor->dtype(), tensor->shape()));
  }
  QuantizationCounts counts;
  if (has_loops) {
    counts = RunQuantizer<Source>(direction, loops, copy)();
  } else {
    MakeScales<Source>(direction, copy);
    QG_RETURN_IF_ERROR(request.context.CheckCancelled());
    counts = Encode<Source>(direction, copy.data);
  }
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
  const ZeroPoint kind = ZeroPointOf(copy);
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

absl::StatusOr<QuantizationCounts> QuantizeLevels(const FormatRequest& request, Usage usage,
                                                  QuantizedTensor& quantized) {
  absl::StatusOr<QuantizationCounts> counts = QuantizationCounts();
  VisitFormat<SourceFormats>(request.source.dtype(), [&]<class Source>() {
    counts = QuantizeLevelsOf<Source>(request, usage, quantized);
  });
  return counts;
}

absl::Status DequantizeLevels(const QuantizedCopy& copy, Usage usage, Tensor& out,
                              const ExecutionContext& context) {
  const GeneralGrid grid = MakeLevelGrid(out.rows(), out.columns(), copy.format, copy.group, usage);
  VisitFormat<SourceFormats>(out.dtype(),
                             [&]<class Out>() { Dequantize<Out>(copy, grid, out, context); });
  return context.CheckCancelled();
}

}  // namespace quantgate
