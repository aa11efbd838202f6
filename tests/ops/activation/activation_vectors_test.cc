// Activations against tests/data/activation_vectors.txt (tests/vectors/activation_reference.py), on
// every path.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/ops/activation/activation.h"
#include "tests/quantize/vector_tensors.h"

namespace quantgate::testing {
namespace QG_TEST_FILE {

struct Case {
  std::string text;
  ActivationOptions options;
  Tensor h, dy;
  DType out;
  std::string y_digest, dh_digest;
};

Case CaseOf(const VectorFile& vectors, const std::vector<std::string>& words) {
  Case one;
  for (const std::string& word : words) one.text += word + " ";
  one.options = {.kind = *ParseActivationKind(words[0]),
                 .variant = *ParseActivationVariant(words[1]),
                 .limit = FloatFromHexBytes(words[2]),
                 .alpha = FloatFromHexBytes(words[3]),
                 .offset = FloatFromHexBytes(words[4])};
  one.h = vectors.tensors.at(words[5] + " " + words[6]);
  one.dy = vectors.tensors.at(words[7] + " " + words[8]);
  one.out = *ParseDType(words[9]);
  one.y_digest = words[10];
  one.dh_digest = words[11];
  return one;
}

TEST(ActivationVectorsTest, EveryCaseOnEveryPath) {
  const VectorFile vectors = ReadVectors("activation_vectors.txt");
  ASSERT_GT(vectors.cases.size(), 400u);
  for (const std::vector<std::string>& words : vectors.cases) {
    const Case one = CaseOf(vectors, words);
    for (const ExecutionContext& context : EveryPath()) {
      const auto y = ActivationForwardCpu(one.h, one.options, one.out, context);
      ASSERT_TRUE(y.ok()) << one.text << y.status();
      EXPECT_EQ(Digest64({*y}), one.y_digest) << PathName(context) << " forward " << one.text;
      const auto dh = ActivationBackwardCpu(one.dy, one.h, one.options, one.out, context);
      ASSERT_TRUE(dh.ok()) << one.text << dh.status();
      EXPECT_EQ(dh->shape(), one.h.shape());
      EXPECT_EQ(Digest64({*dh}), one.dh_digest) << PathName(context) << " backward " << one.text;
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate::testing
