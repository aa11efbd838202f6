// Attention beside its GEMMs against tests/data/attention_vectors.txt
// (tests/vectors/attention_reference.py), on every path.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "kernels/ops/attention/attention.h"
#include "tests/quantize/vector_tensors.h"

namespace quantgate::testing {
namespace QG_TEST_FILE {

using Words = std::vector<std::string>;

void CheckSoftmaxCase(const VectorFile& vectors, const Words& words,
                      const ExecutionContext& context) {
  SoftmaxDesc forward;
  forward.scores = vectors.tensors.at(words[1] + " " + words[3]);
  forward.scale = FloatFromHexBytes(words[4]);
  forward.mask = *ParseAttentionMask(words[5]);
  const auto result = SoftmaxForwardCpu(forward, context);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(Digest64({result->probabilities}), words[6]) << "probabilities";
  EXPECT_EQ(Digest64({result->rounded}), words[7]) << "rounded";
  EXPECT_EQ(result->rounded.dtype(), forward.scores.dtype());
  EXPECT_EQ(result->rounded.shape(), forward.scores.shape());
  SoftmaxBackwardDesc backward;
  backward.gradient = vectors.tensors.at(words[2] + " " + words[3]);
  backward.probabilities = result->probabilities;
  backward.scale = forward.scale;
  backward.mask = forward.mask;
  const auto gradient = SoftmaxBackwardCpu(backward, context);
  ASSERT_TRUE(gradient.ok()) << gradient.status();
  EXPECT_EQ(Digest64({*gradient}), words[8]) << "gradient";
}

void CheckRotateCase(const VectorFile& vectors, const Words& words,
                     const ExecutionContext& context) {
  RotaryDesc desc;
  desc.heads = vectors.tensors.at(words[1] + " " + words[2]);
  desc.table.cosines = vectors.tensors.at(words[1] + "_cos " + words[2]);
  desc.table.sines = vectors.tensors.at(words[1] + "_sin " + words[2]);
  desc.period = std::stoll(words[3]);
  desc.rotated = std::stoll(words[4]);
  desc.is_backward = words[5] == "1";
  const auto rotated = RotateCpu(desc, context);
  ASSERT_TRUE(rotated.ok()) << rotated.status();
  EXPECT_EQ(rotated->shape(), desc.heads.shape());
  EXPECT_EQ(Digest64({*rotated}), words[6]);
}

void CheckTableCase(const Words& words) {
  const auto table = MakeRotaryTable(FloatFromHexBytes(words[1]), std::stoll(words[2]),
                                     std::stoll(words[3]), *ParseDType(words[4]));
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(Digest64({table->cosines}), words[5]) << "cosines";
  EXPECT_EQ(Digest64({table->sines}), words[6]) << "sines";
}

void CheckSwapCase(const VectorFile& vectors, const Words& words, const ExecutionContext& context) {
  const Tensor source = vectors.tensors.at(words[1] + " " + words[2]);
  const auto swapped = SwapDimsCpu(source, context);
  ASSERT_TRUE(swapped.ok()) << swapped.status();
  Shape shape = source.shape();
  std::swap(shape[0], shape[1]);
  EXPECT_EQ(swapped->shape(), shape);
  EXPECT_EQ(Digest64({*swapped}), words[3]);
}

TEST(AttentionVectorsTest, EveryCaseOnEveryPath) {
  const VectorFile vectors = ReadVectors("attention_vectors.txt");
  std::map<std::string, int> counts;
  for (const ExecutionContext& context : EveryPath()) {
    for (const Words& words : vectors.cases) {
      std::string text = PathName(context);
      for (const std::string& word : words) text += " " + word;
      SCOPED_TRACE(text);
      ++counts[words[0]];
      if (words[0] == "softmax") {
        CheckSoftmaxCase(vectors, words, context);
      } else if (words[0] == "rotate") {
        CheckRotateCase(vectors, words, context);
      } else if (words[0] == "table") {
        CheckTableCase(words);
      } else if (words[0] == "swap") {
        CheckSwapCase(vectors, words, context);
      } else {
        FAIL() << "an unknown kind";
      }
    }
  }
  const int paths = static_cast<int>(EveryPath().size());
  EXPECT_EQ(counts["softmax"], 270 * paths);
  EXPECT_EQ(counts["rotate"], 126 * paths);
  EXPECT_EQ(counts["table"], 24 * paths);
  EXPECT_EQ(counts["swap"], 18 * paths);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate::testing
