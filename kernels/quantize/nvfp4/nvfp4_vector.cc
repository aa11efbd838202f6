// The vector loops of nvfp4 over pieces, and the Hadamard transform over tensors:
// docs/quantizers.md sections 6.2 to 6.5.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels/base/status_macros.h"
#include "kernels/numerics/hadamard.h"
#include "kernels/quantize/cpu/quantize_kernels.h"
#include "kernels/quantize/nvfp4/nvfp4_direction.h"

namespace quantgate {
namespace {

constexpr int64_t kStrip = 16 * kNvfp4Length;  // Elements of a row that one call takes.
constexpr uint32_t kInfinity = 0x7F800000;

Nvfp4Functions FindLoops(DType source, Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return {};
    case Isa::kAvx2:
      return Avx2Nvfp4(source);
    case Isa::kAvx512:
      return Avx512Nvfp4(source);
  }
  return {};
}

Nvfp4Random RandomOf(const Nvfp4Direction& direction) {
  Nvfp4Random random;
  random.is_used = direction.spec->element_rounding == ElementRounding::kStochastic;
  random.key[0] = static_cast<uint32_t>(direction.stream.seed);
  random.key[1] = static_cast<uint32_t>(direction.stream.seed >> 32);
  random.call_id = direction.stream.call_id;
  random.usage = direction.stream.usage;
  return random;
}

void AddTile(const TileTally& tally, int64_t count, QuantizationCounts& counts) {
  AddTally({.source_zero = tally.source_zero,
            .code_zero = tally.code_zero,
            .code_below_normal = tally.code_below_normal,
            .saturated = tally.saturated},
           count, counts);
}

const std::byte* ElementAt(const Tensor& tensor, int64_t row, int64_t column) {
  return tensor.data() + (row * tensor.columns() + column) * DTypeBytes(tensor.dtype());
}

// ---- rowwise

/// A strip that MoveTo puts in its place.
Nvfp4RowJob FirstStrip(const Nvfp4Direction& direction) {
  Nvfp4RowJob job = {};
  job.random = RandomOf(direction);
  return job;
}

void MoveTo(const Nvfp4Direction& direction, const Nvfp4TensorScale& scale, int64_t row,
            int64_t column, Nvfp4RowJob& job) {
  const int64_t element = row * direction.layout.length + column;
  job.source = direction.source.data() + element * direction.element_bytes;
  job.codes = direction.codes + element / 2;
  job.scales = direction.scales + element / kNvfp4Length;
  job.encode_sixth = scale.encode_sixth;
  job.decode = scale.decode;
  job.line = static_cast<uint32_t>(row + direction.line_offset);
  job.block = static_cast<uint32_t>(column / kNvfp4Length + direction.block_offset);
}

void QuantizeRows(const Nvfp4Direction& direction, const Nvfp4TensorScales& scales,
                  const Piece& piece, const Nvfp4Functions& loops, Nvfp4Scalar scalar,
                  QuantizationCounts& counts) {
  const int64_t body_end =
      piece.column_begin + (piece.column_end - piece.column_begin) / kStrip * kStrip;
  Nvfp4RowJob job = FirstStrip(direction);
  TileTally tally;
  int64_t done = 0;
  for (int64_t row = piece.row_begin; row < piece.row_end; ++row) {
    for (int64_t column = piece.column_begin; column < body_end; column += kStrip) {
      MoveTo(direction, scales.At(row), row, column, job);
      if (loops.row(job, tally)) {
        done += kStrip;
      } else {
        scalar({row, row + 1, column, column + kStrip}, counts);
      }
    }
  }
  AddTile(tally, done, counts);
  if (body_end < piece.column_end) {
    scalar({piece.row_begin, piece.row_end, body_end, piece.column_end}, counts);
  }
}

void QuantizeTileRows(const Nvfp4Direction& direction, const Nvfp4TensorScales& scales,
                      const Piece& piece, const Nvfp4Functions& loops, Nvfp4Scalar scalar,
                      QuantizationCounts& counts) {
  const int64_t body_end =
      piece.column_begin + (piece.column_end - piece.column_begin) / kStrip * kStrip;
  Nvfp4RowJob job = FirstStrip(direction);
  alignas(64) uint32_t amaxes[kNvfp4Length];
  job.amax = amaxes;
  TileTally tally;
  int64_t done = 0;
  for (int64_t band = piece.row_begin; band < piece.row_end; band += kNvfp4Length) {
    for (int64_t column = piece.column_begin; column < body_end; column += kStrip) {
      loops.tile_amaxes(ElementAt(direction.source, band, column), direction.source.columns(),
                        amaxes);
      if (*std::max_element(amaxes, amaxes + kNvfp4Length) >= kInfinity) {
        scalar({band, band + kNvfp4Length, column, column + kStrip}, counts);
        continue;
      }
      for (int64_t row = band; row < band + kNvfp4Length; ++row) {
        MoveTo(direction, scales.At(row), row, column, job);
        loops.row(job, tally);  // All finite, as its tiles are.
        done += kStrip;
      }
    }
    if (body_end < piece.column_end) {
      scalar({band, band + kNvfp4Length, body_end, piece.column_end}, counts);
    }
  }
  AddTile(tally, done, counts);
}

// ---- lines in lanes: columns, and rows under 4over6, which adds up errors along a line

constexpr int64_t kStripLines = 32;  // Copied together: of columns, whole cache lines.

/// Lines of a piece: where they are, and where they have been copied to.
struct LineStrip {
  const std::byte* source;
  const std::byte* copy;
  int64_t stride;  ///< Elements from row to row of the copy.
};

/// Sixteen lines.
void QuantizeLines(const Nvfp4Direction& direction, const Nvfp4TensorScales& scales,
                   const LineRange& range, const LineStrip& strip, const Nvfp4Functions& loops,
                   Nvfp4Scalar scalar, QuantizationCounts& counts) {
  const QuantizerSpec& spec = *direction.spec;
  const int64_t length = direction.layout.length;
  Nvfp4LineJob job = {};
  job.source = strip.copy;
  job.source_stride = strip.stride;
  job.is_rowwise = direction.usage == Usage::kRowwise;
  job.ahead = strip.source + strip.stride * direction.element_bytes;
  job.ahead_stride = direction.source.columns() * direction.element_bytes;
  job.code_stride = length / 2;
  job.scale_stride = length / kNvfp4Length;
  job.codes = direction.codes + range.line_begin * job.code_stride + range.begin / 2;
  job.scales = direction.scales + range.line_begin * job.scale_stride + range.begin / kNvfp4Length;
  job.groups = static_cast<int>((range.end - range.begin) / kNvfp4Length);
  job.block_dim = spec.block_dim;
  job.picks = spec.four_over_six != FourOverSix::kNone;
  job.squares = spec.four_over_six == FourOverSix::kMse;
  job.code_max = 6.0f * static_cast<float>(spec.e4m3_max);
  for (int i = 0; i < kNvfp4Length; ++i) {
    const Nvfp4TensorScale& scale = scales.At(range.line_begin + i);
    job.encode[i] = scale.encode;
    job.encode_sixth[i] = scale.encode_sixth;
    job.decode[i] = scale.decode;
    job.amax[i] = scales.Amax(range.line_begin + i);
  }
  job.random = RandomOf(direction);
  job.line = static_cast<uint32_t>(range.line_begin + direction.line_offset);
  job.block = static_cast<uint32_t>(range.begin / kNvfp4Length + direction.block_offset);
  job.transforms = direction.transforms;
  job.counts = direction.is_counted;
  job.streams = job.code_stride % 64 == 0 && IsStreamed(direction.source);
  TileTally tally;
  const uint32_t left = loops.lines(job, tally);
  int64_t done = 0;
  for (int group = 0; group < job.groups; ++group) {
    if ((left >> group & 1) == 0) {
      done += kNvfp4Length * kNvfp4Length;
      continue;
    }
    const int64_t begin = range.begin + group * kNvfp4Length;
    scalar({range.line_begin, range.line_end, begin, begin + kNvfp4Length}, counts);
  }
  AddTile(tally, done, counts);
}

/// At most kStripLines lines of at most kPieceRows elements.
void QuantizeStrip(const Nvfp4Direction& direction, const Nvfp4TensorScales& scales,
                   const LineRange& range, const Nvfp4Functions& loops, Nvfp4Scalar scalar,
                   QuantizationCounts& counts) {
  // Rows a power of two apart fall into few sets of the caches, so the strip is copied first.
  alignas(64) std::byte copy[kPieceRows * kStripLines * sizeof(float)];
  const int64_t element = direction.element_bytes, row_bytes = direction.source.columns() * element;
  const int64_t lines = range.line_end - range.line_begin, length = range.end - range.begin;
  const bool is_rowwise = direction.usage == Usage::kRowwise;
  const int64_t rows = is_rowwise ? lines : length, width = is_rowwise ? length : lines;
  const int64_t stride = is_rowwise ? kPieceRows : kStripLines;
  const std::byte* source = is_rowwise ? ElementAt(direction.source, range.line_begin, range.begin)
                                       : ElementAt(direction.source, range.begin, range.line_begin);
  for (int64_t row = 0; row < rows; ++row) {
    const std::byte* from = source + row * row_bytes;
    std::byte* to = copy + row * stride * element;
    if (width == kStripLines && element == 2) {
      std::memcpy(to, from, 2 * kStripLines);  // Of a length that the compiler knows.
    } else {
      std::memcpy(to, from, static_cast<size_t>(width * element));
    }
  }
  for (int64_t i = 0; i < lines; i += kNvfp4Length) {
    const int64_t line = range.line_begin + i;
    QuantizeLines(direction, scales, {line, line + kNvfp4Length, range.begin, range.end},
                  {source + i * (is_rowwise ? row_bytes : element),
                   copy + i * (is_rowwise ? stride : 1) * element, stride},
                  loops, scalar, counts);
  }
}

void QuantizeLinePiece(const Nvfp4Direction& direction, const Nvfp4TensorScales& scales,
                       const LineRange& range, const Nvfp4Functions& loops, Nvfp4Scalar scalar,
                       QuantizationCounts& counts) {
  for (int64_t line = range.line_begin; line < range.line_end; line += kStripLines) {
    for (int64_t begin = range.begin; begin < range.end; begin += kPieceRows) {
      QuantizeStrip(direction, scales,
                    {line, std::min(line + kStripLines, range.line_end), begin,
                     std::min(begin + kPieceRows, range.end)},
                    loops, scalar, counts);
    }
  }
}

// ---- the Hadamard transform

/// 16 columns of 16 rows in scalar code; returns the largest magnitude as fp32 bits.
uint32_t TransformScalar(const uint16_t* in, uint16_t* out, int64_t stride) {
  uint32_t largest = 0;
  for (int64_t column = 0; column < kNvfp4Length; ++column) {
    uint16_t group[kNvfp4Length], transformed[kNvfp4Length];
    for (int64_t i = 0; i < kNvfp4Length; ++i) group[i] = in[i * stride + column];
    HadamardTransform(group, transformed);
    for (int64_t i = 0; i < kNvfp4Length; ++i) {
      out[i * stride + column] = transformed[i];
      const uint32_t magnitude = (transformed[i] & 0x7FFFu) << 16;
      if (magnitude <= kInfinity) largest = std::max(largest, magnitude);
    }
  }
  return largest;
}

void MergeMax(uint32_t value, std::atomic<uint32_t>& max) {
  uint32_t seen = max.load(std::memory_order_relaxed);
  while (value > seen && !max.compare_exchange_weak(seen, value)) {
  }
}

}  // namespace

absl::StatusOr<Tensor> TransformColumns(const Tensor& source, const ExecutionContext& context,
                                        float& amax) {
  const int64_t rows = source.rows(), columns = source.columns();
  QG_ASSIGN_OR_RETURN(Tensor transformed, Tensor::Allocate(DType::kBF16, {rows, columns}));
  const auto* in = source.as<uint16_t>();
  auto* out = transformed.as<uint16_t>();
  const Nvfp4Functions loops = FindLoops(DType::kBF16, context.isa);
  std::atomic<uint32_t> largest{0};
  ForEachPiece(context, rows, columns, [&](const Piece& piece, QuantizationCounts&) {
    uint32_t of_piece = 0;
    for (int64_t row = piece.row_begin; row < piece.row_end; row += kNvfp4Length) {
      for (int64_t column = piece.column_begin; column < piece.column_end; column += kNvfp4Length) {
        const int64_t first = row * columns + column;
        uint32_t of_tile = 0;
        if (loops.transform == nullptr ||
            !loops.transform(in + first, out + first, columns, &of_tile)) {
          of_tile = TransformScalar(in + first, out + first, columns);
        }
        of_piece = std::max(of_piece, of_tile);
      }
    }
    MergeMax(of_piece, largest);
  });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  amax = std::bit_cast<float>(largest.load());
  return transformed;
}

std::optional<HadamardAmaxes> FindHadamardAmaxes(const Tensor& source,
                                                 const ExecutionContext& context) {
  const Nvfp4Functions loops = FindLoops(source.dtype(), context.isa);
  const int64_t rows = source.rows(), columns = source.columns();
  if (loops.transformed_amax == nullptr || columns % kStripLines != 0) return std::nullopt;
  const auto* in = source.as<uint16_t>();
  std::atomic<uint32_t> largest{0}, transformed_largest{0};
  std::atomic<bool> is_possible{true};
  ForEachPiece(context, rows, columns, [&](const Piece& piece, QuantizationCounts&) {
    uint32_t of_piece[2] = {};
    for (int64_t row = piece.row_begin; row < piece.row_end; row += kNvfp4Length) {
      if (!loops.transformed_amax(in + row * columns + piece.column_begin, columns,
                                  piece.column_end - piece.column_begin, of_piece)) {
        is_possible = false;
        return;
      }
    }
    MergeMax(of_piece[0], largest);
    MergeMax(of_piece[1], transformed_largest);
  });
  if (!is_possible) return std::nullopt;
  return HadamardAmaxes{std::bit_cast<float>(largest.load()),
                        std::bit_cast<float>(transformed_largest.load())};
}

bool HasNvfp4Loops(const Nvfp4Direction& direction, const ExecutionContext& context) {
  return FindLoops(direction.source.dtype(), context.isa).row != nullptr &&
         direction.spec->scale_rule == ScaleRule::kTwoLevel &&
         direction.spec->element_rounding != ElementRounding::kNearestAway;
}

void QuantizeNvfp4Piece(const Nvfp4Direction& direction, const Nvfp4TensorScales& scales,
                        const Piece& piece, const ExecutionContext& context, Nvfp4Scalar scalar,
                        QuantizationCounts& counts) {
  const Nvfp4Functions loops = FindLoops(direction.source.dtype(), context.isa);
  if (direction.usage == Usage::kColumnwise ||
      direction.spec->four_over_six != FourOverSix::kNone) {
    QuantizeLinePiece(direction, scales, RangeOf(piece, direction.usage), loops, scalar, counts);
  } else if (direction.spec->block_dim == 2) {
    QuantizeTileRows(direction, scales, piece, loops, scalar, counts);
  } else {
    QuantizeRows(direction, scales, piece, loops, scalar, counts);
  }
}

}  // namespace quantgate
