// E2M1 under E4M3 scales of 16 elements or of 16 x 16 tiles, under one fp32 amax:
// docs/quantizers.md section 6.
#include <optional>

#include "kernels/base/status_macros.h"
#include "kernels/quantize/nvfp4/nvfp4_direction.h"
#include "kernels/quantize/quantizer_formats.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

constexpr int kLength = kNvfp4Length;

void WriteScale(const Nvfp4Direction& direction, const Block& block, uint8_t code) {
  const LineLayout& layout = direction.layout;
  for (int64_t line = block.line; line < block.line + block.lines; ++line) {
    direction.copy->scale_inv
        .as<uint8_t>()[line * layout.scale_line + block.begin / kLength * layout.scale_block] =
        code;
  }
}

template <class Elements>
void EncodeStochastic(const Nvfp4Direction& direction, const Elements& elements, const Block& block,
                      const Nvfp4BlockScale& scale, QuantizationCounts& counts) {
  for (int64_t line = block.line; line < block.line + block.lines; ++line) {
    const PhiloxCounter bits =
        StochasticBits(direction.stream, static_cast<uint64_t>(line + direction.line_offset),
                       static_cast<uint64_t>(block.begin / kLength + direction.block_offset));
    for (int i = 0; i < kLength; ++i) {
      const float scaled = scale.Scaled(elements.Value(line, block.begin + i));
      const uint8_t random = StochasticByte(bits, i);
      const uint8_t code = EncodeE2m1Stochastic(scaled, random);
      elements.Write(line, block.begin + i, code);
      CountElement<E2M1>(elements.ClassOf(line, block.begin + i), AddRandomPart(scaled, random),
                         code, ElementRounding::kStochastic, counts);
    }
  }
}

/// The error of a candidate over a block: lines in order, then pairwise at distances 8, 4, 2, 1.
template <class Elements>
float CandidateError(const Nvfp4Direction& direction, const Elements& elements, const Block& block,
                     const Nvfp4BlockScale& scale, float amax) {
  const bool squared = direction.spec->four_over_six == FourOverSix::kMse;
  float sums[kLength] = {};
  for (int64_t l = 0; l < block.lines; ++l) {
    for (int64_t i = block.begin; i < block.begin + kLength; ++i) {
      const float value = elements.Value(block.line + l, i);
      const uint8_t code = EncodeFloat<E2M1>(scale.Scaled(value));
      sums[l] += FourOverSixError(value, code, scale.code, amax, direction.copy->e4m3_max, squared);
    }
  }
  if (block.lines == 1) return sums[0];
  for (int distance = kLength / 2; distance > 0; distance /= 2) {
    for (int i = 0; i < distance; ++i) sums[i] += sums[i + distance];
  }
  return sums[0];
}

template <class Elements>
Nvfp4BlockScale PickScale(const Nvfp4Direction& direction, const Elements& elements,
                          const Block& block, const Nvfp4TensorScales& scales) {
  const float block_amax = elements.Amax(block, false);
  if (direction.spec->four_over_six == FourOverSix::kNone) {
    return MakeNvfp4BlockScale(block_amax, scales.At(block.line));
  }
  const FourOverSixScales both = MakeFourOverSixScales(block_amax, scales.At(block.line));
  const float amax = scales.Amax(block.line);
  const float error4 = CandidateError(direction, elements, block, both.four, amax);
  const float error6 = CandidateError(direction, elements, block, both.six, amax);
  return error4 < error6 ? both.four : both.six;
}

template <class Source>
void QuantizeBlocks(const Nvfp4Direction& direction, const Nvfp4TensorScales& scales,
                    const LineRange& range, QuantizationCounts& counts) {
  const BlockElements<Source, E2M1> elements(direction.source.data(), direction.layout,
                                             direction.copy->data.template as<uint8_t>());
  const QuantizerSpec& spec = *direction.spec;
  ForEachBlock(range, spec, direction.usage, [&](const Block& block) {
    const Nvfp4BlockScale scale = PickScale(direction, elements, block, scales);
    WriteScale(direction, block, scale.code);
    if (spec.element_rounding == ElementRounding::kStochastic) {
      EncodeStochastic(direction, elements, block, scale, counts);
    } else {
      elements.Encode(
          block, spec, [&scale](float value) { return scale.Scaled(value); }, counts);
    }
  });
}

using RangeFunction = void (*)(const Nvfp4Direction&, const Nvfp4TensorScales&, const LineRange&,
                               QuantizationCounts&);

RangeFunction FindScalarRange(DType source) {
  RangeFunction range = nullptr;
  VisitFormat<SourceFormats>(source, [&]<class Source>() { range = &QuantizeBlocks<Source>; });
  return range;
}

// ---- amaxes

/// f32 [lines]: max |x| of every line.
template <class Source>
void LineAmaxes(const void* source, const LineLayout& layout, const ExecutionContext& context,
                float* amaxes) {
  const BlockElements<Source, E2M1> elements(source, layout, nullptr);
  ParallelFor(context, layout.lines, kPieceRows, [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      amaxes[line] = elements.Amax({line, 1, 0, layout.length}, false);
    }
  });
}

/// `known` is the amax where it has been found on the way.
absl::Status SetAmax(const FormatRequest& request, std::optional<float> known,
                     Nvfp4Direction& direction) {
  Tensor& amax = direction.copy->amax;
  if (request.spec.scale_rule == ScaleRule::kSingleLevel) return absl::OkStatus();
  if (request.spec.row_scaled) {
    QG_ASSIGN_OR_RETURN(amax, Tensor::Allocate(DType::kF32, {direction.layout.lines}));
    VisitFormat<SourceFormats>(direction.source.dtype(), [&]<class Source>() {
      LineAmaxes<Source>(direction.source.data(), direction.layout, request.context,
                         amax.as<float>());
    });
    return absl::OkStatus();
  }
  const Tensor& group = direction.usage == Usage::kRowwise
                            ? request.arguments.group_amax_rowwise
                            : request.arguments.group_amax_columnwise;
  if (group.has_value()) known = *group.as<float>();
  if (!known.has_value()) known = TensorAmax(direction.source, request.context);
  QG_ASSIGN_OR_RETURN(amax, Tensor::FromScalar(*known));
  return absl::OkStatus();
}

Nvfp4Direction MakeDirection(const FormatRequest& request, Usage usage, QuantizedCopy& copy) {
  const bool is_rowwise = usage == Usage::kRowwise;
  const QuantizeArguments& arguments = request.arguments;
  Nvfp4Direction direction = {};
  direction.spec = &request.spec;
  direction.usage = usage;
  direction.source = request.source;
  direction.layout =
      MakeLineLayout(request.source.rows(), request.source.columns(), request.spec, usage);
  direction.copy = &copy;
  direction.codes = copy.data.as<uint8_t>();
  direction.scales = copy.scale_inv.as<uint8_t>();
  direction.element_bytes = DTypeBytes(request.source.dtype());
  direction.stream = {arguments.seed, arguments.call_id, is_rowwise ? 0u : 1u};
  direction.line_offset = is_rowwise ? arguments.row_offset : arguments.column_offset;
  direction.block_offset = (is_rowwise ? arguments.column_offset : arguments.row_offset) / kLength;
  direction.is_counted = is_rowwise || !request.usages.rowwise;
  return direction;
}

/// Codes and scales of one direction; `amaxes` as FindHadamardAmaxes found them.
absl::Status QuantizeDirection(const FormatRequest& request, Usage usage,
                               const std::optional<HadamardAmaxes>& amaxes,
                               QuantizedTensor& quantized) {
  const ExecutionContext& context = request.context;
  QuantizedCopy& copy = *quantized.copy(usage);
  copy.e4m3_max = request.spec.e4m3_max;
  copy.hadamard = request.hadamard && usage == Usage::kColumnwise;
  Nvfp4Direction direction = MakeDirection(request, usage, copy);
  const bool has_loops = HasNvfp4Loops(direction, context);
  std::optional<float> amax;
  if (amaxes.has_value()) amax = copy.hadamard ? amaxes->transformed : amaxes->source;
  direction.transforms = copy.hadamard && has_loops && amaxes.has_value();
  if (copy.hadamard && !direction.transforms) {
    QG_ASSIGN_OR_RETURN(direction.source,
                        TransformColumns(request.source, context, amax.emplace()));
  }
  QG_RETURN_IF_ERROR(SetAmax(request, amax, direction));
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  const Nvfp4TensorScales scales(direction);
  const RangeFunction scalar = FindScalarRange(direction.source.dtype());
  const auto quantize_range = [&](const LineRange& range, QuantizationCounts& counts) {
    scalar(direction, scales, range, counts);
  };
  const QuantizationCounts counts =
      ForEachPiece(context, request.source.rows(), request.source.columns(),
                   [&](const Piece& piece, QuantizationCounts& part) {
                     if (has_loops) {
                       QuantizeNvfp4Piece(direction, scales, piece, context, quantize_range, part);
                     } else {
                       quantize_range(RangeOf(piece, usage), part);
                     }
                   });
  if (direction.is_counted) quantized.counts = counts;
  return context.CheckCancelled();
}

}  // namespace

Nvfp4TensorScales::Nvfp4TensorScales(const Nvfp4Direction& direction)
    : amax_(direction.copy->amax) {
  const QuantizerSpec& spec = *direction.spec;
  if (!amax_.has_value()) {
    scales_.push_back(MakeNvfp4TensorScale(0.0f, spec.e4m3_max, spec.scale_rule));
    return;
  }
  for (int64_t i = 0; i < amax_.element_count(); ++i) {
    scales_.push_back(MakeNvfp4TensorScale(amax_.as<float>()[i], spec.e4m3_max, spec.scale_rule));
  }
}

absl::Status QuantizeNvfp4(const FormatRequest& request, QuantizedTensor& quantized) {
  QG_RETURN_IF_ERROR(AllocateCopies(request, quantized));
  std::optional<HadamardAmaxes> amaxes;
  if (request.hadamard && request.usages.columnwise) {
    amaxes = FindHadamardAmaxes(request.source, request.context);
    QG_RETURN_IF_ERROR(request.context.CheckCancelled());
  }
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    if (!Asks(request.usages, usage)) continue;
    QG_RETURN_IF_ERROR(QuantizeDirection(request, usage, amaxes, quantized));
  }
  return absl::OkStatus();
}

}  // namespace quantgate
