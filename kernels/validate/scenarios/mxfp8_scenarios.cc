// MXFP8: E8M0 scales at their boundaries, and where codes and scales stand; swizzled scales of
// NVFP4 too.
#include <algorithm>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/validate/scenarios/oracles/expected_copy.h"
#include "kernels/validate/scenarios/oracles/quantize_checks.h"
#include "kernels/validate/scenarios/scenario_groups.h"

namespace quantgate {
namespace {

constexpr int64_t kBlock = 32;

/// An amax just below, at or above 448 * 2^k, and the scale and code that it must get.
struct Boundary {
  float amax;
  uint8_t scale;
  uint8_t code;
};

// An amax of at most 448 * 2^k needs scale 2^k, a larger one 2^(k+1). 448 has code 0x7E and its
// half 0x76.
std::vector<Boundary> Boundaries() {
  std::vector<Boundary> boundaries;
  for (int k = -118; k <= 119; ++k) {
    const uint32_t bits = (uint32_t(k + 8 + 127) << 23) | 0x600000;  // 1.75 * 2^(k + 8).
    const auto scale = static_cast<uint8_t>(k + 127);
    boundaries.push_back({std::bit_cast<float>(bits - 1), scale, 0x7E});
    boundaries.push_back({std::bit_cast<float>(bits), scale, 0x7E});
    boundaries.push_back({std::bit_cast<float>(bits + 1), uint8_t(scale + 1), 0x76});
  }
  // Pads the list, since there must be whole blocks in both directions.
  while (boundaries.size() % kBlock != 0) boundaries.push_back({448.0f, 127, 0x7E});
  return boundaries;
}

// Row i has boundary i as its only nonzero element; columnwise the same tensor is transposed.
absl::Status CheckBoundaries(ScenarioContext& context) {
  const std::vector<Boundary> boundaries = Boundaries();
  const auto count = static_cast<int64_t>(boundaries.size());
  QG_ASSIGN_OR_RETURN(Tensor rows, Tensor::Allocate(DType::kF32, {count, kBlock}));
  std::fill_n(rows.as<float>(), rows.element_count(), 0.0f);
  for (int64_t i = 0; i < count; ++i) {
    rows.as<float>()[i * kBlock + i % kBlock] = boundaries[i].amax;
  }
  QG_ASSIGN_OR_RETURN(const Tensor columns, Transposed(rows));
  const Quantizer& quantizer = context.recipe().QuantizerFor(TensorRole::kInput);
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    const bool is_rowwise = usage == Usage::kRowwise;
    QG_ASSIGN_OR_RETURN(
        const QuantizedTensor quantized,
        QuantizeOn(context, is_rowwise ? rows : columns, quantizer, {is_rowwise, !is_rowwise}));
    QG_ASSIGN_OR_RETURN(const QuantizedTensor on_host, CopiesOnHost(context.engine(), quantized));
    const QuantizedCopy& copy = *on_host.copy(usage);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t element = is_rowwise ? i * kBlock + i % kBlock : i % kBlock * count + i;
      const std::string name =
          absl::StrCat(std::string(UsageName(usage)), " of amax ", boundaries[i].amax);
      context.ExpectEqual(name + " scale", copy.scale_inv.as<uint8_t>()[i], boundaries[i].scale);
      context.ExpectEqual(name + " code", copy.data.as<uint8_t>()[element], boundaries[i].code);
    }
  }
  return absl::OkStatus();
}

/// A [scales.size()][32] tensor of ones, row i under scale code scales[i].
absl::StatusOr<QuantizedTensor> OnesUnder(const std::vector<uint8_t>& scales) {
  const auto count = static_cast<int64_t>(scales.size());
  QuantizedCopy copy;
  copy.format = QuantizerFormat::kMxfp8;
  QG_ASSIGN_OR_RETURN(copy.data, Tensor::Allocate(DType::kF8E4M3, {count, kBlock}));
  std::fill_n(copy.data.as<uint8_t>(), count * kBlock, uint8_t{0x38});
  QG_ASSIGN_OR_RETURN(copy.scale_inv,
                      Tensor::FromBytes(DType::kF8E8M0, {count, 1},
                                        std::as_bytes(std::span<const uint8_t>(scales))));
  QuantizedTensor quantized;
  quantized.source_dtype = DType::kF32;
  quantized.shape = {count, kBlock};
  quantized.rowwise = std::move(copy);
  return quantized;
}

absl::Status CheckExtremeScales(ScenarioContext& context) {
  std::vector<uint8_t> scales;
  for (int code = 0; code < 256; ++code) scales.push_back(static_cast<uint8_t>(code));
  QG_ASSIGN_OR_RETURN(QuantizedTensor quantized, OnesUnder(scales));
  QuantizedCopy& copy = *quantized.rowwise;
  QG_ASSIGN_OR_RETURN(copy.data, context.ToEngine(copy.data));
  QG_ASSIGN_OR_RETURN(copy.scale_inv, context.ToEngine(copy.scale_inv));
  QG_ASSIGN_OR_RETURN(
      const Tensor values,
      context.engine().Dequantize(quantized, Usage::kRowwise, DType::kF32, context.cancellation()));
  QG_ASSIGN_OR_RETURN(const Tensor on_host, context.ToHost(values));
  for (int code = 0; code < 256; ++code) {
    // 2^(code - 127): code 0 is subnormal, 255 is NaN.
    const uint32_t bits = code == 255 ? 0x7FFFFFFF : code == 0 ? 0x00400000 : uint32_t(code) << 23;
    context.ExpectSameFloat(absl::StrCat("1 under scale code ", code),
                            on_host.as<float>()[code * kBlock + 7], std::bit_cast<float>(bits));
  }
  return absl::OkStatus();
}

absl::Status CheckColumnwiseLayout(ScenarioContext& context) {
  constexpr int64_t kRows = 64, kColumns = 160;
  const Quantizer& quantizer = context.recipe().QuantizerFor(TensorRole::kGradOutput);
  QG_ASSIGN_OR_RETURN(const Tensor source, context.Generate(Distribution::kLogNormalOutliers, 9,
                                                            DType::kBF16, {kRows, kColumns}));
  QG_ASSIGN_OR_RETURN(const QuantizedTensor quantized,
                      QuantizeOn(context, source, quantizer, {false, true}));
  const QuantizedCopy& copy = *quantized.columnwise;
  context.ExpectShape("columnwise codes", copy.data.shape(), {kRows, kColumns});
  context.ExpectShape("columnwise scales", copy.scale_inv.shape(), {kRows / kBlock, kColumns});
  QG_ASSIGN_OR_RETURN(const QuantizedTensor expected,
                      ExpectedQuantization(source, quantizer, {false, true}));
  QG_RETURN_IF_ERROR(ExpectSameQuantization(context, "x", quantized, expected));
  QG_ASSIGN_OR_RETURN(const Tensor values,
                      context.engine().Dequantize(quantized, Usage::kColumnwise, DType::kF32,
                                                  context.cancellation()));
  QG_ASSIGN_OR_RETURN(
      const Tensor expected_values,
      ExpectedValues(*expected.columnwise, Usage::kColumnwise, kRows, kColumns, DType::kF32));
  return context.ExpectSameBits("dequantized columnwise", values, expected_values);
}

/// docs/quantizers.md section 5: byte of scale (i, j) among 128 x 4 tiles, `tiles` of them along j.
int64_t SwizzledIndex(int64_t i, int64_t j, int64_t tiles) {
  return (i / 128 * tiles + j / 4) * 512 + i % 32 * 16 + i % 128 / 32 * 4 + j % 4;
}

absl::Status CheckSwizzle(ScenarioContext& context) {
  constexpr int64_t kRows = 160, kColumns = 192;
  const Quantizer& quantizer = context.recipe().QuantizerFor(TensorRole::kInput);
  QG_ASSIGN_OR_RETURN(const Tensor source, context.Generate(Distribution::kLogNormalOutliers, 31,
                                                            DType::kBF16, {kRows, kColumns}));
  QG_ASSIGN_OR_RETURN(QuantizedTensor quantized,
                      QuantizeOn(context, source, quantizer, {true, false}));
  QG_ASSIGN_OR_RETURN(const QuantizedTensor expected,
                      ExpectedQuantization(source, quantizer, {true, false}));
  const Tensor& compact = expected.rowwise->scale_inv;
  const ScaleArray array{quantizer.rowwise.format, 1, Usage::kRowwise, kRows, kColumns};
  QG_ASSIGN_OR_RETURN(const Tensor swizzled, context.engine().ConvertScales(
                                                 quantized.rowwise->scale_inv, array,
                                                 ScaleLayout::kLogical, ScaleLayout::kSwizzled));
  QG_ASSIGN_OR_RETURN(const Tensor on_host, context.ToHost(swizzled));
  const int64_t blocks = compact.columns();
  const int64_t tiles = (blocks + 3) / 4;
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < blocks; ++j) {
      context.ExpectEqual(absl::StrCat("swizzled scale of row ", i, " block ", j),
                          on_host.as<uint8_t>()[SwizzledIndex(i, j, tiles)],
                          compact.as<uint8_t>()[i * blocks + j]);
    }
  }
  // Brings the scales back from the swizzled layout; dequantization must find the same scales.
  QG_ASSIGN_OR_RETURN(quantized.rowwise->scale_inv,
                      context.engine().ConvertScales(swizzled, array, ScaleLayout::kSwizzled,
                                                     ScaleLayout::kLogical));
  QG_ASSIGN_OR_RETURN(
      const Tensor values,
      context.engine().Dequantize(quantized, Usage::kRowwise, DType::kF32, context.cancellation()));
  QG_ASSIGN_OR_RETURN(
      const Tensor expected_values,
      ExpectedValues(*expected.rowwise, Usage::kRowwise, kRows, kColumns, DType::kF32));
  return context.ExpectSameBits("dequantized after the round trip", values, expected_values);
}

/// Rows of the parts of one tensor, such as those of experts: an even split has 128 in each.
constexpr int64_t kUnevenRows[] = {192, 160, 32};
constexpr int64_t kEvenRows = 128;

// Neither the rows nor the blocks of a line (7 of mxfp8, 14 of nvfp4) fill tiles of 128 x 4.
absl::Status CheckSwizzledPadding(ScenarioContext& context) {
  constexpr int64_t kColumns = 224;
  const Quantizer& quantizer = context.recipe().QuantizerFor(TensorRole::kInput);
  for (const int64_t rows : kUnevenRows) {
    QG_ASSIGN_OR_RETURN(
        const Tensor source,
        context.Generate(Distribution::kLogNormalOutliers, rows, DType::kBF16, {rows, kColumns}));
    QG_ASSIGN_OR_RETURN(const QuantizedTensor quantized,
                        QuantizeOn(context, source, quantizer, {true, false}));
    const ScaleArray array{quantizer.rowwise.format, 1, Usage::kRowwise, rows, kColumns};
    QG_ASSIGN_OR_RETURN(const Tensor swizzled, context.engine().ConvertScales(
                                                   quantized.rowwise->scale_inv, array,
                                                   ScaleLayout::kLogical, ScaleLayout::kSwizzled));
    QG_ASSIGN_OR_RETURN(const QuantizedTensor copies,
                        ExpectedQuantization(source, quantizer, {true, false}));
    const Tensor& compact = copies.rowwise->scale_inv;
    const int64_t blocks = compact.columns();
    const int64_t row_tiles = (rows + 127) / 128, block_tiles = (blocks + 3) / 4;
    QG_ASSIGN_OR_RETURN(Tensor expected,
                        Tensor::Allocate(compact.dtype(), {128 * row_tiles, 4 * block_tiles}));
    std::fill_n(expected.as<uint8_t>(), expected.element_count(), uint8_t{0});
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < blocks; ++j) {
        expected.as<uint8_t>()[SwizzledIndex(i, j, block_tiles)] =
            compact.as<uint8_t>()[i * blocks + j];
      }
    }
    QG_RETURN_IF_ERROR(context.ExpectSameBits(absl::StrCat("swizzled scales of ", rows, " rows"),
                                              swizzled, expected));
  }
  return absl::OkStatus();
}

EngineAlterations FloorScales() {
  return {.quantize = [](Engine& engine, QuantizeCall call) {
    for (QuantizerSpec* spec : {&call.quantizer.rowwise, &call.quantizer.columnwise}) {
      if (spec->format == QuantizerFormat::kMxfp8) spec->scale_rule = ScaleRule::kFloor;
    }
    return call.On(engine);
  }};
}

/// Dequantizes every element of a block whose scale code is `code` to `value`.
EngineAlterations ScaleCodeReadAs(uint8_t code, float value) {
  return {
      .dequantize = [code, value](Engine& engine, DequantizeCall call) -> absl::StatusOr<Tensor> {
        QG_ASSIGN_OR_RETURN(const Tensor values, call.On(engine));
        const std::optional<QuantizedCopy>& copy = call.quantized.rowwise;
        if (!copy.has_value() || copy->format != QuantizerFormat::kMxfp8) return values;
        QG_ASSIGN_OR_RETURN(const Tensor scales, engine.ToHost(copy->scale_inv, nullptr));
        return WithAlteredBytes(engine, values, [&](Tensor& altered) {
          for (int64_t i = 0; i < altered.element_count(); ++i) {
            if (scales.as<uint8_t>()[i / kBlock] == code) SetValue(altered, i, value);
          }
        });
      }};
}
EngineAlterations ScaleZeroIsZero() { return ScaleCodeReadAs(0, 0.0f); }
EngineAlterations ScaleNanIsInfinity() {
  return ScaleCodeReadAs(255, std::bit_cast<float>(0x7F800000u));
}

EngineAlterations TransposedColumnwise() {
  return {.quantize = [](Engine& engine, QuantizeCall call) -> absl::StatusOr<QuantizedTensor> {
    QG_ASSIGN_OR_RETURN(QuantizedTensor quantized, call.On(engine));
    if (!quantized.columnwise.has_value()) return quantized;
    QuantizedCopy& copy = *quantized.columnwise;
    QG_ASSIGN_OR_RETURN(const Tensor on_host, engine.ToHost(copy.data, nullptr));
    QG_ASSIGN_OR_RETURN(const Tensor turned, Transposed(on_host));
    QG_ASSIGN_OR_RETURN(copy.data, engine.ToDevice(turned, nullptr));
    return quantized;
  }};
}

EngineAlterations SwizzledReadAsCompact() {
  return {.convert_scales = [](Engine& engine, ConvertScalesCall call) {
    if (call.from == ScaleLayout::kSwizzled) call.from = ScaleLayout::kPadded;
    return call.On(engine);
  }};
}

/// Gives the swizzled scales of every part the shape that they have in an even split.
EngineAlterations SwizzledAsEvenSplit() {
  return {.convert_scales = [](Engine& engine, ConvertScalesCall call) -> absl::StatusOr<Tensor> {
    QG_ASSIGN_OR_RETURN(const Tensor converted, call.On(engine));
    if (call.to != ScaleLayout::kSwizzled || converted.rows() <= kEvenRows) return converted;
    return converted.RowRange(0, kEvenRows);
  }};
}

/// Writes the scales alone: their padding has what stood in the memory before, the compact scales.
EngineAlterations StalePadding() {
  return {.convert_scales = [](Engine& engine, ConvertScalesCall call) -> absl::StatusOr<Tensor> {
    QG_ASSIGN_OR_RETURN(const Tensor converted, call.On(engine));
    if (call.to != ScaleLayout::kSwizzled) return converted;
    QG_ASSIGN_OR_RETURN(const Tensor before, engine.ToHost(call.scales, nullptr));
    // Converted, scales whose bytes are all 1 tell padding from scales.
    QG_ASSIGN_OR_RETURN(call.scales, WithAlteredBytes(engine, before, [](Tensor& bytes) {
                          std::fill_n(bytes.as<uint8_t>(), bytes.element_count(), uint8_t{1});
                        }));
    QG_ASSIGN_OR_RETURN(const Tensor ones, call.On(engine));
    QG_ASSIGN_OR_RETURN(const Tensor is_scale, engine.ToHost(ones, nullptr));
    return WithAlteredBytes(engine, converted, [&](Tensor& bytes) {
      for (int64_t i = 0; i < bytes.element_count(); ++i) {
        if (is_scale.as<uint8_t>()[i] != 0) continue;
        bytes.as<uint8_t>()[i] = before.as<uint8_t>()[i % before.element_count()];
      }
    });
  }};
}

}  // namespace

ScenarioGroup Mxfp8Scenarios() {
  ScenarioGroup group;
  group.scenarios.push_back(
      {.name = "e8m0-scales-round-up",
       .invariant = "A block's scale is the smallest power of two under which nothing saturates.",
       .criterion = "Scale and code of amaxes one ulp below, at and one above 448 * 2^k for every "
                    "normal scale, by integer arithmetic on the exponent.",
       .bug_classes = {28},
       .faults = {"e8m0-rounded-down"},
       .recipes = {"mxfp8"},
       .run = &CheckBoundaries});
  group.scenarios.push_back(
      {.name = "e8m0-extreme-codes",
       .invariant = "Every E8M0 code dequantizes to its power of two, 0 to 2^-127 and 255 to NaN.",
       .criterion = "Bit-equal to 2^(code - 127) for all 256 codes.",
       .bug_classes = {28},
       .faults = {"e8m0-zero-is-zero", "e8m0-nan-is-infinity"},
       .recipes = {"mxfp8"},
       .run = &CheckExtremeScales});
  group.scenarios.push_back(
      {.name = "mxfp8-columnwise-untransposed",
       .invariant = "Columnwise MXFP8 codes keep the layout of the source.",
       .criterion = "Shapes [M][K] and [M/32][K], codes and values bit-equal to a recomputation, "
                    "M != K.",
       .bug_classes = {29},
       .faults = {"mxfp8-columnwise-transposed"},
       .recipes = {"mxfp8", "mxfp8:fp8_format=hybrid"},
       .run = &CheckColumnwiseLayout});
  group.scenarios.push_back(
      {.name = "swizzled-scales-round-trip",
       .invariant = "Scales in the tensor cores' order are not read as if they stood in rows.",
       .criterion = "Each swizzled byte by the formula; values after the way back bit-equal to "
                    "those of the codes.",
       .bug_classes = {31},
       .faults = {"swizzled-scales-read-as-compact"},
       .recipes = {"mxfp8"},
       .run = &CheckSwizzle});
  group.scenarios.push_back(
      {.name = "swizzled-scales-fill-tiles",
       .invariant = "Scales in the tensor cores' order have the shape of their own tensor's tiles "
                    "of 128 x 4, and zeros where a tile has no scale.",
       .criterion =
           "Shape and every byte by the formula, of three parts with unequal rows and with "
           "blocks that fill no tile.",
       .bug_classes = {58, 60},
       .faults = {"swizzled-shape-of-even-split", "stale-padded-scales"},
       .recipes = {"mxfp8", "nvfp4"},
       .run = &CheckSwizzledPadding});
  group.faults = {
      {"e8m0-rounded-down", "Takes the power of two below amax / 448.", 28, &FloorScales},
      {"e8m0-zero-is-zero", "Reads scale code 0 as zero.", 28, &ScaleZeroIsZero},
      {"e8m0-nan-is-infinity", "Reads scale code 255 as infinity.", 28, &ScaleNanIsInfinity},
      {"mxfp8-columnwise-transposed", "Transposes columnwise codes, as per-tensor FP8 does.", 29,
       &TransposedColumnwise},
      {"swizzled-scales-read-as-compact", "Reads swizzled scales as the padded array.", 31,
       &SwizzledReadAsCompact},
      {"swizzled-shape-of-even-split",
       "Gives the swizzled scales of unequal parts the shape of an even split.", 58,
       &SwizzledAsEvenSplit},
      {"stale-padded-scales", "Leaves in the padding of swizzled scales what the memory had.", 60,
       &StalePadding},
  };
  return group;
}

}  // namespace quantgate
