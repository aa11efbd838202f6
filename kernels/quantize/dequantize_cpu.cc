// The values that codes and scales stand for: docs/quantizers.md sections 3 to 6. Reads the copy
// alone.
#include "kernels/base/status_macros.h"
#include "kernels/numerics/e8m0.h"
#include "kernels/numerics/format_list.h"
#include "kernels/numerics/nvfp4.h"
#include "kernels/quantize/block_lines.h"
#include "kernels/tensor/convert.h"

namespace quantgate {
namespace {

constexpr int64_t kGrainElements = 1 << 16;

uint16_t RoundToBf16(float value) { return EncodeFloat<BFloat16>(value); }
uint16_t RoundToF16(float value) { return EncodeFloat<Float16>(value); }

/// Rounds the 256 values that codes can have once, then looks them up.
template <class F, class Out>
void Lookup(const Tensor& codes, float scale_inv, Tensor& out, Out (*round)(float),
            const ExecutionContext& context) {
  Out table[256];
  for (int code = 0; code < 256; ++code) {
    table[code] = round(DecodeFloat<F>(static_cast<uint8_t>(code)) * scale_inv);
  }
  const uint8_t* from = codes.as<uint8_t>();
  Out* to = out.as<Out>();
  ParallelFor(context, codes.element_count(), kGrainElements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = table[from[i]];
  });
}

/// out.dtype() is that of `round`'s result.
template <class F, class Out>
void DequantizeBlocks(const QuantizedCopy& copy, Usage usage, Tensor& out, Out (*round)(float),
                      const ExecutionContext& context) {
  QuantizerSpec spec = {.format = copy.format, .element = copy.element};
  spec.block_dim = copy.block_dim;
  const LineLayout layout = MakeLineLayout(out.rows(), out.columns(), spec, usage);
  const bool has_one_per_tile = copy.format == QuantizerFormat::kFp8Block && copy.block_dim == 2;
  const int64_t lines_per_scale = has_one_per_tile ? BlockLength(copy.format) : 1;
  const auto* codes = copy.data.as<uint8_t>();
  const auto* scale_codes = copy.scale_inv.as<uint8_t>();
  const float amax_factor = Nvfp4AmaxFactor(copy.e4m3_max);
  const auto scale_of = [&](const Block& block) {
    const int64_t index = block.line / lines_per_scale * layout.scale_line +
                          block.begin / BlockLength(copy.format) * layout.scale_block;
    if (copy.format == QuantizerFormat::kFp8Block) return copy.scale_inv.as<float>()[index];
    if (copy.format == QuantizerFormat::kMxfp8) return DecodeE8m0(scale_codes[index]);
    if (!copy.amax.has_value()) return DecodeFloat<E4M3>(scale_codes[index]);
    const float amax = copy.amax.as<float>()[copy.is_row_scaled() ? block.line : 0];
    return Nvfp4DequantizeScale(scale_codes[index], amax, amax_factor);
  };
  float values[1 << FormatConstants<F>::kBits];
  for (int code = 0; code < 1 << FormatConstants<F>::kBits; ++code) {
    values[code] = DecodeFloat<F>(static_cast<uint8_t>(code));
  }
  spec.block_dim = 1;  // Line by line, whatever the scales' blocks.
  ForEachPiece(context, out.rows(), out.columns(), [&](const Piece& piece, QuantizationCounts&) {
    ForEachBlock(RangeOf(piece, usage), spec, usage, [&](const Block& block) {
      const float scale = scale_of(block);
      for (int64_t i = block.begin; i < block.begin + block.length; ++i) {
        const int64_t index = block.line * layout.code_line + i * layout.code_element;
        uint8_t code = codes[index];
        if constexpr (FormatConstants<F>::kBits == 4) {
          code = codes[index / 2] >> (index % 2 * 4) & 0xF;
        }
        out.as<Out>()[block.line * layout.source_line + i * layout.source_element] =
            round(values[code] * scale);
      }
    });
  });
}

template <class F, class Out>
absl::Status DequantizeTo(const QuantizedCopy& copy, Usage usage, Tensor& out, Out (*round)(float),
                          const ExecutionContext& context) {
  if (copy.format != QuantizerFormat::kFp8Tensor) {
    DequantizeBlocks<F, Out>(copy, usage, out, round, context);
    return absl::OkStatus();
  }
  Tensor codes = copy.data;
  if (usage == Usage::kColumnwise) {
    QG_ASSIGN_OR_RETURN(codes, Transpose2d(codes, context));
  }
  Lookup<F, Out>(codes, *copy.scale_inv.as<float>(), out, round, context);
  return absl::OkStatus();
}

template <class F>
absl::Status Dequantize(const QuantizedCopy& copy, Usage usage, Tensor& out,
                        const ExecutionContext& context) {
  switch (out.dtype()) {
    case DType::kBF16:
      return DequantizeTo<F, uint16_t>(copy, usage, out, &RoundToBf16, context);
    case DType::kF16:
      return DequantizeTo<F, uint16_t>(copy, usage, out, &RoundToF16, context);
    default:
      return DequantizeTo<F, float>(copy, usage, out, &CanonicalFloat, context);
  }
}

}  // namespace

absl::StatusOr<Tensor> DequantizeCpu(const QuantizedTensor& quantized, Usage usage, DType out_dtype,
                                     const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckDequantization(quantized, usage, out_dtype));
  const std::optional<QuantizedCopy>& copy = quantized.copy(usage);
  const ScopedIeeeEnvironment ieee;
  if (copy->format == QuantizerFormat::kIdentity) {
    return CastTensor(copy->data, out_dtype, context);
  }
  QG_ASSIGN_OR_RETURN(Tensor out, Tensor::Allocate(out_dtype, quantized.shape));
  absl::Status status;
  const std::string_view element =
      copy->element == DType::kF4E2M1x2 ? "f4_e2m1" : DTypeName(copy->element);
  VisitFormat(element, [&]<class F>() {
    if constexpr (FormatConstants<F>::kBits <= 8)
      status = Dequantize<F>(*copy, usage, out, context);
  });
  QG_RETURN_IF_ERROR(status);
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return out;
}

}  // namespace quantgate
