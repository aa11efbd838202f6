// The CUDA engine against the CPU engine: every operation through the same interface, byte for
// byte, and what a device does when it is full.
#include "kernels/engine/cuda_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "kernels/layer/layer.h"
#include "tests/engine/both_engines.h"
#include "tests/engine/engine_ops.h"
#include "tests/engine/recipe_cases.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

struct Dims {
  int64_t m, n, k;
};

LayerRequest MakeRequest(Distribution distribution, DType dtype, Dims dims) {
  LayerRequest request;
  request.x = Generated(distribution, 1, dtype, {dims.m, dims.k});
  request.parameters["weight"] = Generated(distribution, 2, dtype, {dims.n, dims.k});
  request.parameters["bias"] = Generated(Distribution::kNormal, 3, dtype, {dims.n});
  request.grad_output = Generated(distribution, 4, dtype, {dims.m, dims.n});
  request.seed = 7;
  return request;
}

/// From operands in host memory.
TEST(CudaEngine, OperationsGiveTheCpusBytesAndStopWhenCancelled) {
  ExpectEngineOps(**CudaEngine::Open(0));
}

class CudaEngineRecipes : public testing::TestWithParam<const char*> {
 protected:
  void ExpectSame(const LayerRequest& request, const std::string& what) {
    const Recipe recipe = Recipe::Parse(GetParam()).value();
    ExpectSameLayer(request, recipe, ModelFor(recipe), what);
  }
};
INSTANTIATE_TEST_SUITE_P(All, CudaEngineRecipes, testing::ValuesIn(kRecipeCases));

TEST_P(CudaEngineRecipes, LayersHaveTheBitsOfTheCpu) {
  for (const Distribution distribution : AllDistributions()) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      const LayerRequest request = MakeRequest(distribution, dtype, {96, 160, 288});
      ExpectSame(request, std::string(DistributionName(distribution)));
    }
  }
  ExpectSame(MakeRequest(Distribution::kNormal, DType::kF16, {64, 128, 512}), "f16");
}

TEST_P(CudaEngineRecipes, GradientsAsAskedFor) {
  for (int mask = 0; mask < 8; ++mask) {
    LayerRequest request = MakeRequest(Distribution::kNormal, DType::kBF16, {64, 96, 160});
    request.requires_grad = {(mask & 1) != 0, (mask & 2) != 0, (mask & 4) != 0};
    if (mask & 2)
      request.main_grads["weight"] = Generated(Distribution::kNormal, 5, DType::kF32, {96, 160});
    ExpectSame(request, std::to_string(mask));
  }
}

TEST_P(CudaEngineRecipes, OddAndEmptyBatches) {
  for (const int64_t m : {0, 16, 48}) {
    ExpectSame(MakeRequest(Distribution::kSpecialsLaced, DType::kBF16, {m, 32, 96}),
               std::to_string(m));
  }
}

TEST(CudaEngineTest, CublasLtHasTheBitsOfItsModel) {
  const LayerRequest request = MakeRequest(Distribution::kNormal, DType::kBF16, {256, 512, 768});
  for (const char* recipe :
       {"bf16", "fp8_current", "fp8_block", "fp8_delayed", "fp8_rowwise:fp8_format=e4m3",
        "fp8_current:backward_override=dequantized"}) {
    const Recipe parsed = Recipe::Parse(recipe).value();
    const auto hardware =
        RunLayer(Cuda(), request, parsed, Arithmetic::Parse("cublaslt").value(), nullptr);
    const auto model = RunLayer(Cpu(), request, parsed, Arithmetic::Parse("sm90").value(), nullptr);
    ASSERT_TRUE(hardware.ok() && model.ok()) << hardware.status() << model.status();
    EXPECT_EQ(DifferenceOf(*hardware, *model), "") << recipe;
    for (const GemmRecord& gemm : hardware->gemms) {
      EXPECT_EQ(gemm.result.arithmetic.family, ArithmeticFamily::kCublasLt)
          << gemm.result.arithmetic.ToString();
      EXPECT_NE(gemm.result.note.find("id="), std::string::npos) << gemm.result.note;
    }
  }
}

TEST(CudaEngineTest, AutoIsTheHardwareWhereItCan) {
  const LayerRequest request = MakeRequest(Distribution::kNormal, DType::kBF16, {64, 128, 256});
  const auto arithmetic_of = [&](const char* recipe) {
    const auto result = RunLayer(Cuda(), request, Recipe::Parse(recipe).value(), {}, nullptr);
    return result.ok() ? result->gemms[0].result.arithmetic.ToString() : result.status().ToString();
  };
  EXPECT_EQ(arithmetic_of("fp8_current"), "cublaslt:fast");
  EXPECT_EQ(arithmetic_of("bf16"), "cublaslt");
  EXPECT_EQ(arithmetic_of("mxfp8"), "sm100");
  EXPECT_EQ(arithmetic_of("nvfp4"), "sm100");
}

TEST(CudaEngineTest, ActivationsHaveTheBitsOfTheCpu) {
  const Tensor h = Generated(Distribution::kNormal, 5, DType::kBF16, {33, 2 * 40});
  const Tensor dy = Generated(Distribution::kNormal, 6, DType::kF32, {33, 40});
  const ActivationOptions swiglu = {.kind = ActivationKind::kSwiglu};
  // From host memory and from the device's.
  for (const Tensor& x : {h, Cuda().ToDevice(h, nullptr).value()}) {
    const Tensor y = Cuda().ActivationForward(x, swiglu, DType::kF32, nullptr).value();
    const Tensor dh = Cuda().ActivationBackward(dy, x, swiglu, DType::kF16, nullptr).value();
    EXPECT_TRUE(SameBits(Cuda().ToHost(y, nullptr).value(),
                         Cpu().ActivationForward(h, swiglu, DType::kF32, nullptr).value()));
    EXPECT_TRUE(SameBits(Cuda().ToHost(dh, nullptr).value(),
                         Cpu().ActivationBackward(dy, h, swiglu, DType::kF16, nullptr).value()));
  }
}

// Between work that takes the device a while: what made the tensor, and what comes after it. More
// than goes through the staging memory at once.
TEST(CudaEngineTest, ReadsATensorAmongOtherWork) {
  const Tensor x = Generated(Distribution::kNormal, 5, DType::kBF16, {4096, 4096});
  const Tensor expected = Cpu().Cast(x, DType::kF32, nullptr).value();
  const Tensor on_device = Cuda().ToDevice(x, nullptr).value();
  for (int repeat = 0; repeat < 20; ++repeat) {
    for (int i = 0; i < 30; ++i) ASSERT_TRUE(Cuda().Cast(on_device, DType::kF32, nullptr).ok());
    Engine::HostRead read;
    {
      const Tensor wide = Cuda().Cast(on_device, DType::kF32, nullptr).value();
      read = Cuda().StartToHost(wide).value();
    }
    // Would take the memory of the tensor if nothing held it.
    for (int i = 0; i < 30; ++i) ASSERT_TRUE(Cuda().Cast(on_device, DType::kF32, nullptr).ok());
    std::vector<std::byte> bytes(expected.byte_size());
    ASSERT_TRUE(read(bytes).ok());
    ASSERT_TRUE(std::equal(bytes.begin(), bytes.end(), expected.bytes().begin())) << repeat;
    EXPECT_TRUE(absl::IsInvalidArgument(read(std::span(bytes).first(4))));
  }
}

TEST(CudaEngineTest, RepeatsAreIdentical) {
  const LayerRequest request = MakeRequest(Distribution::kNormal, DType::kBF16, {256, 256, 512});
  for (const char* recipe : {"fp8_current", "mxfp8", "nvfp4", "fp8_block"}) {
    std::vector<Fingerprint> first;
    for (int repeat = 0; repeat < 1000; ++repeat) {
      const auto result = RunLayer(Cuda(), request, Recipe::Parse(recipe).value(), {}, nullptr);
      ASSERT_TRUE(result.ok()) << result.status();
      std::vector<Fingerprint> now;
      for (const NamedTensor& output : result->outputs) {
        now.push_back(Cuda().FingerprintOf(output.tensor, nullptr).value());
      }
      if (repeat == 0) first = now;
      ASSERT_EQ(now, first) << recipe << " repeat " << repeat;
    }
  }
}

TEST(CudaEngineTest, OtherStreamsAndOtherWorkChangeNothing) {
  const LayerRequest request =
      MakeRequest(Distribution::kLogNormalOutliers, DType::kBF16, {256, 256, 512});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      // Two of them on a stream of their own, two on a shared one.
      std::unique_ptr<CudaEngine> own;
      if (t < 2) own = CudaEngine::Open(0).value();
      Engine& engine = own == nullptr ? static_cast<Engine&>(Cuda()) : *own;
      for (int i = 0; i < 25; ++i) {
        for (const char* recipe : {"fp8_current", "nvfp4", "mxfp8"}) {
          const Recipe parsed = Recipe::Parse(recipe).value();
          const auto result = RunLayer(engine, request, parsed, ModelFor(parsed), nullptr);
          ASSERT_TRUE(result.ok()) << result.status();
          if (i % 8 != 0) continue;
          const auto reference = RunLayer(Cpu(), request, parsed, ModelFor(parsed), nullptr);
          EXPECT_EQ(DifferenceOf(*result, *reference), "") << recipe;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// What a caller sees when the k-th allocation of a layer fails, for every k: an error that names
// the bytes, and a next run with the right bits.
TEST(CudaEngineTest, SurvivesEveryFailedAllocation) {
  CudaDevice& device = Cuda().device();
  const LayerRequest request = MakeRequest(Distribution::kNormal, DType::kBF16, {64, 64, 128});
  for (const char* name : {"fp8_current", "nvfp4", "fp8_delayed"}) {
    const Recipe recipe = Recipe::Parse(name).value();
    const auto reference = RunLayer(Cpu(), request, recipe, ModelFor(recipe), nullptr);
    ASSERT_TRUE(reference.ok());
    const int64_t before = device.allocation_count();
    ASSERT_TRUE(RunLayer(Cuda(), request, recipe, ModelFor(recipe), nullptr).ok());
    const int64_t count = device.allocation_count() - before;
    ASSERT_GT(count, 10);
    const int64_t in_use = device.bytes_in_use();
    for (int64_t k = 1; k <= count; ++k) {
      device.FailAllocation(k);
      const auto failed = RunLayer(Cuda(), request, recipe, ModelFor(recipe), nullptr);
      device.FailAllocation(0);
      ASSERT_TRUE(absl::IsResourceExhausted(failed.status())) << k << ": " << failed.status();
      EXPECT_NE(failed.status().message().find("bytes of device memory"), std::string::npos);
      EXPECT_EQ(device.bytes_in_use(), in_use) << k;
    }
    const auto after = RunLayer(Cuda(), request, recipe, ModelFor(recipe), nullptr);
    ASSERT_TRUE(after.ok()) << after.status();
    EXPECT_EQ(DifferenceOf(*after, *reference), "") << name;
  }
}

// Many at once, read in another order than they were begun, and some of them never.
TEST(CudaEngineTest, DeferredReportsAreThoseThatWait) {
  const Tensor truth = Generated(Distribution::kNormal, 5, DType::kF32, {96, 640});
  const Tensor subject = Cpu().Cast(truth, DType::kBF16, nullptr).value();
  const Tensor other = Generated(Distribution::kNormal, 6, DType::kBF16, {96, 640});
  std::vector<Deferred<ParityReport>> parities;
  std::vector<Deferred<ErrorReport>> errors;
  for (int i = 0; i < 40; ++i) {
    const Tensor& reference = i % 2 == 0 ? subject : other;
    parities.push_back(Cuda().StartCompareBits(subject, reference, nullptr).value());
    errors.push_back(Cuda().StartMeasureError(reference, truth, nullptr).value());
    if (i % 7 != 0) continue;
    ASSERT_TRUE(Cuda().StartStopwatch()->Stop().ok());  // Marks some of them.
  }
  for (int i = 39; i >= 0; --i) {
    if (i % 5 == 0) continue;
    const Tensor& reference = i % 2 == 0 ? subject : other;
    const ParityReport parity = std::move(parities[i])().value();
    const ParityReport expected = Cpu().CompareBits(subject, reference, nullptr).value();
    EXPECT_EQ(parity.mismatch_count, expected.mismatch_count);
    EXPECT_EQ(parity.worst_ulp, expected.worst_ulp);
    const ErrorReport error = std::move(errors[i])().value();
    const ErrorReport by_cpu = Cpu().MeasureError(reference, truth, nullptr).value();
    EXPECT_EQ(error.relative_frobenius, by_cpu.relative_frobenius);
    EXPECT_EQ(error.max_abs, by_cpu.max_abs);
    ASSERT_EQ(error.heat_map.cells.size(), by_cpu.heat_map.cells.size());
    EXPECT_EQ(error.heat_map.cells.back().rms_error, by_cpu.heat_map.cells.back().rms_error);
  }
}

TEST(CudaEngineTest, DeferredGemmsAreThoseThatWait) {
  GemmDesc desc;
  desc.a.data = Generated(Distribution::kNormal, 7, DType::kBF16, {64, 96});
  desc.b.data = Generated(Distribution::kNormal, 8, DType::kBF16, {80, 96});
  for (const char* arithmetic : {"exact", "sm90"}) {
    desc.arithmetic = Arithmetic::Parse(arithmetic).value();
    StartedGemm started = Cuda().StartGemm(desc, nullptr).value();
    const GemmResult expected = Cpu().Gemm(desc, nullptr).value();
    EXPECT_EQ(Cuda().FingerprintOf(started.result.d, nullptr).value(),
              Cpu().FingerprintOf(expected.d, nullptr).value());
    EXPECT_EQ(started.result.arithmetic, expected.arithmetic);
    EXPECT_TRUE(started.result.note.empty());
    EXPECT_EQ(std::move(started.note)().value(), Cuda().Gemm(desc, nullptr)->note) << arithmetic;
    if (desc.arithmetic.family == ArithmeticFamily::kExact) continue;
    auto check = Cuda().StartCheckBound(desc, started.result.d, expected.d, nullptr).value();
    const BoundCheck by_cpu = Cpu().CheckBound(desc, expected.d, expected.d, nullptr).value();
    const BoundCheck bound = std::move(check)().value();
    EXPECT_EQ(bound.worst_ratio, by_cpu.worst_ratio);
    EXPECT_EQ(bound.pass, by_cpu.pass);
  }
}

TEST(CudaEngineTest, StagesThatFollowEachOtherShareTheirMark) {
  const Tensor source =
      Cuda()
          .ToDevice(Generated(Distribution::kNormal, 9, DType::kBF16, {512, 512}), nullptr)
          .value();
  const auto cast = [&] { return Cuda().Cast(source, DType::kF32, nullptr).value(); };
  const auto whole = Cuda().StartStopwatch();
  cast();
  const auto first = Cuda().StartStopwatch();
  cast();
  ASSERT_TRUE(first->Stop().ok());
  const auto second = Cuda().StartStopwatch();
  ASSERT_TRUE(second->Stop().ok());
  const auto third = Cuda().StartStopwatch();
  cast();
  ASSERT_TRUE(third->Stop().ok());
  ASSERT_TRUE(whole->Stop().ok());
  const double of_first = first->Seconds().value(), of_third = third->Seconds().value();
  EXPECT_GT(of_first, 0);
  EXPECT_GT(of_third, 0);
  EXPECT_GE(second->Seconds().value(), 0);
  EXPECT_GE(whole->Seconds().value(), of_first + of_third);
}

TEST(CudaEngineTest, StopsBetweenKernels) {
  const LayerRequest request = MakeRequest(Distribution::kNormal, DType::kBF16, {64, 64, 128});
  Cancellation cancelled;
  cancelled.Cancel();
  EXPECT_TRUE(absl::IsCancelled(
      RunLayer(Cuda(), request, Recipe::Parse("bf16").value(), {}, &cancelled).status()));
  Cancellation late(absl::Now() - absl::Seconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      RunLayer(Cuda(), request, Recipe::Parse("bf16").value(), {}, &late).status()));
}

TEST(CudaEngineTest, DescribesItself) {
  const DeviceDescription device = Cuda().Describe();
  EXPECT_EQ(device.id, "cuda:0");
  EXPECT_EQ(device.architecture, "sm_90");
  EXPECT_FALSE(device.driver.empty());
  EXPECT_GT(device.sm_clock_mhz, 0);
  EXPECT_GT(device.multiprocessors, 0);
  EXPECT_FALSE(device.cublaslt.empty());
  EXPECT_TRUE(Cuda().Health().ok());
}

// Last, in a process of its own: a kernel that faults poisons the whole process.
TEST(CudaEngineDeathTest, AFaultingKernelIsNeverForgotten) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        CudaEngine& engine = Cuda();
        const Tensor good = engine.Generate({}, nullptr).value_or(Tensor());
        // Device memory that is not there.
        const auto nowhere = Buffer::Wrap(reinterpret_cast<std::byte*>(uintptr_t{1} << 46), 4096,
                                          nullptr, MemorySpace::kDevice);
        const Tensor bad = Tensor::View(DType::kF32, {1024}, nowhere).value();
        const auto first = engine.FingerprintOf(bad, nullptr);
        const auto second =
            engine.FingerprintOf(Generated(Distribution::kNormal, 1, DType::kF32, {64}), nullptr);
        const bool is_lost =
            !first.ok() && absl::IsDataLoss(engine.Health()) && absl::IsDataLoss(second.status());
        std::_Exit(is_lost ? 42 : 1);
      },
      testing::ExitedWithCode(42), "");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
