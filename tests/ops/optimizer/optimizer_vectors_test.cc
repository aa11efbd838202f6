// Optimizers, sums and multiples against tests/data/optimizer_vectors.txt
// (tests/vectors/optimizer_reference.py), on every path.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/ops/elementwise/elementwise.h"
#include "kernels/ops/optimizer/optimizer.h"
#include "tests/quantize/vector_tensors.h"

namespace quantgate::testing {
namespace QG_TEST_FILE {

class OptimizerVectors : public ::testing::TestWithParam<ExecutionContext> {
 protected:
  static const VectorFile& Vectors() {
    static const VectorFile& vectors = *new VectorFile([] {
      VectorFile file = ReadVectors("optimizer_vectors.txt");
      Tensor& v = file.tensors.at("v f32");
      for (int64_t i = 0; i < v.element_count(); ++i) {
        v.as<float>()[i] = std::abs(v.as<float>()[i]);
      }
      return file;
    }());
    return vectors;
  }
  static const Tensor& Named(const std::string& name) { return Vectors().tensors.at(name); }

  /// Calls check(words) for the cases of a kind; words begin behind it.
  template <class Check>
  static void ForCases(const std::string& kind, size_t count, const Check& check) {
    size_t found = 0;
    for (const std::vector<std::string>& one : Vectors().cases) {
      if (one[0] != kind) continue;
      ++found;
      std::string text;
      for (const std::string& word : one) text += word + " ";
      SCOPED_TRACE(text);
      check(std::vector<std::string>(one.begin() + 1, one.end()));
    }
    EXPECT_EQ(found, count);
  }
};

TEST_P(OptimizerVectors, Adam) {
  ForCases("adam", 42, [&](const std::vector<std::string>& words) {
    AdamDesc desc;
    desc.master = Named("p f32");
    desc.m = Named("m f32");
    desc.v = Named("v f32");
    desc.gradient = Named("g " + words[0]);
    desc.options = {.learning_rate = FloatFromHexBytes(words[1]),
                    .beta1 = FloatFromHexBytes(words[2]),
                    .beta2 = FloatFromHexBytes(words[3]),
                    .epsilon = FloatFromHexBytes(words[4]),
                    .weight_decay = FloatFromHexBytes(words[5]),
                    .decoupled_decay = words[6] == "1"};
    desc.step = std::stoll(words[7]);
    const auto updated = AdamStepCpu(desc, GetParam());
    ASSERT_TRUE(updated.ok()) << updated.status();
    EXPECT_EQ(Digest64({updated->master}), words[8]);
    EXPECT_EQ(Digest64({updated->m}), words[9]);
    EXPECT_EQ(Digest64({updated->v}), words[10]);
  });
}

TEST_P(OptimizerVectors, Sgd) {
  ForCases("sgd", 18, [&](const std::vector<std::string>& words) {
    SgdDesc desc;
    desc.master = Named("p f32");
    desc.gradient = Named("g " + words[0]);
    desc.options = {.learning_rate = FloatFromHexBytes(words[1]),
                    .momentum = FloatFromHexBytes(words[2]),
                    .weight_decay = FloatFromHexBytes(words[3]),
                    .nesterov = words[4] == "1"};
    if (words[5] == "0") desc.momentum = Named("m f32");
    const auto updated = SgdStepCpu(desc, GetParam());
    ASSERT_TRUE(updated.ok()) << updated.status();
    EXPECT_EQ(Digest64({updated->master}), words[6]);
    EXPECT_EQ(updated->momentum.has_value() ? Digest64({updated->momentum}) : "-", words[7]);
  });
}

TEST_P(OptimizerVectors, Add) {
  ForCases("add", 27, [&](const std::vector<std::string>& words) {
    const auto sum =
        AddCpu(Named("a " + words[0]), Named("b " + words[1]), *ParseDType(words[2]), GetParam());
    ASSERT_TRUE(sum.ok()) << sum.status();
    EXPECT_EQ(Digest64({*sum}), words[3]);
  });
}

TEST_P(OptimizerVectors, Scale) {
  ForCases("scale", 45, [&](const std::vector<std::string>& words) {
    const auto scaled = ScaleCpu(Named("a " + words[0]), FloatFromHexBytes(words[1]),
                                 *ParseDType(words[2]), GetParam());
    ASSERT_TRUE(scaled.ok()) << scaled.status();
    EXPECT_EQ(Digest64({*scaled}), words[3]);
  });
}

INSTANTIATE_TEST_SUITE_P(EveryPath, OptimizerVectors, ::testing::ValuesIn(EveryPath()),
                         [](const auto& path) { return PathName(path.param); });

}  // namespace QG_TEST_FILE
}  // namespace quantgate::testing
