// Quantizers against what Transformer Engine's own kernels gave on a GPU: the record in
// tests/data/transformer_engine, whose head says how it was made. Every case is asked for as a user
// would, by a recipe and a role; codes, scales and amaxes are compared, none with a tolerance.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/numerics/hadamard.h"
#include "kernels/quantize/fragment.h"
#include "kernels/quantize/recipe/delayed_scaling.h"
#include "kernels/quantize/recipe/recipe.h"
#include "kernels/quantize/scale_layout.h"
#include "kernels/tensor/convert.h"
#include "kernels/tensor/files/tensor_file.h"
#include "tests/quantize/vector_tensors.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::Digest64;
using testing::VectorFile;
using Words = std::vector<std::string>;

const VectorFile& Record() {
  static const auto& record =
      *new VectorFile(testing::ReadVectors("transformer_engine/vectors.txt"));
  return record;
}

const TensorFile& Kept() {
  static const auto& file = *new TensorFile(*ReadSafetensors(
      std::string(QUANTGATE_SOURCE_DIR) + "/tests/data/transformer_engine/inputs.safetensors"));
  return file;
}

DType SourceDType(const std::string& input) {
  return input.starts_with("b.") ? DType::kBF16 : DType::kF32;
}

/// The inputs by name; the digest of each is that of what the library was given.
const std::map<std::string, Tensor>& Inputs() {
  static const auto& inputs = *[] {
    auto* all = new std::map<std::string, Tensor>;
    for (const Words& words : Record().cases) {
      if (words[0] != "input") continue;
      const Tensor tensor = words[2] == "kept"
                                ? *Kept().Find(words[1])
                                : *CastTensor(all->at(words[2]), SourceDType(words[1]), {});
      EXPECT_EQ(Digest64({tensor}), words[3]) << words[1] << " is not what the library was given";
      EXPECT_EQ(tensor.dtype(), SourceDType(words[1])) << words[1];
      all->emplace(words[1], tensor);
    }
    return all;
  }();
  return inputs;
}

float FloatOf(const std::string& bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(std::stoul(bits, nullptr, 16)));
}

std::string BitsOf(const Tensor& scalar) {
  EXPECT_EQ(scalar.element_count(), 1);
  char text[9];
  std::snprintf(text, sizeof(text), "%08x", *scalar.as<uint32_t>());
  return text;
}

Tensor FloatsOf(const std::string& comma_separated_bits) {
  std::vector<float> values;
  std::stringstream words(comma_separated_bits);
  for (std::string bits; std::getline(words, bits, ',');) values.push_back(FloatOf(bits));
  return *Tensor::FromBytes(DType::kF32, {static_cast<int64_t>(values.size())},
                            std::as_bytes(std::span(values)));
}

/// The role that has this element under the recipes below.
TensorRole RoleOf(const std::string& element) {
  return element == "f8_e4m3" ? TensorRole::kInput : TensorRole::kGradOutput;
}

Quantizer QuantizerOf(const std::string& recipe, TensorRole role) {
  const auto parsed = Recipe::Parse(recipe);
  EXPECT_TRUE(parsed.ok()) << recipe << ": " << parsed.status();
  return parsed.ok() ? parsed->QuantizerFor(role) : Quantizer();
}

std::string PowerOfTwoKnobs(const std::string& power_2, const std::string& epsilon) {
  return absl::StrCat("power_2_scales=", power_2 == "1" ? "true" : "false",
                      ",amax_epsilon=", epsilon);
}

/// The digest of one direction's scales in a layout.
std::string ScalesDigest(const QuantizedTensor& quantized, Usage usage, ScaleLayout layout) {
  const QuantizedCopy& copy = *quantized.copy(usage);
  const ScaleArray array = {copy.format, copy.block_dim, usage, quantized.shape[0],
                            quantized.shape[1]};
  return Digest64({*ConvertScales(copy.scale_inv, array, ScaleLayout::kLogical, layout)});
}

class TransformerEngine : public ::testing::TestWithParam<ExecutionContext> {
 protected:
  /// Calls `check` with the words of each case of a group, and expects `count` of them. The first
  /// that fails says enough.
  template <class Check>
  void ForEachCase(const std::string& group, int count, const Check& check) {
    int tried = 0;
    for (const Words& words : Record().cases) {
      if (words[0] != group) continue;
      std::string text;
      for (const std::string& word : words) absl::StrAppend(&text, word, " ");
      SCOPED_TRACE(text);
      check(words);
      ++tried;
      if (HasFailure()) return;
    }
    EXPECT_EQ(tried, count);
  }

  QuantizedTensor Quantize(const std::string& input, const Quantizer& quantizer,
                           const QuantizeArguments& arguments = {}) {
    return *QuantizeCpu(Inputs().at(input), quantizer, {true, true}, arguments, GetParam());
  }

  /// Codes and padded scales of both directions, as a case ends.
  void ExpectBlocks(const QuantizedTensor& quantized, const std::string* digests) {
    for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
      SCOPED_TRACE(UsageName(usage));
      EXPECT_EQ(Digest64({quantized.copy(usage)->data}), *digests++) << "codes";
      EXPECT_EQ(ScalesDigest(quantized, usage, ScaleLayout::kPadded), *digests++) << "scale_inv";
    }
  }
};

// INPUT ELEMENT POW2 EPS, amax, scale, scale_inv, codes, transposed codes
TEST_P(TransformerEngine, CurrentScaling) {
  ForEachCase("current", 156, [&](const Words& words) {
    ASSERT_EQ(words.size(), 10u);
    const QuantizedTensor quantized = Quantize(
        words[1],
        QuantizerOf("fp8_current:" + PowerOfTwoKnobs(words[3], words[4]), RoleOf(words[2])));
    EXPECT_EQ(quantized.rowwise->element, *ParseDType(words[2]));
    EXPECT_EQ(BitsOf(quantized.rowwise->amax), words[5]);
    EXPECT_EQ(BitsOf(quantized.rowwise->scale), words[6]);
    EXPECT_EQ(BitsOf(quantized.rowwise->scale_inv), words[7]);
    EXPECT_EQ(BitsOf(quantized.columnwise->scale_inv), words[7]);
    EXPECT_EQ(Digest64({quantized.rowwise->data}), words[8]) << "codes";
    EXPECT_EQ(Digest64({quantized.columnwise->data}), words[9]) << "transposed codes";
  });
}

// INPUT ELEMENT SCALE AMAX_BEFORE, amax after, scale_inv, codes, transposed codes
TEST_P(TransformerEngine, DelayedScaling) {
  ForEachCase("delayed", 182, [&](const Words& words) {
    ASSERT_EQ(words.size(), 9u);
    const Tensor scale = FloatsOf(words[3]), before = FloatsOf(words[4]);
    const QuantizedTensor quantized =
        Quantize(words[1], QuantizerOf("fp8_delayed", RoleOf(words[2])), {.scale = scale});
    EXPECT_EQ(quantized.rowwise->element, *ParseDType(words[2]));
    const DelayedScalingState after =
        *WithCast({scale, before}, *quantized.rowwise->amax.as<float>());
    EXPECT_EQ(BitsOf(after.amax_history), words[5]);
    EXPECT_EQ(BitsOf(quantized.rowwise->scale_inv), words[6]);
    EXPECT_EQ(BitsOf(quantized.columnwise->scale_inv), words[6]);
    EXPECT_EQ(Digest64({quantized.rowwise->data}), words[7]) << "codes";
    EXPECT_EQ(Digest64({quantized.columnwise->data}), words[8]) << "transposed codes";
  });
}

// INPUT ELEMENT BLOCK_DIM POW2 EPS, then codes and padded scale_inv of each direction
TEST_P(TransformerEngine, BlockScaling) {
  ForEachCase("block", 192, [&](const Words& words) {
    ASSERT_EQ(words.size(), 10u);
    const bool is_e4m3 = words[2] == "f8_e4m3", is_tile = words[3] == "2";
    std::string recipe = "fp8_block:" + PowerOfTwoKnobs(words[4], words[5]);
    TensorRole role = is_tile ? TensorRole::kWeight : TensorRole::kInput;
    if (!is_e4m3) {
      absl::StrAppend(&recipe, ",fp8_format=hybrid",
                      is_tile ? ",grad_block_dim=2,w_block_dim=1" : "");
      role = TensorRole::kGradOutput;
    }
    const QuantizedTensor quantized = Quantize(words[1], QuantizerOf(recipe, role));
    EXPECT_EQ(quantized.rowwise->element, *ParseDType(words[2]));
    EXPECT_EQ(absl::StrCat(quantized.rowwise->block_dim), words[3]);
    ExpectBlocks(quantized, &words[6]);
  });
}

// ELEMENT POW2 EPS, scale and scale_inv of each of the amaxes
TEST_P(TransformerEngine, ScalesOfShardedUpdates) {
  constexpr int64_t kLine = 128;  // Each amax begins a line of its own, zeros follow it.
  const Tensor amaxes = *Kept().Find("amaxes");
  const int64_t count = amaxes.element_count();
  Tensor lines = *Tensor::Allocate(DType::kF32, {count, kLine});
  std::fill_n(lines.as<float>(), count * kLine, 0.0f);
  for (int64_t i = 0; i < count; ++i) lines.as<float>()[i * kLine] = amaxes.as<float>()[i];
  ForEachCase("scales", 8, [&](const Words& words) {
    ASSERT_EQ(words.size(), 6u);
    const auto quantize = [&](const char* where) {
      const Quantizer quantizer = QuantizerOf(
          absl::StrCat("fp8_block:fp8_format=hybrid,", PowerOfTwoKnobs(words[2], words[3]),
                       ",flush_subnormals=", where),
          RoleOf(words[1]));
      EXPECT_EQ(quantizer.rowwise.element, *ParseDType(words[1]));
      return *QuantizeCpu(lines, quantizer, {true, false}, {}, GetParam());
    };
    EXPECT_EQ(Digest64({quantize("always").rowwise->scale_inv}), words[5]) << "scale_inv";
    // A floor of 0.001 lifts every amax to where no scale is subnormal or has a subnormal inverse.
    EXPECT_EQ(Digest64({quantize("never").rowwise->scale_inv}) == words[5], words[3] != "0");
    // From fragments that is the default, and per-tensor FP8 has the scale, too.
    const Quantizer per_tensor =
        QuantizerOf("fp8_current:" + PowerOfTwoKnobs(words[2], words[3]), RoleOf(words[1]));
    const TensorFragment fragment = {*Tensor::Allocate(DType::kF32, {0}), 0, {1, 1}};
    Tensor scales = *Tensor::Allocate(DType::kF32, {count});
    Tensor inverses = *Tensor::Allocate(DType::kF32, {count});
    for (int64_t i = 0; i < count; ++i) {
      const QuantizedFragment made =
          *QuantizeFragmentCpu(fragment, per_tensor.rowwise, Usage::kRowwise, {amaxes, i}, {}, {});
      scales.as<float>()[i] = *made.whole.scale.as<float>();
      inverses.as<float>()[i] = *made.whole.scale_inv.as<float>();
    }
    EXPECT_EQ(Digest64({scales}), words[4]) << "scale of fragments";
    EXPECT_EQ(Digest64({inverses}), words[5]) << "scale_inv of fragments";
  });
}

// INPUT, then codes and padded scale_inv of each direction
TEST_P(TransformerEngine, Mxfp8OfShardedUpdates) {
  ForEachCase("mxfp8p", 7, [&](const Words& words) {
    ASSERT_EQ(words.size(), 6u);
    ExpectBlocks(
        Quantize(words[1], QuantizerOf("mxfp8:flush_subnormals=always", TensorRole::kInput)),
        &words[2]);
    // Without flushing, which has loops of its own, only this input has blocks of other scales.
    const QuantizedTensor kept = Quantize(words[1], QuantizerOf("mxfp8", TensorRole::kInput));
    if (words[1] != "b.tiny") {
      ExpectBlocks(kept, &words[2]);
    } else {
      EXPECT_NE(ScalesDigest(kept, Usage::kRowwise, ScaleLayout::kPadded), words[3]);
    }
  });
}

// INPUT BLOCK_DIM, amax, padded scale_inv of each direction
TEST_P(TransformerEngine, ScalesOfNvfp4) {
  ForEachCase("nvfp4s", 10, [&](const Words& words) {
    ASSERT_EQ(words.size(), 6u);
    const Quantizer quantizer =
        words[2] == "2" ? QuantizerOf("nvfp4", TensorRole::kWeight)
                        : QuantizerOf("nvfp4:disable_rht=true", TensorRole::kGradOutput);
    const QuantizedTensor quantized = Quantize(words[1], quantizer, {.seed = 1});
    EXPECT_EQ(absl::StrCat(quantized.rowwise->block_dim), words[2]);
    EXPECT_EQ(BitsOf(quantized.rowwise->amax), words[3]);
    EXPECT_EQ(ScalesDigest(quantized, Usage::kRowwise, ScaleLayout::kPadded), words[4]);
    EXPECT_EQ(ScalesDigest(quantized, Usage::kColumnwise, ScaleLayout::kPadded), words[5]);
  });
}

/// [K][M]: the transform of every 16 elements of a column of bf16 [M][K].
Tensor TransposedTransform(const Tensor& source) {
  const int64_t rows = source.rows(), columns = source.columns();
  Tensor transformed = *Tensor::Allocate(DType::kBF16, {columns, rows});
  for (int64_t column = 0; column < columns; ++column) {
    for (int64_t row = 0; row < rows; row += kHadamardLength) {
      uint16_t group[kHadamardLength];
      for (int64_t i = 0; i < kHadamardLength; ++i) {
        group[i] = source.as<uint16_t>()[(row + i) * columns + column];
      }
      HadamardTransform(group, transformed.as<uint16_t>() + column * rows + row);
    }
  }
  return transformed;
}

// INPUT, the transposed transform. What NVFP4 makes of it by rows is what it makes of the columns
// of the input.
TEST_P(TransformerEngine, HadamardTransform) {
  ForEachCase("rht", 6, [&](const Words& words) {
    ASSERT_EQ(words.size(), 3u);
    const Tensor transformed = TransposedTransform(Inputs().at(words[1]));
    EXPECT_EQ(Digest64({transformed}), words[2]) << "transform";
    const QuantizedTensor of_columns = Quantize(words[1], QuantizerOf("nvfp4", TensorRole::kInput));
    const QuantizedTensor of_rows =
        *QuantizeCpu(transformed, QuantizerOf("nvfp4:disable_rht=true", TensorRole::kInput),
                     {true, false}, {}, GetParam());
    EXPECT_TRUE(of_columns.columnwise->hadamard);
    EXPECT_EQ(Digest64({of_columns.columnwise->data}), Digest64({of_rows.rowwise->data}));
    EXPECT_EQ(Digest64({of_columns.columnwise->scale_inv}), Digest64({of_rows.rowwise->scale_inv}));
    EXPECT_EQ(BitsOf(of_columns.columnwise->amax), BitsOf(of_rows.rowwise->amax));
  });
}

// INPUT ELEMENT, the codes of current scaling dequantized to f32, to bf16
TEST_P(TransformerEngine, DequantizedFp8) {
  ForEachCase("dequant", 26, [&](const Words& words) {
    ASSERT_EQ(words.size(), 5u);
    const QuantizedTensor quantized =
        Quantize(words[1], QuantizerOf("fp8_current", RoleOf(words[2])));
    const auto values = [&](DType dtype) {
      return Digest64({*DequantizeCpu(quantized, Usage::kRowwise, dtype, GetParam())});
    };
    EXPECT_EQ(values(DType::kF32), words[3]);
    EXPECT_EQ(values(DType::kBF16), words[4]);
  });
}

// AMAX, the tensors fp4_codes and fp4_scales dequantized under it to f32, to bf16
TEST_P(TransformerEngine, DequantizedNvfp4) {
  ForEachCase("dequant_fp4", 5, [&](const Words& words) {
    ASSERT_EQ(words.size(), 4u);
    const Tensor codes = *Kept().Find("fp4_codes");
    QuantizedCopy copy;
    copy.format = QuantizerFormat::kNvfp4;
    copy.element = DType::kF4E2M1x2;
    copy.data = *Tensor::FromBytes(DType::kF4E2M1x2, codes.shape(), codes.bytes());
    copy.scale_inv = *Kept().Find("fp4_scales");
    copy.amax = FloatsOf(words[1]);
    QuantizedTensor quantized;
    quantized.shape = {codes.rows(), 2 * codes.columns()};
    quantized.rowwise = copy;
    const auto values = [&](DType dtype) {
      return Digest64({*DequantizeCpu(quantized, Usage::kRowwise, dtype, GetParam())});
    };
    EXPECT_EQ(values(DType::kF32), words[2]);
    EXPECT_EQ(values(DType::kBF16), words[3]);
  });
}

INSTANTIATE_TEST_SUITE_P(EveryPath, TransformerEngine, ::testing::ValuesIn(testing::EveryPath()),
                         [](const auto& path) { return testing::PathName(path.param); });

/// What follows has one path.
class TransformerEngineOnce : public TransformerEngine {};
INSTANTIATE_TEST_SUITE_P(OnePath, TransformerEngineOnce, ::testing::Values(ExecutionContext()),
                         [](const auto&) { return "any"; });

// SLOT ALGORITHM MARGIN SCALE HISTORY, then scale and history after the update of one tensor, and
// after the fused one
TEST_P(TransformerEngineOnce, UpdatesOfHistories) {
  ForEachCase("update", 270, [&](const Words& words) {
    ASSERT_EQ(words.size(), 10u);
    const DelayedScalingState before = {FloatsOf(words[4]), FloatsOf(words[5])};
    const float max_finite = words[1] == "grad_output" ? 57344.0f : 448.0f;
    DelayedScalingOptions options = {
        .margin = std::stoi(words[3]),
        .amax_history_len = static_cast<int>(before.amax_history.element_count()),
        .algorithm = words[2] == "max" ? AmaxAlgorithm::kMax : AmaxAlgorithm::kMostRecent};
    const DelayedScalingState fused = *WithUpdate(before, options, max_finite);
    EXPECT_EQ(BitsOf(fused.scale), words[8]);
    EXPECT_EQ(Digest64({fused.amax_history}), words[9]) << "history, fused";
    // The kernel for one tensor moves the history of an amax of 0, too, as torch's operations do.
    options.update = ScaleUpdate::kUnfused;
    const DelayedScalingState plain = *WithUpdate(before, options, max_finite);
    EXPECT_EQ(BitsOf(plain.scale), words[6]);
    EXPECT_EQ(Digest64({plain.amax_history}), words[7]) << "history";
  });
}

// INPUT, swizzled scale_inv of each direction
TEST_P(TransformerEngineOnce, SwizzledScalesOfMxfp8) {
  ForEachCase("swizzle_mxfp8", 1, [&](const Words& words) {
    ASSERT_EQ(words.size(), 4u);
    const QuantizedTensor quantized =
        Quantize(words[1], QuantizerOf("mxfp8:flush_subnormals=always", TensorRole::kInput));
    EXPECT_EQ(ScalesDigest(quantized, Usage::kRowwise, ScaleLayout::kSwizzled), words[2]);
    EXPECT_EQ(ScalesDigest(quantized, Usage::kColumnwise, ScaleLayout::kSwizzled), words[3]);
  });
}

// SCALES USAGE M K, the library's own padded scales swizzled
TEST_P(TransformerEngineOnce, SwizzledScalesOfNvfp4) {
  ForEachCase("swizzle_nvfp4", 2, [&](const Words& words) {
    ASSERT_EQ(words.size(), 6u);
    const ScaleArray array = {QuantizerFormat::kNvfp4, 1,
                              words[2] == "rowwise" ? Usage::kRowwise : Usage::kColumnwise,
                              std::stoll(words[3]), std::stoll(words[4])};
    const Tensor swizzled =
        *ConvertScales(*Kept().Find(words[1]), array, ScaleLayout::kPadded, ScaleLayout::kSwizzled);
    EXPECT_EQ(Digest64({swizzled}), words[5]);
  });
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
