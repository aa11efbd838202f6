#include "kernels/validate/explain/explain_candidates.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace quantgate {
namespace {

/// In which orientation of a tensor a library stores codes in blocks of some shape.
enum class Orientation { kAsGiven, kTransposed, kEither };

constexpr DType kE4M3[] = {DType::kF8E4M3};
constexpr DType kFp8[] = {DType::kF8E4M3, DType::kF8E5M2};
constexpr DType kFp6AndFp4[] = {DType::kF6E2M3, DType::kF6E3M2, DType::kF4E2M1x2};
constexpr DType kAllElements[] = {DType::kF8E4M3, DType::kF8E5M2, DType::kF6E2M3, DType::kF6E3M2,
                                  DType::kF4E2M1x2};
constexpr DType kE2M1[] = {DType::kF4E2M1x2};

constexpr int64_t kWhole = std::numeric_limits<int64_t>::max();  // A block as long as its dim.
constexpr CodeBlocks kRowsOf128[] = {{1, 128, 1, 128}};
constexpr CodeBlocks kColumnsOf128[] = {{128, 1, 128, 1}};
constexpr CodeBlocks kTilesOf128[] = {{128, 128, 128, 128}};
constexpr CodeBlocks kRowsAndTilesOf128[] = {{1, 128, 1, 128}, {128, 128, 128, 128}};
constexpr CodeBlocks kAllOf128[] = {{1, 128, 1, 128}, {128, 1, 128, 1}, {128, 128, 128, 128}};
constexpr CodeBlocks kRowsOf32[] = {{1, 32, 1, 32}};
constexpr CodeBlocks kLinesOf32[] = {{1, 32, 1, 32}, {32, 1, 32, 1}};
constexpr CodeBlocks kColumnsAndTilesOf32[] = {{32, 1, 32, 1}, {1, 32, 32, 32}, {32, 1, 32, 32}};
constexpr CodeBlocks kRowsOf16[] = {{1, 16, 1, 16}};
constexpr CodeBlocks kRowsAndTilesOf16[] = {{1, 16, 1, 16}, {1, 16, 16, 16}};
constexpr CodeBlocks kWholeLines[] = {{1, kWhole, 1, kWhole}, {kWhole, 1, kWhole, 1}};

/// One kind of codes that a library writes. All of them saturate.
struct LibraryQuantizer {
  std::string_view name;
  std::string_view scale_rule;  ///< Its name without formula; implies dtype and levels of scales.
  std::span<const DType> elements;
  std::span<const CodeBlocks> blocks;
  Orientation orientation = Orientation::kAsGiven;
  /// Absent: any, since all give the same.
  std::optional<ElementScaling> scaling = std::nullopt;
  std::optional<CodeRounding> rounding = CodeRounding::kNearestEven;  ///< Absent: stochastic.
  ZeroSign zeros = ZeroSign::kKept;
  bool takes_partial_blocks = false;
  /// A block with a NaN or an infinity has the E8M0 scale 0xFF, whatever the rule gives.
  bool marks_non_finite = false;
  bool transforms = false;  ///< Hadamard-transforms values of transposed codes that lie in rows.
};

// The sources of these rows: docs/quantizers.md section 1.6.
constexpr LibraryQuantizer kLibraryQuantizers[] = {
    {.name = "Transformer Engine, FP8 block scaling, fp32 scales",
     .scale_rule = "divide or maximum",
     .elements = kFp8,
     .blocks = kRowsAndTilesOf128,
     .orientation = Orientation::kEither,
     .scaling = ElementScaling::kMultiply,
     .takes_partial_blocks = true},
    {.name = "Transformer Engine, FP8 block scaling",
     .scale_rule = "divide or maximum, power of two",
     .elements = kFp8,
     .blocks = kRowsAndTilesOf128,
     .orientation = Orientation::kEither,
     .scaling = ElementScaling::kMultiply,
     .takes_partial_blocks = true},
    {.name = "DeepSeek-V3's activation quantizer",
     .scale_rule = "scale_inv = f32(amax / max)",
     .elements = kE4M3,
     .blocks = kRowsOf128,
     .scaling = ElementScaling::kDivide},
    {.name = "DeepSeek-V3's weight quantizer",
     .scale_rule = "scale_inv = f32(amax / max)",
     .elements = kE4M3,
     .blocks = kTilesOf128,
     .scaling = ElementScaling::kDivide,
     .takes_partial_blocks = true},
    {.name = "DeepGEMM",
     .scale_rule = "amax at least 1e-4, scale = f32(max / amax), scale_inv = f32(amax / max)",
     .elements = kE4M3,
     .blocks = kRowsAndTilesOf128,
     .scaling = ElementScaling::kMultiply,
     .takes_partial_blocks = true},
    {.name = "DeepGEMM",
     .scale_rule = "amax at least 1e-4, scale = f32(max / amax), scale_inv = f32(amax / max)",
     .elements = kE4M3,
     .blocks = kRowsAndTilesOf128,
     .scaling = ElementScaling::kReciprocal,
     .takes_partial_blocks = true},
    {.name = "DeepGEMM",
     .scale_rule = "amax at least 1e-4, scale = f32(max / amax), scale_inv = f32(amax / max)",
     .elements = kE4M3,
     .blocks = kColumnsOf128,
     .scaling = ElementScaling::kReciprocal},
    {.name = "DeepGEMM, UE8M0",
     .scale_rule = "amax at least 1e-4, scale_inv = f32(amax / max) up to a power of two",
     .elements = kE4M3,
     .blocks = kRowsAndTilesOf128,
     .scaling = ElementScaling::kReciprocal,
     .takes_partial_blocks = true},
    {.name = "DeepGEMM, UE8M0",
     .scale_rule = "amax at least 1e-4, scale_inv = f32(amax / max) up to a power of two",
     .elements = kE4M3,
     .blocks = kColumnsOf128,
     .scaling = ElementScaling::kReciprocal},
    {.name = "torchao, float8 training",
     .scale_rule = "scale = f32(max / max(amax, 1e-12)) by way of fp64",
     .elements = kFp8,
     .blocks = kWholeLines,
     .orientation = Orientation::kEither,
     .scaling = ElementScaling::kMultiply},
    {.name = "torchao, blockwise FP8 training",
     .scale_rule = "scale = f32(max / max(amax, 1e-12)) by way of fp64",
     .elements = kE4M3,
     .blocks = kAllOf128,
     .orientation = Orientation::kEither,
     .scaling = ElementScaling::kMultiply},
    {.name = "Transformer Engine, cuBLAS, cuDNN; torchao RCEIL",
     .scale_rule = "round_up",
     .elements = kFp8,
     .blocks = kRowsOf32,
     .marks_non_finite = true},
    // Only a block that is not finite tells the codes of torchao, the row above, from these.
    {.name = "Transformer Engine, cuBLAS, cuDNN",
     .scale_rule = "round_up",
     .elements = kFp8,
     .blocks = kRowsOf32},
    {.name = "Transformer Engine, MXFP8",
     .scale_rule = "round_up",
     .elements = kFp8,
     .blocks = kColumnsAndTilesOf32},
    {.name = "torchao RCEIL",
     .scale_rule = "round_up",
     .elements = kFp8,
     .blocks = kRowsOf32,
     .orientation = Orientation::kTransposed,
     .marks_non_finite = true},
    {.name = "torchao RCEIL",
     .scale_rule = "round_up",
     .elements = kFp6AndFp4,
     .blocks = kRowsOf32,
     .orientation = Orientation::kEither,
     .marks_non_finite = true},
    {.name = "NVIDIA ModelOpt, MXFP4",
     .scale_rule = "round_up",
     .elements = kE2M1,
     .blocks = kRowsOf32,
     .rounding = CodeRounding::kNearestTowardZero,
     .zeros = ZeroSign::kNegative},
    {.name = "torchao FLOOR",
     .scale_rule = "floor",
     .elements = kAllElements,
     .blocks = kRowsOf32,
     .orientation = Orientation::kEither,
     .marks_non_finite = true},
    {.name = "microxcaling",
     .scale_rule = "floor",
     .elements = kAllElements,
     .blocks = kLinesOf32,
     .rounding = CodeRounding::kNearestAway,
     .zeros = ZeroSign::kPositive,
     .takes_partial_blocks = true},
    {.name = "torchao CEIL",
     .scale_rule = "ceil",
     .elements = kAllElements,
     .blocks = kRowsOf32,
     .orientation = Orientation::kEither,
     .marks_non_finite = true},
    {.name = "torchao EVEN",
     .scale_rule = "even",
     .elements = kAllElements,
     .blocks = kRowsOf32,
     .orientation = Orientation::kEither,
     .marks_non_finite = true},
    {.name = "Transformer Engine, NVFP4",
     .scale_rule = "two_level",
     .elements = kE2M1,
     .blocks = kRowsAndTilesOf16,
     .orientation = Orientation::kEither,
     .scaling = ElementScaling::kMultiply,
     .transforms = true},
    {.name = "Transformer Engine, NVFP4",
     .scale_rule = "two_level",
     .elements = kE2M1,
     .blocks = kRowsOf16,
     .orientation = Orientation::kEither,
     .scaling = ElementScaling::kMultiply,
     .rounding = std::nullopt,
     .transforms = true},
    {.name = "torchao, NVFP4 with a tensor scale",
     .scale_rule = "two_level_clamped",
     .elements = kE2M1,
     .blocks = kRowsOf16,
     .scaling = ElementScaling::kTensorOverBlock},
    {.name = "torchao, NVFP4 with a tensor scale",
     .scale_rule = "two_level_clamped",
     .elements = kE2M1,
     .blocks = kRowsOf16,
     .scaling = ElementScaling::kDivideByProduct},
    {.name = "NVIDIA ModelOpt, NVFP4",
     .scale_rule = "two_level_floored",
     .elements = kE2M1,
     .blocks = kRowsOf16,
     .scaling = ElementScaling::kDivideByProduct,
     .zeros = ZeroSign::kPositive},
    {.name = "compressed-tensors, NVFP4",
     .scale_rule = "two_level_global",
     .elements = kE2M1,
     .blocks = kRowsOf16,
     .scaling = ElementScaling::kDivideByGlobalScale,
     .zeros = ZeroSign::kPositive},
    {.name = "torchao, NVFP4",
     .scale_rule = "single_level",
     .elements = kE2M1,
     .blocks = kRowsOf16,
     .scaling = ElementScaling::kReciprocal},
    {.name = "torchao, NVFP4",
     .scale_rule = "single_level",
     .elements = kE2M1,
     .blocks = kRowsOf16,
     .scaling = ElementScaling::kDivide},
};

bool HasRule(const ScaledBlocks& scaled, std::string_view name) {
  return scaled.rule.starts_with(name) &&
         (scaled.rule.size() == name.size() || scaled.rule[name.size()] == ':');
}

/// Whether the codes have blocks of the library. A block that is longer than a dim ends with it.
bool HasBlocks(const StoredCodes& stored, const CodeBlocks& given,
               const LibraryQuantizer& quantizer) {
  const auto is_along = [&](int64_t length, int64_t given_length, int64_t of_library) {
    const bool is_whole =
        of_library == kWhole || length % of_library == 0 || quantizer.takes_partial_blocks;
    return is_whole && std::min(given_length, length) == std::min(of_library, length);
  };
  return std::any_of(quantizer.blocks.begin(), quantizer.blocks.end(),
                     [&](const CodeBlocks& blocks) {
                       return is_along(stored.rows, given.rows, blocks.rows) &&
                              is_along(stored.columns, given.columns, blocks.columns) &&
                              is_along(stored.rows, given.amax_rows, blocks.amax_rows) &&
                              is_along(stored.columns, given.amax_columns, blocks.amax_columns);
                     });
}

bool HasOrientation(const StoredCodes& stored, const CodeBlocks& blocks,
                    const LibraryQuantizer& quantizer) {
  if (stored.hadamard) {
    return quantizer.transforms && stored.transposed && blocks.amax_rows == 1;
  }
  return quantizer.orientation == Orientation::kEither ||
         stored.transposed == (quantizer.orientation == Orientation::kTransposed);
}

/// Whether every block of the source with a NaN or an infinity has the E8M0 scale 0xFF.
bool MarksNonFinite(const StoredCodes& stored, const CodeBlocks& blocks) {
  for (int64_t at = 0; at < stored.rows * stored.columns; ++at) {
    if (std::isfinite(stored.values[at])) continue;
    const int64_t row = at / stored.columns / blocks.rows;
    const int64_t column = at % stored.columns / blocks.columns;
    if (stored.scales[row * stored.scale_columns + column] != 0xFF) return false;
  }
  return true;
}

/// Whether the codes of all zeros have this sign.
bool HasZeros(const RoundingCounts& counts, ZeroSign sign) {
  return counts.of(sign).matches == counts.zeros;
}

}  // namespace

std::string_view LibraryOf(const ScaledGroup& group, const ScaledBy& by,
                           const RoundingCounts& counts, std::optional<CodeRounding> rounding) {
  if (group.overflow != Overflow::kSaturate && counts.overflowing > 0) return "";
  // 4over6 has blocks and elements of its own.
  if (!by.scaled->library.empty()) {
    return HasZeros(counts, ZeroSign::kKept) ? by.scaled->library : "";
  }
  for (const LibraryQuantizer& quantizer : kLibraryQuantizers) {
    const auto& elements = quantizer.elements;
    if (HasRule(*by.scaled, quantizer.scale_rule) &&
        (!quantizer.scaling.has_value() || *quantizer.scaling == by.scaling) &&
        quantizer.rounding == rounding &&
        std::find(elements.begin(), elements.end(), group.format->dtype) != elements.end() &&
        HasBlocks(*group.stored, by.scaled->blocks, quantizer) &&
        HasOrientation(*group.stored, by.scaled->blocks, quantizer) &&
        HasZeros(counts, quantizer.zeros) &&
        (!quantizer.marks_non_finite || MarksNonFinite(*group.stored, by.scaled->blocks))) {
      return quantizer.name;
    }
  }
  return "";
}

}  // namespace quantgate
