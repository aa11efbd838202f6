// Norms against tests/data/norm_vectors.txt (tests/vectors/norm_reference.py), on every path.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/ops/norm/norm.h"
#include "tests/quantize/vector_tensors.h"

namespace quantgate::testing {
namespace QG_TEST_FILE {

/// Reads a case word by word.
class Words {
 public:
  Words(const VectorFile& vectors, const std::vector<std::string>& words)
      : vectors_(vectors), words_(words) {}

  const std::string& Next() { return words_.at(at_++); }
  Tensor NextTensor() {
    const std::string name = Next(), source = Next();
    return name == "-" ? Tensor() : vectors_.tensors.at(name + " " + source);
  }

 private:
  const VectorFile& vectors_;
  const std::vector<std::string>& words_;
  size_t at_ = 0;
};

std::string HexOrWord(const Tensor& statistics) {
  if (!statistics.has_value()) return "-";
  return statistics.element_count() == 0 ? "empty" : HexBytes(statistics);
}

std::string DigestOrWord(const Tensor& tensor) {
  return tensor.has_value() ? Digest64({tensor}) : "-";
}

/// Runs one case; `name` says which, should it fail.
void CheckCase(const VectorFile& vectors, const std::vector<std::string>& one,
               const std::string& name, const ExecutionContext& context) {
  Words words(vectors, one);
  NormForwardDesc forward;
  forward.options.kind = *ParseNormKind(words.Next());
  forward.options.zero_centered_gamma = words.Next() == "1";
  forward.options.epsilon = FloatFromHexBytes(words.Next());
  forward.x = words.NextTensor();
  forward.gamma = words.NextTensor();
  forward.beta = words.NextTensor();
  NormBackwardDesc backward;
  backward.x = forward.x;
  backward.gamma = forward.gamma;
  backward.options = forward.options;
  backward.dz = words.NextTensor();
  backward.residual = words.NextTensor();
  forward.out = *ParseDType(words.Next());

  const auto z = NormForwardCpu(forward, context);
  ASSERT_TRUE(z.ok()) << name << z.status();
  EXPECT_EQ(DigestOrWord(z->y), words.Next()) << name << " y";
  EXPECT_EQ(HexOrWord(z->mean), words.Next()) << name << " mean";
  EXPECT_EQ(HexOrWord(z->rstd), words.Next()) << name << " rstd";

  backward.mean = z->mean;
  backward.rstd = z->rstd;
  backward.wanted.dbeta = forward.options.kind == NormKind::kLayerNorm;
  const auto gradients = NormBackwardCpu(backward, context);
  ASSERT_TRUE(gradients.ok()) << name << gradients.status();
  EXPECT_EQ(DigestOrWord(gradients->dx), words.Next()) << name << " dx";
  EXPECT_EQ(DigestOrWord(gradients->dgamma), words.Next()) << name << " dgamma";
  EXPECT_EQ(DigestOrWord(gradients->dbeta), words.Next()) << name << " dbeta";
}

TEST(NormVectorsTest, EveryPathGivesTheReferencesBits) {
  const VectorFile vectors = ReadVectors("norm_vectors.txt");
  EXPECT_GT(vectors.cases.size(), 200u);
  for (const ExecutionContext& context : EveryPath()) {
    for (const std::vector<std::string>& one : vectors.cases) {
      std::string name = PathName(context);
      for (size_t i = 0; i < 14; ++i) name += " " + one.at(i);
      CheckCase(vectors, one, name, context);
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate::testing
