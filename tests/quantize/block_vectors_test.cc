// fp8_block, fp8_rowwise and mxfp8 against vectors of independent implementations
// (tests/vectors/fp8_block_reference.py and mxfp8_reference.py): codes, scales and dequantized
// values of both directions, together and each alone; each instruction set has its share.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/tensor/files/tensor_file.h"
#include "kernels/tensor/transpose.h"
#include "tests/quantize/vector_tensors.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::Digest64;
using testing::ValuesDigest;
using testing::VectorFile;

void ExpectCopy(const QuantizedTensor& quantized, Usage usage, const std::string* digests,
                const ExecutionContext& context) {
  SCOPED_TRACE(UsageName(usage));
  const QuantizedCopy& copy = *quantized.copy(usage);
  EXPECT_EQ(Digest64({copy.data}), digests[0]) << "codes";
  EXPECT_EQ(Digest64({copy.scale_inv}), digests[1]) << "scale_inv";
  if (quantized.usages() == Usages{true, true}) {
    EXPECT_EQ(ValuesDigest(quantized, usage, context), digests[2]) << "values";
  }
}

/// Expects the codes, scales and dequantized values of both directions of every case. The first two
/// words of a case are the source, those before `digests_begin` the rules that `quantizer_of`
/// reads, then come three digests per direction. Stops after the first case that fails.
void ExpectBlockVectors(const VectorFile& vectors, size_t digests_begin,
                        Quantizer (*quantizer_of)(const std::vector<std::string>& words),
                        const ExecutionContext& context) {
  for (const std::vector<std::string>& words : vectors.cases) {
    ASSERT_EQ(words.size(), digests_begin + 6);
    std::string text;
    for (size_t i = 0; i < digests_begin; ++i) text += words[i] + " ";
    if (!testing::RunsCase(context, text)) continue;
    SCOPED_TRACE(text);
    const Tensor& source = vectors.tensors.at(words[0] + " " + words[1]);
    for (const Usages usages : {Usages{true, true}, Usages{true, false}, Usages{false, true}}) {
      const auto quantized = QuantizeCpu(source, quantizer_of(words), usages, {}, context);
      ASSERT_TRUE(quantized.ok()) << quantized.status();
      EXPECT_EQ(quantized->usages(), usages);
      const std::string* digests = &words[digests_begin];
      if (usages.rowwise) ExpectCopy(*quantized, Usage::kRowwise, digests, context);
      if (usages.columnwise) ExpectCopy(*quantized, Usage::kColumnwise, digests + 3, context);
    }
    if (::testing::Test::HasFailure()) return;  // The first of a thousand cases says enough.
  }
}

class BlockVectors : public ::testing::TestWithParam<ExecutionContext> {};

TEST_P(BlockVectors, CodesScalesAndValuesOfFp8Block) {
  static const VectorFile vectors = testing::ReadVectors("fp8_block_vectors.txt");
  ASSERT_GT(vectors.cases.size(), 1000u);
  // NAME SOURCE ELEMENT BLOCK_DIM POW2 EPS RULE ROUNDING OVERFLOW
  ExpectBlockVectors(vectors, 9, testing::Fp8BlockQuantizer, GetParam());
}

TEST_P(BlockVectors, CodesScalesAndValuesOfFp8Rowwise) {
  static const VectorFile vectors = testing::ReadVectors("fp8_rowwise_vectors.txt");
  ASSERT_GT(vectors.cases.size(), 500u);
  // NAME SOURCE ELEMENT BLOCK_DIM POW2 EPS RULE ROUNDING OVERFLOW
  ExpectBlockVectors(vectors, 9, testing::Fp8RowwiseQuantizer, GetParam());
}

TEST_P(BlockVectors, CodesScalesAndValuesOfMxfp8) {
  static const VectorFile vectors = testing::ReadVectors("mxfp8_vectors.txt");
  ASSERT_GT(vectors.cases.size(), 1000u);
  // NAME SOURCE ELEMENT BLOCK_DIM RULE ROUNDING OVERFLOW
  ExpectBlockVectors(vectors, 7, testing::Mxfp8Quantizer, GetParam());
}

/// A line's scale by `divide`, from the definition alone.
float DividedScale(const Tensor& source, Usage usage, int64_t line, bool power_2) {
  const bool is_rowwise = usage == Usage::kRowwise;
  float amax = 0.0f;
  for (int64_t i = 0; i < (is_rowwise ? source.columns() : source.rows()); ++i) {
    const int64_t at = is_rowwise ? line * source.columns() + i : i * source.columns() + line;
    const float value = source.dtype() == DType::kF32
                            ? source.as<float>()[at]
                            : std::bit_cast<float>(uint32_t{source.as<uint16_t>()[at]} << 16);
    amax = std::max(amax, std::abs(value));
  }
  const float scale = 448.0f / amax;
  return power_2 ? std::bit_cast<float>(std::bit_cast<uint32_t>(scale) & 0xFF800000) : scale;
}

/// torchao's own codes, in the lines whose scale, which it makes in fp64 of an amax of 1e-12 at
/// least, is that of `divide`: all but those of zeros and a few powers of two.
TEST(Fp8Rowwise, HasTheCodesOfTorchaoUnderItsScales) {
  const std::string folder = QUANTGATE_SOURCE_DIR "/tests/data/libraries/";
  const TensorFile sources = *ReadSafetensors(folder + "sources.safetensors");
  const TensorFile torchao = *ReadKnownSafetensors(folder + "torchao.safetensors");
  int64_t compared = 0;
  for (const std::string name :
       {"row_normal_bf16", "column_normal_bf16", "row_normal_f32", "column_normal_f32",
        "row_wide_f32", "column_wide_f32", "row_zeros_f32", "column_zeros_f32", "row_ladder_f32",
        "column_ladder_f32", "row_wide_bf16_pow2", "row_ladder_f32_pow2", "row_zeros_bf16_pow2"}) {
    SCOPED_TRACE(name);
    const bool is_rowwise = name.starts_with("row_"), power_2 = name.ends_with("_pow2");
    const size_t begin = is_rowwise ? 4 : 7;
    const std::string source_name =
        name.substr(begin, name.size() - begin - (power_2 ? 5 : 0)) + ".source";
    const Tensor source = *sources.Find(source_name);
    const Tensor codes = *torchao.Find("training_e4m3_" + name + ".codes");
    const Tensor scales = *torchao.Find("training_e4m3_" + name + ".scale");
    const QuantizerSpec spec = {.format = QuantizerFormat::kFp8Rowwise, .power_2_scale = power_2};
    const Usage usage = is_rowwise ? Usage::kRowwise : Usage::kColumnwise;
    const QuantizedTensor quantized =
        *QuantizeCpu(source, spec, {is_rowwise, !is_rowwise}, {}, ExecutionContext());
    const QuantizedCopy& copy = *quantized.copy(usage);
    // torchao keeps the order of the source.
    const Tensor stored = is_rowwise ? codes : *Transpose2d(codes, ExecutionContext());
    ASSERT_EQ(copy.data.shape(), stored.shape());
    for (int64_t line = 0; line < stored.rows(); ++line) {
      const float scale = scales.as<float>()[line];
      if (scale != DividedScale(source, usage, line, power_2)) continue;
      ++compared;
      EXPECT_EQ(copy.scale_inv.as<float>()[line], 1.0f / scale) << line;
      for (int64_t i = line * stored.columns(); i < (line + 1) * stored.columns(); ++i) {
        ASSERT_EQ(copy.data.as<uint8_t>()[i], stored.as<uint8_t>()[i]) << i;
      }
    }
  }
  EXPECT_EQ(compared, 1072);  // As counted in numpy.
}

INSTANTIATE_TEST_SUITE_P(EveryPath, BlockVectors, ::testing::ValuesIn(testing::EveryPath()),
                         [](const auto& path) { return testing::PathName(path.param); });

}  // namespace QG_TEST_FILE
}  // namespace quantgate
