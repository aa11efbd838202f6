// E2M1 under E4M3 scales of 16 elements or of 16 x 16 tiles, under one fp32 amax:
// docs/quantizers.md section 6.
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/numerics/format_list.h"
#include "kernels/numerics/hadamard.h"
#include "kernels/numerics/nvfp4.h"
#include "kernels/numerics/stochastic_rounding.h"
#include "kernels/quantize/block_lines.h"
#include "kernels/quantize/format_quantizers.h"

namespace quantgate {
namespace {

constexpr int kLength = 16;

/// One direction of the source: what its blocks are made of.
struct Direction {
  const QuantizerSpec* spec;
  const void* source;  ///< The tensor, or the transformed [K][M] one.
  LineLayout layout;
  QuantizedCopy* copy;
  StochasticStream stream;
  int64_t line_offset, block_offset;  ///< Of this tensor in the whole one.
};

/// The tensor scale of a line, its own where row-scaled.
class TensorScales {
 public:
  explicit TensorScales(const Direction& direction) : amax_(direction.copy->amax) {
    const QuantizerSpec& spec = *direction.spec;
    const int64_t count = amax_.has_value() ? amax_.element_count() : 1;
    for (int64_t i = 0; i < count; ++i) {
      scales_.push_back(
          MakeNvfp4TensorScale(amax_.has_value() ? Amax(i) : 0.0f, spec.e4m3_max, spec.scale_rule));
    }
  }
  const Nvfp4TensorScale& At(int64_t line) const { return scales_[Index(line)]; }
  float Amax(int64_t line) const { return amax_.as<float>()[Index(line)]; }

 private:
  int64_t Index(int64_t line) const {
    return amax_.has_value() && amax_.element_count() > 1 ? line : 0;
  }
  Tensor amax_;
  std::vector<Nvfp4TensorScale> scales_;
};

void WriteScale(const Direction& direction, const Block& block, uint8_t code) {
  const LineLayout& layout = direction.layout;
  for (int64_t line = block.line; line < block.line + block.lines; ++line) {
    direction.copy->scale_inv
        .as<uint8_t>()[line * layout.scale_line + block.begin / kLength * layout.scale_block] =
        code;
  }
}

template <class Elements>
void EncodeStochastic(const Direction& direction, const Elements& elements, const Block& block,
                      const Nvfp4BlockScale& scale, QuantizationCounts& counts) {
  for (int64_t line = block.line; line < block.line + block.lines; ++line) {
    const PhiloxCounter bits =
        StochasticBits(direction.stream, static_cast<uint64_t>(line + direction.line_offset),
                       static_cast<uint64_t>(block.begin / kLength + direction.block_offset));
    for (int i = 0; i < kLength; ++i) {
      const float scaled = scale.Scaled(elements.Value(line, block.begin + i));
      const uint8_t code = EncodeE2m1Stochastic(scaled, StochasticByte(bits, i));
      elements.Write(line, block.begin + i, code);
      CountElement<E2M1>(elements.ClassOf(line, block.begin + i), scaled, code,
                         ElementRounding::kStochastic, counts);
    }
  }
}

/// The error of a candidate over a block: lines in order, then pairwise at distances 8, 4, 2, 1.
template <class Elements>
float CandidateError(const Direction& direction, const Elements& elements, const Block& block,
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
Nvfp4BlockScale PickScale(const Direction& direction, const Elements& elements, const Block& block,
                          const TensorScales& scales) {
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
void QuantizeBlocks(const Direction& direction, const TensorScales& scales, Usage order,
                    const LineRange& range, QuantizationCounts& counts) {
  const BlockElements<Source, E2M1> elements(direction.source, direction.layout,
                                             direction.copy->data.template as<uint8_t>());
  const QuantizerSpec& spec = *direction.spec;
  ForEachBlock(range, spec, order, [&](const Block& block) {
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

using RangeFunction = void (*)(const Direction&, const TensorScales&, Usage, const LineRange&,
                               QuantizationCounts&);

RangeFunction FindScalarRange(DType source) {
  RangeFunction range = nullptr;
  VisitFormat(DTypeName(source), [&]<class Source>() { range = &QuantizeBlocks<Source>; });
  return range;
}

// ---- the Hadamard transform

/// [K][M] bf16: the transform of every 16 elements of a column.
absl::StatusOr<Tensor> TransformColumns(const Tensor& source, const ExecutionContext& context) {
  const int64_t rows = source.rows(), columns = source.columns();
  QG_ASSIGN_OR_RETURN(Tensor transformed, Tensor::Allocate(DType::kBF16, {columns, rows}));
  const auto* in = source.as<uint16_t>();
  auto* out = transformed.as<uint16_t>();
  ForEachPiece(context, rows, columns, [&](const Piece& piece, QuantizationCounts&) {
    for (int64_t row = piece.row_begin; row < piece.row_end; row += kLength) {
      for (int64_t column = piece.column_begin; column < piece.column_end; ++column) {
        uint16_t group[kLength];
        for (int i = 0; i < kLength; ++i) group[i] = in[(row + i) * columns + column];
        HadamardTransform(group, out + column * rows + row);
      }
    }
  });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return transformed;
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

absl::Status SetAmax(const FormatRequest& request, Usage usage, const Tensor& values,
                     Direction& direction) {
  Tensor& amax = direction.copy->amax;
  if (request.spec.scale_rule == ScaleRule::kSingleLevel) return absl::OkStatus();
  if (!request.spec.row_scaled) {
    const std::optional<float>& group = usage == Usage::kRowwise
                                            ? request.arguments.group_amax_rowwise
                                            : request.arguments.group_amax_columnwise;
    QG_ASSIGN_OR_RETURN(
        amax, Tensor::FromScalar(group.has_value() ? *group : TensorAmax(values, request.context)));
    return absl::OkStatus();
  }
  QG_ASSIGN_OR_RETURN(amax, Tensor::Allocate(DType::kF32, {direction.layout.lines}));
  VisitFormat(DTypeName(values.dtype()), [&]<class Source>() {
    LineAmaxes<Source>(values.data(), direction.layout, request.context, amax.as<float>());
  });
  return absl::OkStatus();
}

/// Codes and scales of one direction.
absl::Status QuantizeDirection(const FormatRequest& request, Usage usage,
                               QuantizedTensor& quantized) {
  const int64_t rows = request.source.rows(), columns = request.source.columns();
  const bool is_rowwise = usage == Usage::kRowwise;
  QuantizedCopy& copy = *quantized.copy(usage);
  copy.e4m3_max = request.spec.e4m3_max;
  copy.hadamard = request.hadamard && !is_rowwise;
  Tensor values = request.source;
  Direction direction = {
      &request.spec,
      nullptr,
      MakeLineLayout(rows, columns, request.spec, usage),
      &copy,
      {request.arguments.seed, request.arguments.call_id, is_rowwise ? 0u : 1u},
      is_rowwise ? request.arguments.row_offset : request.arguments.column_offset,
      (is_rowwise ? request.arguments.column_offset : request.arguments.row_offset) / kLength};
  if (copy.hadamard) {
    QG_ASSIGN_OR_RETURN(values, TransformColumns(request.source, request.context));
    direction.layout.source_line = rows;
    direction.layout.source_element = 1;
  }
  direction.source = values.data();
  QG_RETURN_IF_ERROR(SetAmax(request, usage, values, direction));
  const TensorScales scales(direction);
  const RangeFunction scalar = FindScalarRange(values.dtype());
  const QuantizationCounts counts = ForEachPiece(
      request.context, rows, columns, [&](const Piece& piece, QuantizationCounts& part) {
        scalar(direction, scales, usage, RangeOf(piece, usage), part);
      });
  if (is_rowwise || !request.usages.rowwise) quantized.counts = counts;
  return request.context.CheckCancelled();
}

}  // namespace

absl::Status QuantizeNvfp4(const FormatRequest& request, QuantizedTensor& quantized) {
  QG_RETURN_IF_ERROR(AllocateCopies(request, quantized));
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    if (!Asks(request.usages, usage)) continue;
    QG_RETURN_IF_ERROR(QuantizeDirection(request, usage, quantized));
  }
  return absl::OkStatus();
}

}  // namespace quantgate
