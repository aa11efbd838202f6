// FP8 with one fp32 scale per tensor, current or delayed: docs/quantizers.md sections 2 and 3.
// Amax, scale, cast, each with the loops of the best instruction set.
#include <atomic>
#include <mutex>

#include "kernels/base/status_macros.h"
#include "kernels/quantize/cpu/block_lines.h"
#include "kernels/quantize/cpu/quantize_kernels.h"
#include "kernels/quantize/format_quantizers.h"
#include "kernels/tensor/transpose.h"

namespace quantgate {
namespace {

// A multiple of the step of every vector loop, so that only the last piece has a tail; 64 KiB of
// codes.
constexpr int64_t kGrainElements = 1 << 16;

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

float CurrentScale(const FormatRequest& request, float amax) {
  // An empty tensor has scale 1 for every epsilon, since nothing was measured (docs/numerics.md
  // section 4), or the scale of its group.
  const bool is_of_group = request.arguments.group_amax_rowwise.has_value();
  if (request.source.element_count() == 0 && !is_of_group) return 1.0f;
  const QuantizerSpec& spec = request.spec;
  const float max_finite = spec.element == DType::kF8E4M3 ? MaxFinite<E4M3>() : MaxFinite<E5M2>();
  return ComputeScale(
      amax, max_finite,
      {.rule = spec.scale_rule, .power_2 = spec.power_2_scale, .amax_epsilon = spec.amax_epsilon},
      spec.subnormals());
}

/// The vector loop of a cast, or null: vector loops have only the default cast.
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
    AddCounts(part, counts);
  });
  return counts;
}

// ---- both copies at once, tile by tile

constexpr int64_t kTileSide = 128;

Fp8TensorTileFunction FindVectorTile(const FormatRequest& request) {
  const Tensor& source = request.source;
  if (!request.usages.rowwise || !request.usages.columnwise || source.rows() % kTileSide != 0 ||
      source.columns() % kTileSide != 0 ||
      FindVectorCast(source, request.spec, request.context.isa) == nullptr) {
    return nullptr;
  }
  return request.context.isa == Isa::kAvx512
             ? Avx512Fp8TensorTile(source.dtype(), request.spec.element)
             : Avx2Fp8TensorTile(source.dtype(), request.spec.element);
}

TileJob MakeJob(const Tensor& source, int64_t row, int64_t column, Tensor& codes,
                Tensor& transposed) {
  const int64_t rows = source.rows(), columns = source.columns();
  TileJob job = {};
  job.source = source.data() + (row * columns + column) * DTypeBytes(source.dtype());
  job.source_stride = columns;
  job.rowwise = codes.as<uint8_t>() + row * columns + column;
  job.rowwise_stride = columns;
  job.columnwise = transposed.as<uint8_t>() + column * rows + row;
  job.columnwise_stride = rows;
  job.streams = job.columnwise_streams = IsStreamed(source);
  return job;
}

/// A tile with infinities or NaN.
void CastTileByRows(const TileJob& job, float scale, int64_t source_bytes, CastFunction cast,
                    QuantizationCounts& counts) {
  const auto* source = static_cast<const std::byte*>(job.source);
  for (int64_t row = 0; row < kTileSide; ++row) {
    uint8_t* codes = job.rowwise + row * job.rowwise_stride;
    cast({source + row * job.source_stride * source_bytes, kTileSide, scale, codes}, counts);
    for (int64_t column = 0; column < kTileSide; ++column) {
      job.columnwise[column * job.columnwise_stride + row] = codes[column];
    }
  }
}

QuantizationCounts CastTiles(const FormatRequest& request, Fp8TensorTileFunction tile_function,
                             float scale, Tensor& codes, Tensor& transposed) {
  const Tensor& source = request.source;
  const CastFunction cast = FindVectorCast(source, request.spec, request.context.isa);
  return ForEachPiece(
      request.context, source.rows(), source.columns(),
      [&](const Piece& piece, QuantizationCounts& counts) {
        for (int64_t column = piece.column_begin; column < piece.column_end; column += kTileSide) {
          const TileJob job = MakeJob(source, piece.row_begin, column, codes, transposed);
          TileTally tally;
          if (!tile_function(job, scale, tally)) {
            CastTileByRows(job, scale, DTypeBytes(source.dtype()), cast, counts);
            continue;
          }
          AddTally({.source_zero = tally.source_zero,
                    .code_zero = tally.code_zero,
                    .code_below_normal = tally.code_below_normal,
                    .saturated = tally.saturated},
                   kTileSide * kTileSide, counts);
        }
      });
}

/// Writes the codes of the rowwise copy, and of the columnwise one if it is asked for.
absl::Status MakeCodes(const FormatRequest& request, float scale, Tensor& codes, Tensor& transposed,
                       QuantizationCounts& counts) {
  const Tensor& source = request.source;
  QG_ASSIGN_OR_RETURN(codes,
                      CodesMemory(request, Usage::kRowwise, request.spec.element, source.shape()));
  if (const Fp8TensorTileFunction tile = FindVectorTile(request); tile != nullptr) {
    QG_ASSIGN_OR_RETURN(transposed, CodesMemory(request, Usage::kColumnwise, request.spec.element,
                                                {source.columns(), source.rows()}));
    counts = CastTiles(request, tile, scale, codes, transposed);
  } else {
    counts = CastElements(source, scale, request.spec, codes, request.context);
    if (request.usages.columnwise) {
      QG_ASSIGN_OR_RETURN(transposed, Transpose2d(codes, request.context));
    }
  }
  return request.context.CheckCancelled();
}

}  // namespace

float TensorAmax(const Tensor& source, const ExecutionContext& context) {
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

absl::Status QuantizeFp8Tensor(const FormatRequest& request, QuantizedTensor& quantized) {
  const QuantizerSpec& spec = request.spec;
  float amax = TensorAmax(request.source, request.context);
  QG_RETURN_IF_ERROR(request.context.CheckCancelled());
  float scale = 0;
  if (spec.scaling == Scaling::kDelayed) {
    scale = *request.arguments.scale.as<float>();
  } else {
    const Tensor& group = request.arguments.group_amax_rowwise;
    if (group.has_value()) amax = *group.as<float>();
    scale = CurrentScale(request, amax);
  }
  Tensor codes, transposed;
  QG_RETURN_IF_ERROR(MakeCodes(request, scale, codes, transposed, quantized.counts));

  QuantizedCopy copy;
  copy.format = spec.format;
  copy.element = spec.element;
  QG_ASSIGN_OR_RETURN(copy.scale, Tensor::FromScalar(scale));
  QG_ASSIGN_OR_RETURN(copy.scale_inv, Tensor::FromScalar(ScaleInverse(scale, spec.subnormals())));
  QG_ASSIGN_OR_RETURN(copy.amax, Tensor::FromScalar(amax));
  if (request.usages.columnwise) {
    copy.data = std::move(transposed);
    quantized.columnwise = copy;
  }
  if (request.usages.rowwise) {
    copy.data = std::move(codes);
    quantized.rowwise = std::move(copy);
  }
  return absl::OkStatus();
}

}  // namespace quantgate
