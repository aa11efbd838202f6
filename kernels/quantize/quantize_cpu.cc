// The CPU quantizer: amax, scale, cast, each with the loops of the best instruction set.
#include <algorithm>
#include <atomic>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/quantize/quantize_kernels.h"
#include "kernels/tensor/convert.h"

namespace quantgate {
namespace {

// A multiple of every vector loop's step, so that only the last piece has a tail; 64 KiB of codes.
constexpr int64_t kGrainElements = 1 << 16;

absl::Status CheckSource(const Tensor& source, const QuantizerSpec& spec, Usages usages) {
  if (!source.has_value()) return absl::InvalidArgumentError("quantize: the source is absent");
  if (!IsHighPrecision(source.dtype())) {
    return absl::InvalidArgumentError(absl::StrCat("quantize: source dtype ",
                                                   std::string(DTypeName(source.dtype())),
                                                   " is not one of f32, bf16, f16"));
  }
  if (source.rank() == 0) {
    return absl::InvalidArgumentError("quantize: the source is a scalar; rank must be at least 1");
  }
  if (!spec.is_quantized()) {
    return absl::InvalidArgumentError("quantize: the identity quantizer makes no codes");
  }
  if (!IsFp8(spec.element)) {
    return absl::InvalidArgumentError(absl::StrCat("quantize: element dtype ",
                                                   std::string(DTypeName(spec.element)),
                                                   " is not one of f8_e4m3, f8_e5m2"));
  }
  if (!usages.rowwise && !usages.columnwise) {
    return absl::InvalidArgumentError(
        "quantize: no usage asked; ask for rowwise, columnwise or both");
  }
  return absl::OkStatus();
}

float DecodeMagnitude(DType dtype, uint32_t bits) {
  switch (dtype) {
    case DType::kBF16:
      return DecodeFloat<BFloat16>(static_cast<uint16_t>(bits));
    case DType::kF16:
      return DecodeFloat<Float16>(static_cast<uint16_t>(bits));
    default:
      return std::bit_cast<float>(bits);
  }
}

/// max |x|, exact; 0 of nothing. Maxima of magnitude bits can be merged in any order.
float Amax(const Tensor& source, const ExecutionContext& context) {
  AmaxFunction amax_of = ScalarAmax(source.dtype());
  if (context.isa == Isa::kAvx2) amax_of = Avx2Amax(source.dtype());
  if (context.isa == Isa::kAvx512) amax_of = Avx512Amax(source.dtype());
  std::atomic<uint32_t> amax{0};
  ParallelFor(context, source.element_count(), kGrainElements, [&](int64_t begin, int64_t end) {
    const uint32_t piece = amax_of(source.data() + begin * DTypeBytes(source.dtype()), end - begin);
    uint32_t seen = amax.load(std::memory_order_relaxed);
    while (piece > seen && !amax.compare_exchange_weak(seen, piece, std::memory_order_relaxed)) {
    }
  });
  return DecodeMagnitude(source.dtype(), amax.load());
}

float ScaleOf(const Tensor& source, float amax, const QuantizerSpec& spec) {
  // An empty tensor has scale 1 whatever the epsilon: nothing was measured (docs/definitions.md
  // section 7).
  if (source.element_count() == 0) return 1.0f;
  const float max_finite = spec.element == DType::kF8E4M3 ? MaxFinite<E4M3>() : MaxFinite<E5M2>();
  return ComputeScale(
      amax, max_finite,
      {.rule = spec.scale_rule, .power_2 = spec.power_2_scale, .amax_epsilon = spec.amax_epsilon});
}

void Add(const QuantizationCounts& part, QuantizationCounts& sum) {
  sum.normal += part.normal;
  sum.zero += part.zero;
  sum.subnormal += part.subnormal;
  sum.flushed_to_zero += part.flushed_to_zero;
  sum.saturated += part.saturated;
  sum.infinite += part.infinite;
  sum.nan += part.nan;
}

/// The vector loops know the usual cast only.
CastFunction FindVectorCast(const Tensor& source, const QuantizerSpec& spec, Isa isa) {
  if (spec.element_rounding != ElementRounding::kNearestEven ||
      spec.overflow != Overflow::kSaturate) {
    return nullptr;
  }
  if (isa == Isa::kAvx2) return Avx2Cast(source.dtype(), spec.element);
  if (isa == Isa::kAvx512) return Avx512Cast(source.dtype(), spec.element);
  return nullptr;
}

QuantizationCounts CastElements(const Tensor& source, float scale, const QuantizerSpec& spec,
                                Tensor& codes, const ExecutionContext& context) {
  const CastFunction vector_cast = FindVectorCast(source, spec, context.isa);
  const CastAnyFunction scalar_cast = ScalarCast(source.dtype(), spec.element);
  const int64_t count = source.element_count();
  std::mutex mutex;
  QuantizationCounts counts;
  ParallelFor(context, count, kGrainElements, [&](int64_t begin, int64_t end) {
    const CastPiece piece = {source.data() + begin * DTypeBytes(source.dtype()), end - begin, scale,
                             codes.as<uint8_t>() + begin};
    QuantizationCounts part;
    if (vector_cast != nullptr) {
      vector_cast(piece, part);
    } else {
      scalar_cast(piece, spec.element_rounding, spec.overflow, part);
    }
    const std::lock_guard<std::mutex> lock(mutex);
    Add(part, counts);
  });
  return counts;
}

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

uint16_t RoundToBf16(float value) { return EncodeFloat<BFloat16>(value); }
uint16_t RoundToF16(float value) { return EncodeFloat<Float16>(value); }

template <class F>
void Dequantize(const Tensor& codes, float scale_inv, Tensor& out,
                const ExecutionContext& context) {
  switch (out.dtype()) {
    case DType::kBF16:
      return Lookup<F, uint16_t>(codes, scale_inv, out, &RoundToBf16, context);
    case DType::kF16:
      return Lookup<F, uint16_t>(codes, scale_inv, out, &RoundToF16, context);
    default:
      return Lookup<F, float>(codes, scale_inv, out, &CanonicalFloat, context);
  }
}

}  // namespace

absl::StatusOr<QuantizedTensor> QuantizeCpu(const Tensor& source, const Quantizer& quantizer,
                                            Usages usages, const QuantizeArguments& arguments,
                                            const ExecutionContext& context) {
  const QuantizerSpec& spec = quantizer.rowwise;
  QG_RETURN_IF_ERROR(CheckSource(source, spec, usages));
  const ScopedIeeeEnvironment ieee;
  const float amax = Amax(source, context);
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  const float scale = ScaleOf(source, amax, spec);

  QG_ASSIGN_OR_RETURN(Tensor codes, Tensor::Allocate(spec.element, source.shape()));
  QuantizedTensor quantized;
  quantized.source_dtype = source.dtype();
  quantized.shape = source.shape();
  quantized.counts = CastElements(source, scale, spec, codes, context);
  QG_RETURN_IF_ERROR(context.CheckCancelled());

  QG_ASSIGN_OR_RETURN(quantized.scale, Tensor::FromScalar(scale));
  QuantizedCopy copy;
  copy.format = spec.format;
  copy.element = spec.element;
  QG_ASSIGN_OR_RETURN(copy.scale_inv, Tensor::FromScalar(ScaleInverse(scale)));
  QG_ASSIGN_OR_RETURN(copy.amax, Tensor::FromScalar(amax));
  if (usages.columnwise) {
    QG_ASSIGN_OR_RETURN(copy.data, Transpose2d(codes, context));
    quantized.columnwise = copy;
  }
  if (usages.rowwise) {
    copy.data = std::move(codes);
    quantized.rowwise = std::move(copy);
  }
  return quantized;
}

absl::StatusOr<Tensor> DequantizeCpu(const QuantizedTensor& quantized, Usage usage, DType out_dtype,
                                     const ExecutionContext& context) {
  const bool is_rowwise = usage == Usage::kRowwise;
  const std::optional<QuantizedCopy>& copy = quantized.copy(usage);
  if (!copy.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("dequantize: the tensor has no ", std::string(UsageName(usage)), " copy"));
  }
  if (!IsHighPrecision(out_dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("dequantize: output dtype ",
                                                   std::string(DTypeName(out_dtype)),
                                                   " is not one of f32, bf16, f16"));
  }
  Tensor codes = copy->data;
  const Tensor& scale_inv = copy->scale_inv;
  if (!is_rowwise) {
    QG_ASSIGN_OR_RETURN(codes, Transpose2d(codes, context));
  }
  const ScopedIeeeEnvironment ieee;
  QG_ASSIGN_OR_RETURN(Tensor out, Tensor::Allocate(out_dtype, quantized.shape));
  if (copy->element == DType::kF8E4M3) {
    Dequantize<E4M3>(codes, *scale_inv.as<float>(), out, context);
  } else {
    Dequantize<E5M2>(codes, *scale_inv.as<float>(), out, context);
  }
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return out;
}

}  // namespace quantgate
