// One direction of an nvfp4 quantization, as scalar and vector code see it. Private to
// kernels/quantize.
#pragma once

#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/numerics/nvfp4.h"
#include "kernels/numerics/stochastic_rounding.h"
#include "kernels/quantize/cpu/block_lines.h"

namespace quantgate {

inline constexpr int kNvfp4Length = 16;

struct Nvfp4Direction {
  const QuantizerSpec* spec;
  Usage usage;
  Tensor source;  ///< Or the transformed one, in the same layout.
  LineLayout layout;
  QuantizedCopy* copy;
  uint8_t* codes;
  uint8_t* scales;
  int64_t element_bytes;
  StochasticStream stream;
  int64_t line_offset, block_offset;  ///< Of this tensor in the whole one.
  bool is_counted;                    ///< Whether anyone reads what is counted.
  bool transforms;  ///< The loops transform the source on the way; it is not transformed yet.
};

/// The tensor scale of a line, its own where row-scaled.
class Nvfp4TensorScales {
 public:
  explicit Nvfp4TensorScales(const Nvfp4Direction& direction);
  const Nvfp4TensorScale& At(int64_t line) const { return scales_[Index(line)]; }
  float Amax(int64_t line) const { return amax_.as<float>()[Index(line)]; }

 private:
  size_t Index(int64_t line) const { return scales_.size() > 1 ? static_cast<size_t>(line) : 0; }
  Tensor amax_;
  std::vector<Nvfp4TensorScale> scales_;
};

/// Quantizes a range of the direction in scalar code.
using Nvfp4Scalar = absl::FunctionRef<void(const LineRange& range, QuantizationCounts& counts)>;

/// Whether vector code does this direction.
bool HasNvfp4Loops(const Nvfp4Direction& direction, const ExecutionContext& context);

/// Quantizes a piece with the vector loops of context.isa, and what they leave with `scalar`.
void QuantizeNvfp4Piece(const Nvfp4Direction& direction, const Nvfp4TensorScales& scales,
                        const Piece& piece, const ExecutionContext& context, Nvfp4Scalar scalar,
                        QuantizationCounts& counts);

/// The Hadamard transform of every 16 elements of a column of bf16, in the layout of the source,
/// and the largest magnitude, NaN ignored.
absl::StatusOr<Tensor> TransformColumns(const Tensor& source, const ExecutionContext& context,
                                        float& amax);

/// The amaxes of a source and of its transform, where vector loops can transform every part of it
/// (and so will, once more, when they quantize it).
struct HadamardAmaxes {
  float source, transformed;
};
std::optional<HadamardAmaxes> FindHadamardAmaxes(const Tensor& source,
                                                 const ExecutionContext& context);

}  // namespace quantgate
