// nvfp4 against vectors of an independent implementation (tests/vectors/nvfp4_reference.py): codes,
// scales, amaxes and dequantized values of both directions, together and each alone; each
// instruction set has its share.
#include <gtest/gtest.h>

#include "tests/quantize/vector_tensors.h"

namespace quantgate {
namespace QG_TEST_FILE {

using testing::Digest64;
using testing::HexBytes;

/// Words of a case: NAME SOURCE BLOCK_DIM RULE ROUNDING ROW_SCALED 4OVER6 E4M3_MAX HADAMARD SEED
/// CALL_ID, then four per direction.
constexpr size_t kExpectedBegin = 11;

void ExpectCopy(const QuantizedTensor& quantized, Usage usage,
                const std::vector<std::string>& words, const ExecutionContext& context) {
  SCOPED_TRACE(UsageName(usage));
  const size_t at = kExpectedBegin + (usage == Usage::kColumnwise ? 4 : 0);
  const QuantizedCopy& copy = *quantized.copy(usage);
  EXPECT_EQ(Digest64({copy.data}), words[at]) << "codes";
  EXPECT_EQ(Digest64({copy.scale_inv}), words[at + 1]) << "scales";
  const std::string amax = !copy.amax.has_value() ? "-"
                           : copy.is_row_scaled() ? Digest64({copy.amax})
                                                  : HexBytes(copy.amax);
  EXPECT_EQ(amax, words[at + 2]) << "amax";
  EXPECT_EQ(copy.e4m3_max, std::stoi(words[7]));
  if (usage == Usage::kRowwise && quantized.columnwise.has_value()) {
    EXPECT_EQ(testing::ValuesDigest(quantized, usage, context), words[at + 3]) << "values";
  }
}

class Nvfp4Vectors : public ::testing::TestWithParam<ExecutionContext> {};

TEST_P(Nvfp4Vectors, CodesScalesAmaxesAndValues) {
  static const testing::VectorFile vectors = testing::ReadVectors("nvfp4_vectors.txt");
  ASSERT_GT(vectors.cases.size(), 1000u);
  const ExecutionContext& context = GetParam();
  for (const std::vector<std::string>& words : vectors.cases) {
    std::string text;
    for (size_t i = 0; i < kExpectedBegin; ++i) text += words[i] + " ";
    if (!testing::RunsCase(context, text)) continue;
    SCOPED_TRACE(text);
    const Tensor& source = vectors.tensors.at(words[0] + " " + words[1]);
    const QuantizeArguments arguments = testing::Nvfp4Arguments(words);
    const Quantizer quantizer = testing::Nvfp4Quantizer(words);
    const bool has_columnwise = words[kExpectedBegin + 4] != "none";
    for (const Usages usages : {Usages{true, true}, Usages{true, false}, Usages{false, true}}) {
      const auto quantized = QuantizeCpu(source, quantizer, usages, arguments, context);
      if (usages.columnwise && !has_columnwise) {
        EXPECT_EQ(quantized.status().code(), absl::StatusCode::kInvalidArgument);
        continue;
      }
      ASSERT_TRUE(quantized.ok()) << quantized.status();
      EXPECT_EQ(quantized->usages(), usages);
      if (usages.rowwise) ExpectCopy(*quantized, Usage::kRowwise, words, context);
      if (usages.columnwise) ExpectCopy(*quantized, Usage::kColumnwise, words, context);
    }
    if (HasFailure()) return;  // The first of a thousand cases says enough.
  }
}

INSTANTIATE_TEST_SUITE_P(EveryPath, Nvfp4Vectors, ::testing::ValuesIn(testing::EveryPath()),
                         [](const auto& path) { return testing::PathName(path.param); });

}  // namespace QG_TEST_FILE
}  // namespace quantgate
