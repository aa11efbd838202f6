#include "tests/quantize/cpu/block_vectors.h"

#include <gtest/gtest.h>

namespace quantgate::testing {
namespace {

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

}  // namespace

void ExpectBlockVectors(const VectorFile& vectors, size_t digests_begin,
                        Quantizer (*quantizer_of)(const std::vector<std::string>& words),
                        const ExecutionContext& context) {
  for (const std::vector<std::string>& words : vectors.cases) {
    ASSERT_EQ(words.size(), digests_begin + 6);
    std::string text;
    for (size_t i = 0; i < digests_begin; ++i) text += words[i] + " ";
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

}  // namespace quantgate::testing
