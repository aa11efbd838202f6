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
constexpr DType kE4M3AndE2M1[] = {DType::kF8E4M3, DType::kF4E2M1x2};
constexpr DType kFp6E2M3[] = {DType::kF6E2M3};

constexpr int64_t kWhole = std::numeric_limits<int64_t>::max();  // A block as long as its dim.
constexpr CodeBlocks kRowsOf128[] = {{1, 128, 1, 128}};
/// Rows and columns of lengths that are given, and tiles.
constexpr CodeBlocks kRowsAndTilesOfAny[] = {
    {1, 32, 1, 32},   {1, 64, 1, 64},   {1, 128, 1, 128},     {1, 256, 1, 256},
    {32, 32, 32, 32}, {64, 64, 64, 64}, {128, 128, 128, 128}, {256, 256, 256, 256}};
constexpr CodeBlocks kColumnsOfAny[] = {
    {32, 1, 32, 1}, {64, 1, 64, 1}, {128, 1, 128, 1}, {256, 1, 256, 1}};
constexpr CodeBlocks kTilesOf128[] = {{128, 128, 128, 128}};
constexpr CodeBlocks kRowsAndTilesOf128[] = {{1, 128, 1, 128}, {128, 128, 128, 128}};
constexpr CodeBlocks kAllOf128[] = {{1, 128, 1, 128}, {128, 1, 128, 1}, {128, 128, 128, 128}};
constexpr CodeBlocks kRowsOf32[] = {{1, 32, 1, 32}};
constexpr CodeBlocks kLinesOf32[] = {{1, 32, 1, 32}, {32, 1, 32, 1}};
constexpr CodeBlocks kColumnsAndTilesOf32[] = {{32, 1, 32, 1}, {1, 32, 32, 32}, {32, 1, 32, 32}};
constexpr CodeBlocks kRowsOf16[] = {{1, 16, 1, 16}};
constexpr CodeBlocks kRowsAndTilesOf16[] = {{1, 16, 1, 16}, {1, 16, 16, 16}};
constexpr CodeBlocks kTensorOrLines[] = {
    {kWhole, kWhole, kWhole, kWhole}, {1, kWhole, 1, kWhole}, {kWhole, 1, kWhole, 1}};
/// Rows of groups of any length, tiles of 128 and whole lines.
constexpr CodeBlocks kAnyGroups[] = {{kWhole, kWhole, kWhole, kWhole},
                                     {1, kWhole, 1, kWhole},
                                     {kWhole, 1, kWhole, 1},
                                     {1, 16, 1, 16},
                                     {1, 32, 1, 32},
                                     {1, 64, 1, 64},
                                     {1, 128, 1, 128},
                                     {1, 256, 1, 256},
                                     {128, 128, 128, 128}};
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
  bool has_fnuz = false;    ///< Its FP8 elements may be FNUZ too.
  CodePacking packing = CodePacking::kUsual;  ///< Of elements of fewer than eight bits.
  bool turns_scales = false;  ///< It also stores scales column after column, or packed in i32.
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
     .blocks = kRowsAndTilesOfAny,
     .scaling = ElementScaling::kReciprocal,
     .takes_partial_blocks = true,
     .turns_scales = true},
    {.name = "DeepGEMM",
     .scale_rule = "amax at least 1e-4, scale = f32(max / amax), scale_inv = f32(amax / max)",
     .elements = kE4M3,
     .blocks = kColumnsOfAny,
     .scaling = ElementScaling::kReciprocal},
    {.name = "DeepGEMM, UE8M0",
     .scale_rule = "amax at least 1e-4, scale_inv = f32(amax / max) up to a power of two",
     .elements = kE4M3,
     .blocks = kRowsAndTilesOfAny,
     .scaling = ElementScaling::kReciprocal,
     .takes_partial_blocks = true},
    {.name = "DeepGEMM, UE8M0",
     .scale_rule = "amax at least 1e-4, scale_inv = f32(amax / max) up to a power of two",
     .elements = kE4M3,
     .blocks = kColumnsOfAny,
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
    {.name = "Transformer Engine, cuBLAS, cuDNN",
     .scale_rule = "round_up",
     .elements = kFp8,
     .blocks = kRowsOf32},
    {.name = "Transformer Engine, MXFP8",
     .scale_rule = "round_up",
     .elements = kFp8,
     .blocks = kColumnsAndTilesOf32},
    {.name = "NVIDIA ModelOpt, MXFP4",
     .scale_rule = "round_up by log2",
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
    {.name = "DeepGEMM, UE8M0",
     .scale_rule = "amax at least 1e-4, 2^k",
     .elements = kE4M3,
     .blocks = kRowsAndTilesOfAny,
     .takes_partial_blocks = true,
     .turns_scales = true},
    {.name = "gguf, MXFP4",
     .scale_rule = "floor by log2",
     .elements = kE2M1,
     .blocks = kRowsOf32,
     .rounding = CodeRounding::kNearestTowardZero,
     .packing = CodePacking::kOneToAByte},
    {.name = "torchao, Float8Tensor",
     .scale_rule = "in t",
     .elements = kFp8,
     .blocks = kAnyGroups,
     .scaling = ElementScaling::kDivide,
     .has_fnuz = true},
    {.name = "torchao, Float8Tensor",
     .scale_rule = "in t, amax at least 1e-12",
     .elements = kFp8,
     .blocks = kAnyGroups,
     .scaling = ElementScaling::kDivide,
     .has_fnuz = true},
    {.name = "torchao, float8 training",
     .scale_rule = "scale kept",
     .elements = kFp8,
     .blocks = kTensorOrLines,
     .scaling = ElementScaling::kMultiply,
     .has_fnuz = true},
    {.name = "torchao, float8 training, power of two",
     .scale_rule = "scale kept, power of two",
     .elements = kFp8,
     .blocks = kTensorOrLines,
     .scaling = ElementScaling::kMultiply,
     .has_fnuz = true},
    {.name = "compressed-tensors, FP8",
     .scale_rule = "in t, of zeros epsilon",
     .elements = kE4M3,
     .blocks = kAnyGroups,
     .scaling = ElementScaling::kDivideInType,
     .takes_partial_blocks = true},
    {.name = "compressed-tensors, FP8 with dynamic scales",
     .scale_rule = "in t, of zeros epsilon",
     .elements = kE4M3,
     .blocks = kAnyGroups,
     .scaling = ElementScaling::kDivideInType,
     .zeros = ZeroSign::kPositive,
     .takes_partial_blocks = true},
    {.name = "NVIDIA ModelOpt, FP8",
     .scale_rule = "in t",
     .elements = kE4M3,
     .blocks = kAnyGroups,
     .scaling = ElementScaling::kDivideInType,
     .takes_partial_blocks = true},
    {.name = "optimum-quanto, FP8",
     .scale_rule = "in t",
     .elements = kFp8,
     .blocks = kTensorOrLines,
     .scaling = ElementScaling::kDivideInType,
     .has_fnuz = true},
    {.name = "Transformers, fine-grained FP8",
     .scale_rule = "reciprocal of amax, of zeros 1",
     .elements = kE4M3,
     .blocks = kAnyGroups,
     .scaling = ElementScaling::kMultiply},
    {.name = "Transformers, fine-grained FP8, UE8M0",
     .scale_rule = "round_up of the reciprocal",
     .elements = kE4M3,
     .blocks = kAnyGroups},
    {.name = "PyTorch, x * (max / amax) in fp32",
     .scale_rule = "scale kept, reciprocal",
     .elements = kFp8,
     .blocks = kTensorOrLines,
     .scaling = ElementScaling::kMultiply,
     .has_fnuz = true},
    {.name = "PyTorch, x * (max / amax)",
     .scale_rule = "scale kept, reciprocal in t",
     .elements = kFp8,
     .blocks = kTensorOrLines,
     .scaling = ElementScaling::kMultiplyInType,
     .has_fnuz = true},
    {.name = "qwix",
     .scale_rule = "qwix",
     .elements = kFp8,
     .blocks = kAnyGroups,
     .has_fnuz = true},
    {.name = "qwix",
     .scale_rule = "qwix, tensor",
     .elements = kFp8,
     .blocks = kTensorOrLines,
     .has_fnuz = true},
    {.name = "qwix, MX",
     .scale_rule = "qwix, power of two",
     .elements = kE4M3AndE2M1,
     .blocks = kRowsOf32,
     .packing = CodePacking::kOneToAByte},
    {.name = "qwix, NVFP4",
     .scale_rule = "qwix, e4m3",
     .elements = kE2M1,
     .blocks = kRowsOf16,
     .packing = CodePacking::kOneToAByte},
    {.name = "NVIDIA ModelOpt, MXFP8",
     .scale_rule = "round_up by log2",
     .elements = kE4M3,
     .blocks = kRowsOf32,
     .takes_partial_blocks = true},
    {.name = "torchao RCEIL",
     .scale_rule = "rceil",
     .elements = kAllElements,
     .blocks = kRowsOf32,
     .orientation = Orientation::kEither},
    {.name = "torchao FLOOR",
     .scale_rule = "floor of torchao",
     .elements = kAllElements,
     .blocks = kRowsOf32,
     .orientation = Orientation::kEither},
    {.name = "torchao CEIL",
     .scale_rule = "ceil of torchao",
     .elements = kAllElements,
     .blocks = kRowsOf32,
     .orientation = Orientation::kEither},
    {.name = "torchao EVEN",
     .scale_rule = "even of torchao",
     .elements = kAllElements,
     .blocks = kRowsOf32,
     .orientation = Orientation::kEither},
    {.name = "compressed-tensors, MXFP8",
     .scale_rule = "even at one place",
     .elements = kE4M3,
     .blocks = kRowsOf32},
    {.name = "compressed-tensors, MXFP6",
     .scale_rule = "even at one place",
     .elements = kFp6E2M3,
     .blocks = kRowsOf32,
     .packing = CodePacking::kSixBits},
    {.name = "compressed-tensors, MXFP4",
     .scale_rule = "even at one place",
     .elements = kE2M1,
     .blocks = kRowsOf32,
     .zeros = ZeroSign::kPositive},
    {.name = "gfloat",
     .scale_rule = "floor",
     .elements = kAllElements,
     .blocks = kRowsOf32,
     .packing = CodePacking::kOneToAByte},
    {.name = "gfloat",
     .scale_rule = "floor",
     .elements = kAllElements,
     .blocks = kRowsOf32,
     .rounding = CodeRounding::kNearestAway,
     .packing = CodePacking::kOneToAByte},
    {.name = "gfloat",
     .scale_rule = "floor",
     .elements = kAllElements,
     .blocks = kRowsOf32,
     .rounding = CodeRounding::kTowardZero,
     .packing = CodePacking::kOneToAByte},
    {.name = "vLLM, NVFP4",
     .scale_rule = "two_level by reciprocals",
     .elements = kE2M1,
     .blocks = kRowsOf16,
     .scaling = ElementScaling::kMultiply,
     .zeros = ZeroSign::kPositive},
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
     .zeros = ZeroSign::kPositive,
     .takes_partial_blocks = true},
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
bool MarksNonFinite(const StoredCodes& stored, const BlockMaxima& maxima) {
  for (size_t at = 0; at < stored.scales.size(); ++at) {
    const bool is_finite = maxima.has_nan[at] == 0 && std::isfinite(maxima.amaxes[at]);
    if (!is_finite && stored.scales[at] != 0xFF) return false;
  }
  return true;
}

/// Whether elements are of a format and lie as the library's.
bool HasElements(const ScaledGroup& group, const LibraryQuantizer& quantizer) {
  const auto& elements = quantizer.elements;
  const StoredCodes& stored = *group.stored;
  if (std::find(elements.begin(), elements.end(), group.format->dtype) == elements.end()) {
    return false;
  }
  if (group.format->is_fnuz && !quantizer.has_fnuz) return false;
  if (!stored.scale_order.empty() && !quantizer.turns_scales) return false;
  const bool may_be_packed =
      group.format->dtype == DType::kF4E2M1x2 || quantizer.packing == CodePacking::kSixBits;
  return stored.packing == (may_be_packed ? quantizer.packing : CodePacking::kUsual);
}

/// Whether elements are scaled as the library scales those of such a source.
bool HasScaling(const ScaledGroup& group, ElementScaling scaling,
                const LibraryQuantizer& quantizer) {
  if (!quantizer.scaling.has_value()) return true;
  const bool is_f32 = group.stored->source == DType::kF32;
  return scaling == (is_f32 ? InF32(*quantizer.scaling) : *quantizer.scaling);
}

/// Whether the codes of all zeros have this sign.
bool HasZeros(const RoundingCounts& counts, ZeroSign sign) {
  return counts.of(sign).matches == counts.zeros;
}

/// Nearest even stands for every rule of ties that has the same codes here.
bool HasRounding(const RoundingCounts& counts, std::optional<CodeRounding> rounding,
                 std::optional<CodeRounding> of_library) {
  if (of_library == rounding) return true;
  return rounding == CodeRounding::kNearestEven && of_library.has_value() &&
         IsNearest(*of_library) && counts.of(*of_library).telling == 0;
}

}  // namespace

std::vector<std::string_view> LibrariesOf(const ScaledGroup& group, const ScaledBy& by,
                                          const RoundingCounts& counts,
                                          std::optional<CodeRounding> rounding) {
  std::vector<std::string_view> names;
  if (group.overflow != Overflow::kSaturate && counts.overflowing > 0) return names;
  // 4over6 has blocks and elements of its own.
  if (!by.scaled->library.empty()) {
    if (HasZeros(counts, ZeroSign::kKept)) names.push_back(by.scaled->library);
    return names;
  }
  for (const LibraryQuantizer& quantizer : kLibraryQuantizers) {
    if (HasRule(*by.scaled, quantizer.scale_rule) && HasScaling(group, by.scaling, quantizer) &&
        HasRounding(counts, rounding, quantizer.rounding) && HasElements(group, quantizer) &&
        HasBlocks(*group.stored, by.scaled->blocks(), quantizer) &&
        HasOrientation(*group.stored, by.scaled->blocks(), quantizer) &&
        HasZeros(counts, quantizer.zeros) &&
        (!quantizer.marks_non_finite || MarksNonFinite(*group.stored, *by.scaled->maxima))) {
      names.push_back(quantizer.name);
    }
  }
  return names;
}

}  // namespace quantgate
