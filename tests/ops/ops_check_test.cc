// What norms, element-wise operations and optimizers refuse, by field, value and rule; empty
// tensors; concatenation; cancellation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kernels/ops/elementwise/elementwise.h"
#include "kernels/ops/norm/norm.h"
#include "kernels/ops/optimizer/optimizer.h"
#include "kernels/tensor/generate/generate.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::HasSubstr;

Tensor Blank(DType dtype, Shape shape) {
  Tensor tensor = *Tensor::Allocate(dtype, std::move(shape));
  std::memset(tensor.data(), 0, tensor.byte_size());
  return tensor;
}

NormForwardDesc Forward() {
  NormForwardDesc desc;
  desc.x = Blank(DType::kBF16, {2, 3, 8});
  desc.gamma = Blank(DType::kBF16, {8});
  desc.beta = Blank(DType::kF32, {8});
  return desc;
}

NormBackwardDesc Backward() {
  NormBackwardDesc desc;
  desc.x = Blank(DType::kBF16, {2, 3, 8});
  desc.dz = Blank(DType::kF16, {2, 3, 8});
  desc.gamma = Blank(DType::kBF16, {8});
  desc.mean = Blank(DType::kF32, {6});
  desc.rstd = Blank(DType::kF32, {6});
  return desc;
}

AdamDesc Adam() {
  AdamDesc desc;
  desc.master = Blank(DType::kF32, {4});
  desc.gradient = Blank(DType::kBF16, {4});
  desc.m = Blank(DType::kF32, {4});
  desc.v = Blank(DType::kF32, {4});
  return desc;
}

SgdDesc Sgd() {
  SgdDesc desc;
  desc.master = Blank(DType::kF32, {4});
  desc.gradient = Blank(DType::kBF16, {4});
  return desc;
}

template <class Desc>
struct Refusal {
  std::function<void(Desc&)> change;
  std::vector<std::string> words;
};

/// `check` takes the desc as it is, and refuses each change of it with those words.
template <class Desc, class Check>
void ExpectRefusals(const Desc& good, const Check& check, const std::vector<Refusal<Desc>>& all) {
  EXPECT_TRUE(check(good).ok()) << check(good);
  for (const Refusal<Desc>& refusal : all) {
    Desc changed = good;
    refusal.change(changed);
    const absl::Status status = check(changed);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    for (const std::string& word : refusal.words) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(word));
    }
  }
}

TEST(OpsCheck, NormForward) {
  using Desc = NormForwardDesc;
  const auto check = [](const Desc& desc) { return NormForwardCpu(desc, {}).status(); };
  ExpectRefusals<Desc>(
      Forward(), check,
      {{[](Desc& d) { d.x = Tensor(); }, {"x", "is absent"}},
       {[](Desc& d) {
          d.x = Blank(DType::kF8E4M3, {2, 8});
        },
        {"x", "f8_e4m3", "f32, bf16 or f16"}},
       {[](Desc& d) {
          d.x = Blank(DType::kF32, {2, 0});
        },
        {"x", "2x0", "at least 1"}},
       {[](Desc& d) { d.x = Blank(DType::kF32, {}); }, {"x", "scalar", "at least 1"}},
       {[](Desc& d) { d.gamma = Blank(DType::kF32, {7}); }, {"gamma", "7", "must be 8"}},
       {[](Desc& d) { d.gamma = Tensor(); }, {"gamma", "is absent"}},
       {[](Desc& d) {
          d.beta = Blank(DType::kF32, {8, 1});
        },
        {"beta", "8x1", "must be 8"}},
       {[](Desc& d) { d.beta = Blank(DType::kF8E5M2, {8}); }, {"beta", "f8_e5m2"}},
       {[](Desc& d) { d.options.kind = NormKind::kRmsNorm; }, {"beta", "rmsnorm"}},
       {[](Desc& d) { d.options.epsilon = -1; }, {"epsilon", "-1", "at least 0"}},
       {[](Desc& d) { d.options.epsilon = std::numeric_limits<float>::infinity(); }, {"epsilon"}},
       {[](Desc& d) { d.options.epsilon = std::nanf(""); }, {"epsilon", "nan"}},
       {[](Desc& d) { d.out = DType::kF8E4M3; }, {"out dtype", "f8_e4m3"}}});
}

TEST(OpsCheck, NormBackward) {
  using Desc = NormBackwardDesc;
  const auto check = [](const Desc& desc) { return NormBackwardCpu(desc, {}).status(); };
  ExpectRefusals<Desc>(
      Backward(), check,
      {{[](Desc& d) {
          d.dz = Blank(DType::kF16, {6, 8});
        },
        {"dz", "6x8", "2x3x8", "that of x"}},
       {[](Desc& d) { d.rstd = Tensor(); }, {"rstd", "is absent"}},
       {[](Desc& d) { d.rstd = Blank(DType::kBF16, {6}); }, {"rstd", "bf16", "must be f32"}},
       {[](Desc& d) { d.mean = Blank(DType::kF32, {5}); }, {"mean", "5", "must be 6"}},
       {[](Desc& d) { d.residual = Blank(DType::kF32, {8}); }, {"residual", "2x3x8"}},
       {[](Desc& d) {
          d.residual = d.x;
          d.wanted.dx = false;
        },
        {"residual", "dx, which is not wanted"}},
       {[](Desc& d) { d.options.kind = NormKind::kRmsNorm; }, {"mean", "rmsnorm"}},
       {[](Desc& d) {
          d.options.kind = NormKind::kRmsNorm;
          d.mean = Tensor();
          d.wanted.dbeta = true;
        },
        {"wanted.dbeta", "rmsnorm"}}});
}

TEST(OpsCheck, Adam) {
  using Desc = AdamDesc;
  const auto check = [](const Desc& desc) { return AdamStepCpu(desc, {}).status(); };
  ExpectRefusals<Desc>(
      Adam(), check,
      {{[](Desc& d) { d.options.beta1 = 1; }, {"beta1", "1", "below 1"}},
       {[](Desc& d) { d.options.beta2 = -0.5f; }, {"beta2", "-0.5"}},
       {[](Desc& d) { d.options.learning_rate = std::nanf(""); }, {"learning_rate", "finite"}},
       {[](Desc& d) { d.options.learning_rate = -1; }, {"learning_rate is -1", "at least 0"}},
       {[](Desc& d) { d.options.epsilon = -1; }, {"epsilon", "at least 0"}},
       {[](Desc& d) { d.step = 0; }, {"step", "0", "at least 1"}},
       {[](Desc& d) { d.master = Blank(DType::kBF16, {4}); }, {"master", "bf16", "must be f32"}},
       {[](Desc& d) { d.gradient = Blank(DType::kI32, {4}); }, {"gradient", "i32"}},
       {[](Desc& d) { d.m = Blank(DType::kF32, {5}); }, {"m", "5", "must be 4"}},
       {[](Desc& d) { d.v = Tensor(); }, {"v", "is absent"}}});
}

TEST(OpsCheck, Sgd) {
  using Desc = SgdDesc;
  const auto check = [](const Desc& desc) { return SgdStepCpu(desc, {}).status(); };
  ExpectRefusals<Desc>(
      Sgd(), check,
      {{[](Desc& d) { d.options.nesterov = true; }, {"nesterov", "needs a momentum"}},
       {[](Desc& d) { d.momentum = d.master; }, {"momentum", "momentum of 0"}},
       {[](Desc& d) {
          d.options.momentum = 0.9f;
          d.momentum = Blank(DType::kF32, {2, 2});
        },
        {"momentum", "2x2"}},
       {[](Desc& d) { d.options.weight_decay = INFINITY; }, {"weight_decay", "inf"}},
       {[](Desc& d) { d.gradient = Blank(DType::kF32, {1}); }, {"gradient", "must be 4"}}});
}

TEST(OpsCheck, MastersInHalves) {
  const Tensor f32 = Blank(DType::kF32, {4});
  EXPECT_THAT(std::string(SplitMasterCpu(Blank(DType::kBF16, {4}), {}).status().message()),
              AllOf(HasSubstr("master"), HasSubstr("bf16")));
  SplitTensor split = *SplitMasterCpu(f32, {});
  EXPECT_EQ(TensorText(split.parameter), "bf16[4]");
  EXPECT_EQ(TensorText(split.remainder), "i16[4]");
  split.remainder = Blank(DType::kBF16, {4});
  EXPECT_THAT(std::string(JoinMasterCpu(split, {}).status().message()),
              AllOf(HasSubstr("remainder"), HasSubstr("must be i16")));
}

TEST(OpsCheck, AddAndScale) {
  const auto message = [](const absl::StatusOr<Tensor>& result) {
    return std::string(result.status().message());
  };
  const Tensor a = Blank(DType::kF32, {2, 4});
  EXPECT_THAT(message(AddCpu(a, Blank(DType::kF32, {4, 2}), DType::kF32, {})),
              AllOf(HasSubstr("b is f32[4x2]"), HasSubstr("must be 2x4")));
  EXPECT_THAT(message(AddCpu(Tensor(), a, DType::kF32, {})), HasSubstr("a is absent"));
  EXPECT_THAT(message(AddCpu(a, a, DType::kF8E4M3, {})), HasSubstr("out dtype is f8_e4m3"));
  EXPECT_THAT(message(ScaleCpu(Blank(DType::kU8, {2}), 2, DType::kF32, {})), HasSubstr("x is u8"));
}

TEST(OpsCheck, EmptyNormHasZeroGradients) {
  NormForwardDesc forward = Forward();
  forward.x = Blank(DType::kBF16, {0, 8});
  const NormForwardResult z = *NormForwardCpu(forward, {});
  EXPECT_EQ(TensorText(z.y), "bf16[0x8]");
  EXPECT_EQ(TensorText(z.mean), "f32[0]");
  NormBackwardDesc backward = Backward();
  backward.x = backward.dz = forward.x;
  backward.mean = z.mean;
  backward.rstd = z.rstd;
  backward.wanted.dbeta = true;
  const NormGradients gradients = *NormBackwardCpu(backward, {});
  EXPECT_EQ(TensorText(gradients.dx), "bf16[0x8]");
  for (const Tensor& zeros : {gradients.dgamma, gradients.dbeta}) {
    EXPECT_EQ(TensorText(zeros), "bf16[8]");
    for (int i = 0; i < 8; ++i) EXPECT_EQ(zeros.as<uint16_t>()[i], 0);
  }
}

TEST(OpsCheck, OnlyWhatIsWanted) {
  NormBackwardDesc desc = Backward();
  desc.wanted = {.dx = false, .dgamma = false, .dbeta = true};
  const NormGradients gradients = *NormBackwardCpu(desc, {});
  EXPECT_FALSE(gradients.dx.has_value());
  EXPECT_FALSE(gradients.dgamma.has_value());
  EXPECT_TRUE(gradients.dbeta.has_value());
}

TEST(ConcatenateRows, CopiesPartsInOrder) {
  std::vector<Tensor> parts;
  std::vector<std::byte> bytes;
  for (const int64_t rows : {2, 0, 3, 1}) {
    parts.push_back(*Generate({.distribution = Distribution::kSpecialsLaced,
                               .seed = static_cast<uint64_t>(rows),
                               .dtype = DType::kBF16,
                               .shape = {rows, 2, 5}},
                              {}));
    bytes.insert(bytes.end(), parts.back().bytes().begin(), parts.back().bytes().end());
  }
  const Tensor whole = *ConcatenateRowsCpu(parts, {});
  EXPECT_EQ(TensorText(whole), "bf16[6x2x5]");
  EXPECT_TRUE(std::ranges::equal(whole.bytes(), bytes));
}

TEST(ConcatenateRows, Refuses) {
  const auto message = [](const std::vector<Tensor>& parts) {
    return std::string(ConcatenateRowsCpu(parts, {}).status().message());
  };
  const Tensor part = Blank(DType::kF32, {2, 4});
  EXPECT_THAT(message({}), HasSubstr("at least one"));
  EXPECT_THAT(message({part, Blank(DType::kF32, {2, 3})}),
              AllOf(HasSubstr("parts[1] is f32[2x3]"), HasSubstr("f32[2x4]")));
  EXPECT_THAT(message({part, Blank(DType::kBF16, {2, 4})}), HasSubstr("parts[1] is bf16"));
  EXPECT_THAT(message({part, Tensor()}), HasSubstr("parts[1] is absent"));
  EXPECT_THAT(message({Blank(DType::kF32, {})}), HasSubstr("parts[0] is a scalar"));
}

TEST(OpsCheck, StopsWhenCancelled) {
  Cancellation cancelled;
  cancelled.Cancel();
  const ExecutionContext context = {BestIsa(), 1, &cancelled};
  const Tensor x = Blank(DType::kF32, {4});
  for (const absl::Status& status :
       {NormForwardCpu(Forward(), context).status(), NormBackwardCpu(Backward(), context).status(),
        AdamStepCpu(Adam(), context).status(), SgdStepCpu(Sgd(), context).status(),
        AddCpu(x, x, DType::kF32, context).status(), ScaleCpu(x, 2, DType::kF32, context).status(),
        SplitMasterCpu(x, context).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  }
}

TEST(OpsCheck, NamesOfNorms) {
  EXPECT_EQ(*ParseNormKind("layernorm"), NormKind::kLayerNorm);
  EXPECT_EQ(*ParseNormKind("rmsnorm"), NormKind::kRmsNorm);
  EXPECT_THAT(std::string(ParseNormKind("norm").status().message()),
              AllOf(HasSubstr("\"norm\""), HasSubstr("layernorm, rmsnorm")));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
