// Norms, element-wise operations and optimizers, GPU against CPU, byte for byte; plain kernels as
// well as tuned ones.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "kernels/ops/ops_cuda.h"
#include "kernels/tensor/convert.h"
#include "kernels/tensor/generate/generate.h"
#include "tests/tensor/cuda_test_device.h"

namespace quantgate {
namespace QG_TEST_FILE {

const std::vector<DType> kFloats = {DType::kF32, DType::kBF16, DType::kF16};

Tensor Generated(Distribution distribution, DType dtype, Shape shape, uint64_t seed) {
  return ValueOrAbort(Generate(
      {.distribution = distribution, .seed = seed, .dtype = dtype, .shape = std::move(shape)}, {}));
}

/// How operands come to the device: aligned, or `shift` elements past that.
using ToDevice = std::function<Tensor(const Tensor&)>;
const ToDevice kAligned = [](const Tensor& tensor) {
  return tensor.has_value() ? OnDevice(tensor) : tensor;
};
const ToDevice kShifted = [](const Tensor& tensor) {
  return tensor.has_value() ? OnDeviceShifted(tensor, 1) : tensor;
};

testing::AssertionResult SameOrAbsent(const Tensor& expected, const Tensor& on_device) {
  if (expected.has_value() != on_device.has_value()) {
    return testing::AssertionFailure() << "one of the two is absent";
  }
  return expected.has_value() ? SameTensor(expected, on_device) : testing::AssertionSuccess();
}

struct NormCase {
  NormForwardDesc forward;
  Tensor dz, residual;
};

NormForwardDesc OnDevice(const NormForwardDesc& desc, const ToDevice& to) {
  NormForwardDesc moved = desc;
  for (Tensor* tensor : {&moved.x, &moved.gamma, &moved.beta}) *tensor = to(*tensor);
  return moved;
}
NormBackwardDesc OnDevice(const NormBackwardDesc& desc, const ToDevice& to) {
  NormBackwardDesc moved = desc;
  for (Tensor* tensor :
       {&moved.dz, &moved.x, &moved.gamma, &moved.mean, &moved.rstd, &moved.residual}) {
    *tensor = to(*tensor);
  }
  return moved;
}

void ExpectSameNorm(const NormCase& norm, const ToDevice& to) {
  const NormForwardResult z = ValueOrAbort(NormForwardCpu(norm.forward, {}));
  const NormForwardResult actual =
      ValueOrAbort(NormForwardCuda(TestDevice(), OnDevice(norm.forward, to)));
  EXPECT_TRUE(SameTensor(z.y, actual.y)) << "y";
  EXPECT_TRUE(SameTensor(z.rstd, actual.rstd)) << "rstd";
  EXPECT_TRUE(SameOrAbsent(z.mean, actual.mean)) << "mean";

  NormBackwardDesc desc;
  desc.dz = norm.dz;
  desc.x = norm.forward.x;
  desc.gamma = norm.forward.gamma;
  desc.mean = z.mean;
  desc.rstd = z.rstd;
  desc.residual = norm.residual;
  desc.options = norm.forward.options;
  desc.wanted.dbeta = desc.options.kind == NormKind::kLayerNorm;
  const NormGradients expected = ValueOrAbort(NormBackwardCpu(desc, {}));
  const NormGradients gradients = ValueOrAbort(NormBackwardCuda(TestDevice(), OnDevice(desc, to)));
  EXPECT_TRUE(SameTensor(expected.dx, gradients.dx)) << "dx";
  EXPECT_TRUE(SameTensor(expected.dgamma, gradients.dgamma)) << "dgamma";
  EXPECT_TRUE(SameOrAbsent(expected.dbeta, gradients.dbeta)) << "dbeta";
}

/// A case of `setting`, which chooses everything but the shape, the source and the distribution.
NormCase CaseOf(Distribution distribution, DType dtype, int64_t rows, int64_t columns,
                uint64_t setting) {
  const DType other = kFloats[setting / 2 % 3];
  NormCase norm;
  norm.forward.options.kind = setting % 2 == 0 ? NormKind::kLayerNorm : NormKind::kRmsNorm;
  norm.forward.options.zero_centered_gamma = setting / 2 % 2 == 1;
  norm.forward.options.epsilon = setting % 5 == 4 ? 0.0f : 1e-5f;
  norm.forward.out = kFloats[setting % 3];
  norm.forward.x = Generated(distribution, dtype, {rows, columns}, 1);
  norm.forward.gamma = Generated(Distribution::kUniform, other, {columns}, 2);
  if (setting % 4 == 0) {
    norm.forward.beta = Generated(Distribution::kUniform, dtype, {columns}, 3);
  }
  // The tuned backward is for one dtype of x and dz.
  norm.dz = Generated(distribution, setting % 3 == 2 ? other : dtype, {rows, columns}, 4);
  if (setting % 3 != 0) {
    norm.residual = Generated(Distribution::kNormal, other, {rows, columns}, 5);
  }
  return norm;
}

TEST(NormCuda, EveryDistributionAndShape) {
  const std::pair<int64_t, int64_t> shapes[] = {
      {1, 1},    {3, 7},    {33, 16},  {9, 31},   {5, 248},   {7, 256},   {300, 264}, {5, 1000},
      {2, 1024}, {3, 4096}, {2, 5120}, {600, 40}, {2, 16384}, {1, 20000}, {1, 40000}, {0, 8}};
  for (const auto& [rows, columns] : shapes) {
    for (const Distribution distribution : AllDistributions()) {
      for (const DType dtype : kFloats) {
        for (uint64_t setting = 0; setting < 6; ++setting) {
          SCOPED_TRACE(std::string(DistributionName(distribution)) + " " +
                       std::string(DTypeName(dtype)) + " " + std::to_string(rows) + "x" +
                       std::to_string(columns) + " setting " + std::to_string(setting));
          ExpectSameNorm(CaseOf(distribution, dtype, rows, columns, setting), kAligned);
          if (HasFailure()) return;  // The first of thousands says enough.
        }
      }
    }
  }
}

TEST(NormCuda, UnalignedTensorsTakeThePlainKernels) {
  for (const DType dtype : kFloats) {
    for (uint64_t setting = 0; setting < 6; ++setting) {
      ExpectSameNorm(CaseOf(Distribution::kNormal, dtype, 300, 264, setting), kShifted);
      ExpectSameNorm(CaseOf(Distribution::kSpecialsLaced, dtype, 5, 1000, setting), kShifted);
    }
  }
}

TEST(NormCuda, ManyRows) {
  // More groups of rows than one launch of the rest of the tree takes, and several rows a block.
  ExpectSameNorm(CaseOf(Distribution::kNormal, DType::kBF16, 70001, 24, 0), kAligned);
  ExpectSameNorm(CaseOf(Distribution::kNormal, DType::kBF16, 66000, 5, 1), kAligned);
}

TEST(NormCuda, RealLayer) {
  NormCase norm;
  norm.forward.x = RealTensor("ln2.x");
  norm.forward.gamma = RealTensor("ln2.weight");
  norm.forward.beta = RealTensor("ln2.bias");
  norm.dz = RealTensor("ln2.dy");
  for (const DType out : kFloats) {
    norm.forward.out = out;
    ExpectSameNorm(norm, kAligned);
  }
}

TEST(NormCuda, RefusesWhatTheCpuRefuses) {
  NormForwardDesc desc = CaseOf(Distribution::kNormal, DType::kF32, 2, 8, 0).forward;
  desc.options.epsilon = -1;
  EXPECT_EQ(NormForwardCuda(TestDevice(), OnDevice(desc, kAligned)).status(),
            NormForwardCpu(desc, {}).status());
}

TEST(ElementwiseCuda, AddAndScale) {
  for (const Distribution distribution : AllDistributions()) {
    for (const DType in : kFloats) {
      for (const DType out : kFloats) {
        for (const int64_t count : {0, 1, 7, 8, 4099}) {
          const Tensor a = Generated(distribution, in, {count}, 1);
          for (const DType other : kFloats) {
            const Tensor b = Generated(distribution, other, {count}, 2);
            const Tensor sum = ValueOrAbort(AddCpu(a, b, out, {}));
            for (const ToDevice& to : {kAligned, kShifted}) {
              EXPECT_TRUE(SameTensor(sum, ValueOrAbort(AddCuda(TestDevice(), to(a), to(b), out))));
            }
          }
          for (const float factor : {0.0f, -1.0f / 3, 1e30f, HUGE_VALF}) {
            const Tensor scaled = ValueOrAbort(ScaleCpu(a, factor, out, {}));
            for (const ToDevice& to : {kAligned, kShifted}) {
              EXPECT_TRUE(
                  SameTensor(scaled, ValueOrAbort(ScaleCuda(TestDevice(), to(a), factor, out))));
            }
          }
        }
      }
    }
  }
}

TEST(ElementwiseCuda, ConcatenateRows) {
  std::vector<Tensor> parts, on_device;
  for (const int64_t rows : {2, 0, 33, 1}) {
    parts.push_back(Generated(Distribution::kSpecialsLaced, DType::kBF16, {rows, 5}, 1));
    on_device.push_back(OnDevice(parts.back()));
  }
  EXPECT_TRUE(SameTensor(ValueOrAbort(ConcatenateRowsCpu(parts, {})),
                         ValueOrAbort(ConcatenateRowsCuda(TestDevice(), on_device))));
}

TEST(ElementwiseCuda, ConcatenateColumns) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    std::vector<Tensor> parts, on_device;
    for (const int64_t columns : {2, 0, 33, 1}) {
      parts.push_back(Generated(Distribution::kSpecialsLaced, dtype, {5, 3, columns}, 1));
      on_device.push_back(OnDevice(parts.back()));
    }
    EXPECT_TRUE(SameTensor(ValueOrAbort(ConcatenateColumnsCpu(parts, {})),
                           ValueOrAbort(ConcatenateColumnsCuda(TestDevice(), on_device))));
    for (std::vector<Tensor>* all : {&parts, &on_device}) all->resize(1);
    EXPECT_TRUE(
        SameTensor(parts[0], ValueOrAbort(ConcatenateColumnsCuda(TestDevice(), on_device))));
  }
  const Tensor none = Generated(Distribution::kNormal, DType::kF32, {0, 4}, 1);
  EXPECT_TRUE(SameTensor(
      ValueOrAbort(ConcatenateColumnsCpu({{none, none}}, {})),
      ValueOrAbort(ConcatenateColumnsCuda(TestDevice(), {{OnDevice(none), OnDevice(none)}}))));
}

TEST(ElementwiseCuda, Slices) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const Tensor source = Generated(Distribution::kNormal, dtype, {5, 7, 9}, 1);
    const Tensor on_device = OnDevice(source);
    for (int dim = 0; dim < 3; ++dim) {
      for (const auto& [begin, count] :
           {std::pair<int64_t, int64_t>{0, 5}, {1, 3}, {4, 1}, {2, 0}, {5, 0}}) {
        EXPECT_TRUE(
            SameTensor(ValueOrAbort(SliceCpu(source, dim, begin, count, {})),
                       ValueOrAbort(SliceCuda(TestDevice(), on_device, dim, begin, count))));
      }
    }
    EXPECT_EQ(SliceCuda(TestDevice(), on_device, 2, 9, 1).status(),
              SliceCpu(source, 2, 9, 1, {}).status());
  }
}

TEST(OptimizerCuda, Adam) {
  for (const Distribution distribution : AllDistributions()) {
    for (const DType dtype : kFloats) {
      for (const int64_t count : {0, 1, 3, 4, 4099}) {
        AdamDesc desc;
        desc.master = Generated(distribution, DType::kF32, {count}, 1);
        desc.gradient = Generated(distribution, dtype, {count}, 2);
        desc.m = Generated(Distribution::kNormal, DType::kF32, {count}, 3);
        desc.v = Generated(Distribution::kLogNormalOutliers, DType::kF32, {count}, 4);
        desc.options.weight_decay = 0.01f;
        for (const bool decoupled : {true, false}) {
          desc.options.decoupled_decay = decoupled;
          desc.step = decoupled ? 1 : 1000;
          const AdamResult expected = ValueOrAbort(AdamStepCpu(desc, {}));
          for (const ToDevice& to : {kAligned, kShifted}) {
            AdamDesc moved = desc;
            for (Tensor* t : {&moved.master, &moved.gradient, &moved.m, &moved.v}) *t = to(*t);
            const AdamResult actual = ValueOrAbort(AdamStepCuda(TestDevice(), moved));
            EXPECT_TRUE(SameTensor(expected.master, actual.master));
            EXPECT_TRUE(SameTensor(expected.m, actual.m));
            EXPECT_TRUE(SameTensor(expected.v, actual.v));
          }
        }
      }
    }
  }
}

TEST(OptimizerCuda, Sgd) {
  const SgdOptions settings[] = {{.learning_rate = 0.1f},
                                 {.learning_rate = 0.1f, .weight_decay = 0.01f},
                                 {.learning_rate = 0.1f, .momentum = 0.9f, .weight_decay = 0.01f},
                                 {.learning_rate = 0.1f, .momentum = 0.9f, .nesterov = true}};
  for (const Distribution distribution : AllDistributions()) {
    for (const DType dtype : kFloats) {
      for (const SgdOptions& options : settings) {
        for (const bool has_buffer : {false, true}) {
          if (has_buffer && options.momentum == 0) continue;
          SgdDesc desc;
          desc.master = Generated(distribution, DType::kF32, {4099}, 1);
          desc.gradient = Generated(distribution, dtype, {4099}, 2);
          if (has_buffer) desc.momentum = Generated(distribution, DType::kF32, {4099}, 3);
          desc.options = options;
          const SgdResult expected = ValueOrAbort(SgdStepCpu(desc, {}));
          for (const ToDevice& to : {kAligned, kShifted}) {
            SgdDesc moved = desc;
            for (Tensor* t : {&moved.master, &moved.gradient, &moved.momentum}) *t = to(*t);
            const SgdResult actual = ValueOrAbort(SgdStepCuda(TestDevice(), moved));
            EXPECT_TRUE(SameTensor(expected.master, actual.master));
            EXPECT_TRUE(SameOrAbsent(expected.momentum, actual.momentum));
          }
        }
      }
    }
  }
}

TEST(OptimizerCuda, MastersInHalves) {
  // Every upper half under lower halves around those that round.
  Tensor master = ValueOrAbort(Tensor::Allocate(DType::kF32, {(1 << 19) + 3}));
  const uint32_t lower[] = {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF, 0x5555};
  for (int64_t i = 0; i < master.element_count(); ++i) {
    master.as<uint32_t>()[i] = static_cast<uint32_t>(i / 8) << 16 | lower[i % 8];
  }
  const SplitTensor expected = ValueOrAbort(SplitMasterCpu(master, {}));
  for (const ToDevice& to : {kAligned, kShifted}) {
    const SplitTensor split = ValueOrAbort(SplitMasterCuda(TestDevice(), to(master)));
    EXPECT_TRUE(SameTensor(expected.parameter, split.parameter));
    EXPECT_TRUE(SameTensor(expected.remainder, split.remainder));
    const SplitTensor moved = {to(expected.parameter), to(expected.remainder)};
    EXPECT_TRUE(SameTensor(master, ValueOrAbort(JoinMasterCuda(TestDevice(), moved))));
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
