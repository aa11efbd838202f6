#include "kernels/tensor/quantizer_format.h"

#include <string>

namespace quantgate {
namespace {

constexpr DType kFp8Elements[] = {DType::kF8E4M3, DType::kF8E5M2, DType::kF8E4M3Fnuz,
                                  DType::kF8E5M2Fnuz};
constexpr DType kMxElements[] = {DType::kF8E4M3, DType::kF8E5M2, DType::kF6E2M3, DType::kF6E3M2,
                                 DType::kF4E2M1x2};
constexpr DType kFp4Elements[] = {DType::kF4E2M1x2};

constexpr DType kInt8Elements[] = {DType::kI8, DType::kU8};
constexpr DType kInt4Elements[] = {DType::kI4x2, DType::kU4x2};
constexpr DType kNf4Elements[] = {DType::kNf4x2};
constexpr DType kBnbFp4Elements[] = {DType::kBnbFp4x2};

constexpr ScaleRule kInt8Rules[] = {ScaleRule::kTorchao,      ScaleRule::kCompressedTensors,
                                    ScaleRule::kModelopt,     ScaleRule::kQuanto,
                                    ScaleRule::kBitsandbytes, ScaleRule::kBitnet,
                                    ScaleRule::kGguf,         ScaleRule::kQwix};
constexpr ScaleRule kInt4Rules[] = {ScaleRule::kTorchao,  ScaleRule::kCompressedTensors,
                                    ScaleRule::kModelopt, ScaleRule::kQuanto,
                                    ScaleRule::kTinygemm, ScaleRule::kGguf,
                                    ScaleRule::kQwix};
constexpr ScaleRule kNf4Rules[] = {ScaleRule::kBitsandbytes, ScaleRule::kTorchao,
                                   ScaleRule::kModelopt, ScaleRule::kQwix};
constexpr ScaleRule kBnbFp4Rules[] = {ScaleRule::kBitsandbytes};
constexpr ScaleRule kFp8Rules[] = {
    ScaleRule::kDivide,  ScaleRule::kReciprocal, ScaleRule::kReciprocalProduct,
    ScaleRule::kInverse, ScaleRule::kFloat64,    ScaleRule::kQwix};
constexpr ScaleRule kMxRules[] = {ScaleRule::kRoundUp,      ScaleRule::kFloor,
                                  ScaleRule::kCeil,         ScaleRule::kEven,
                                  ScaleRule::kNearest,      ScaleRule::kTorchaoRceil,
                                  ScaleRule::kTorchaoFloor, ScaleRule::kTorchaoCeil,
                                  ScaleRule::kTorchaoEven,  ScaleRule::kCompressedTensors,
                                  ScaleRule::kModelopt,     ScaleRule::kGguf,
                                  ScaleRule::kQwix};
constexpr ScaleRule kTwoLevelRules[] = {ScaleRule::kTwoLevel,
                                        ScaleRule::kTwoLevelClamped,
                                        ScaleRule::kSingleLevel,
                                        ScaleRule::kTorchaoTwoLevel,
                                        ScaleRule::kTorchaoSingleLevel,
                                        ScaleRule::kCompressedTensors,
                                        ScaleRule::kModelopt,
                                        ScaleRule::kQwix,
                                        ScaleRule::kVllm};

/// FP8 under fp32 scales of `length` elements or of tiles of it on a side.
constexpr ScalingTraits Fp8Groups(QuantizerFormat format, std::string_view name, int length,
                                  ScaleMode lines, ScaleMode tiles) {
  return {.format = format,
          .name = name,
          .scales = ScaleKind::kF32,
          .block_length = length,
          .is_micro = false,
          .turns_columnwise = true,
          .scale_modes = {lines, tiles},
          .elements = kFp8Elements,
          .rules = kFp8Rules};
}

constexpr ScalingTraits kFormats[] = {
    {.format = QuantizerFormat::kIdentity,
     .name = "identity",
     .scales = ScaleKind::kNone,
     .block_length = 1,
     .is_micro = false,
     .turns_columnwise = false,
     .scale_modes = {ScaleMode::kNone, ScaleMode::kNone},
     .elements = {},
     .rules = {}},
    {.format = QuantizerFormat::kFp8Tensor,
     .name = "fp8_tensor",
     .scales = ScaleKind::kTensor,
     .block_length = 1,
     .is_micro = false,
     .turns_columnwise = true,
     .scale_modes = {ScaleMode::kTensor, ScaleMode::kTensor},
     .elements = kFp8Elements,
     .rules = kFp8Rules},
    Fp8Groups(QuantizerFormat::kFp8Block, "fp8_block", 128, ScaleMode::k1x128, ScaleMode::k128x128),
    {.format = QuantizerFormat::kMxfp8,
     .name = "mxfp8",
     .scales = ScaleKind::kE8m0,
     .block_length = 32,
     .is_micro = true,
     .turns_columnwise = false,
     .scale_modes = {ScaleMode::kMx32, ScaleMode::kMx32},
     .elements = kMxElements,
     .rules = kMxRules},
    {.format = QuantizerFormat::kNvfp4,
     .name = "nvfp4",
     .scales = ScaleKind::kTwoLevel,
     .block_length = 16,
     .is_micro = true,
     .turns_columnwise = true,
     .scale_modes = {ScaleMode::kNv16, ScaleMode::kNv16},
     .elements = kFp4Elements,
     .rules = kTwoLevelRules},
    {.format = QuantizerFormat::kFp8Rowwise,
     .name = "fp8_rowwise",
     .scales = ScaleKind::kLine,
     .block_length = 1,
     .is_micro = false,
     .turns_columnwise = true,
     .scale_modes = {ScaleMode::kOuter, ScaleMode::kOuter},
     .elements = kFp8Elements,
     .rules = kFp8Rules},
    Fp8Groups(QuantizerFormat::kFp8Block32, "fp8_block32", 32, ScaleMode::k1x32, ScaleMode::k32x32),
    Fp8Groups(QuantizerFormat::kFp8Block64, "fp8_block64", 64, ScaleMode::k1x64, ScaleMode::k64x64),
    Fp8Groups(QuantizerFormat::kFp8Block256, "fp8_block256", 256, ScaleMode::k1x256,
              ScaleMode::k256x256),
    {.format = QuantizerFormat::kInt8,
     .name = "int8",
     .scales = ScaleKind::kLevels,
     .block_length = 1,
     .is_micro = false,
     .turns_columnwise = true,
     .scale_modes = {ScaleMode::kGroup, ScaleMode::kGroup},
     .elements = kInt8Elements,
     .rules = kInt8Rules,
     .group = kLineGroup},
    {.format = QuantizerFormat::kInt4,
     .name = "int4",
     .scales = ScaleKind::kLevels,
     .block_length = 1,
     .is_micro = false,
     .turns_columnwise = true,
     .scale_modes = {ScaleMode::kGroup, ScaleMode::kGroup},
     .elements = kInt4Elements,
     .rules = kInt4Rules,
     .group = 128},
    {.format = QuantizerFormat::kNf4,
     .name = "nf4",
     .scales = ScaleKind::kLevels,
     .block_length = 1,
     .is_micro = false,
     .turns_columnwise = true,
     .scale_modes = {ScaleMode::kGroup, ScaleMode::kGroup},
     .elements = kNf4Elements,
     .rules = kNf4Rules,
     .group = 64,
     .has_runs = true},
    {.format = QuantizerFormat::kBnbFp4,
     .name = "bnb_fp4",
     .scales = ScaleKind::kLevels,
     .block_length = 1,
     .is_micro = false,
     .turns_columnwise = true,
     .scale_modes = {ScaleMode::kGroup, ScaleMode::kGroup},
     .elements = kBnbFp4Elements,
     .rules = kBnbFp4Rules,
     .group = 64,
     .has_runs = true},
};

constexpr bool IsInOrder() {
  int index = 0;
  for (const ScalingTraits& traits : kFormats) {
    if (static_cast<int>(traits.format) != index++) return false;
  }
  return true;
}
static_assert(IsInOrder(), "a row for each enumerator, in their order");

}  // namespace

const ScalingTraits& TraitsOf(QuantizerFormat format) { return kFormats[static_cast<int>(format)]; }

std::span<const ScalingTraits> AllQuantizerFormats() { return kFormats; }

std::string QuantizerFormatNames() {
  std::string names;
  for (const ScalingTraits& traits : kFormats) {
    if (!names.empty()) names += ", ";
    names += traits.name;
  }
  return names;
}

std::string GroupText(int group) {
  return group == kTensorGroup ? "tensor" : group == kLineGroup ? "row" : std::to_string(group);
}

ScaleBlock ScaleBlockOf(ScaleMode mode) {
  for (const ScalingTraits& traits : kFormats) {
    if (!traits.has_blocks()) continue;
    const DType dtype = ScaleDType(traits.scales);
    // Micro formats store the scales of tiles as those of lines.
    if (mode == traits.scale_modes[0]) return {dtype, 1, traits.block_length};
    if (mode == traits.scale_modes[1]) return {dtype, traits.block_length, traits.block_length};
  }
  return {};
}

DType ScaleDType(ScaleKind scales) {
  switch (scales) {
    case ScaleKind::kE8m0:
      return DType::kF8E8M0;
    case ScaleKind::kTwoLevel:
      return DType::kF8E4M3;
    case ScaleKind::kNone:
    case ScaleKind::kTensor:
    case ScaleKind::kLine:
    case ScaleKind::kF32:
    case ScaleKind::kLevels:
      break;
  }
  return DType::kF32;
}

}  // namespace quantgate
