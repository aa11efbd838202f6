// CublasLt against what an H200 recorded (tests/data/golden_gemm_*.safetensors) and against GemmCpu
// under sm90, bit for bit, by every algorithm that the model claims (docs/tensor-cores.md section
// 3.6); and what it does with views, empty tensors, wrong places and full memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/cuda_status.h"
#include "kernels/gemm/cublaslt/gemm_cublaslt.h"
#include "kernels/gemm/cublaslt/hardware_check.h"
#include "kernels/gemm/gemm.h"
#include "kernels/tensor/fingerprint.h"
#include "tests/gemm/golden_cases.h"
#include "tests/gemm/operand_pattern.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// The kernels whose bits are those of sm90, by CUBLASLT_ALGO_CONFIG_ID.
bool IsModelled(DType operand, const CublasLtAlgorithm& algorithm) {
  if (operand != DType::kF32) return algorithm.id == 66;
  if (algorithm.split_k < 0 || algorithm.split_k > 1) return false;
  return algorithm.id == 21 || algorithm.id == 23 || algorithm.id == 43 || algorithm.id == 63;
}

class CublasLtGemmTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<CudaDevice>> device = CudaDevice::Open(0);
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    absl::StatusOr<std::unique_ptr<CublasLt>> cublaslt = CublasLt::Create(*device_);
    ASSERT_TRUE(cublaslt.ok()) << cublaslt.status();
    cublaslt_ = *std::move(cublaslt);
  }

  GemmDesc OnDevice(const GemmDesc& desc) {
    absl::StatusOr<GemmDesc> placed =
        WithTensors(desc, [&](const Tensor& tensor) { return device_->ToDevice(tensor); });
    EXPECT_TRUE(placed.ok()) << placed.status();
    placed->arithmetic.family = ArithmeticFamily::kCublasLt;
    return *std::move(placed);
  }

  /// d and amax in host memory.
  absl::StatusOr<GemmResult> Run(const GemmDesc& desc) {
    QG_ASSIGN_OR_RETURN(GemmResult result, cublaslt_->Gemm(desc, nullptr));
    QG_ASSIGN_OR_RETURN(result.d, device_->ToHost(result.d));
    QG_ASSIGN_OR_RETURN(result.amax, device_->ToHost(result.amax));
    return result;
  }

  std::vector<CublasLtAlgorithm> AlgorithmsOf(const GemmDesc& desc) {
    absl::StatusOr<std::vector<CublasLtAlgorithm>> all = cublaslt_->Algorithms(desc);
    EXPECT_TRUE(all.ok()) << all.status();
    return all.ok() ? *std::move(all) : std::vector<CublasLtAlgorithm>();
  }

  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<CublasLt> cublaslt_;
};

std::string Difference(const Tensor& hardware, const Tensor& expected) {
  if (hardware.byte_size() != expected.byte_size()) return "sizes differ";
  const std::optional<OutputDifference> d = FirstDifference(hardware, expected);
  if (!d.has_value()) return "";
  return absl::StrCat(d->count, " of ", d->of, " differ, first at (", d->row, ", ", d->column,
                      "): 0x", absl::Hex(d->hardware_bits), ", expected 0x",
                      absl::Hex(d->model_bits));
}

class CublasLtGoldenTest : public CublasLtGemmTest,
                           public ::testing::WithParamInterface<const char*> {};

TEST_P(CublasLtGoldenTest, GivesWhatWasRecorded) {
  const GoldenFile golden = ReadGolden(GetParam());
  ASSERT_GT(golden.cases.size(), 0u);
  int runs = 0;
  for (const nlohmann::json& one : golden.cases) {
    SCOPED_TRACE(one["name"].get<std::string>());
    GemmDesc desc = OnDevice(DescOf(golden, one));
    for (const CublasLtAlgorithm& algorithm : AlgorithmsOf(desc)) {
      if (!IsModelled(desc.a.data.dtype(), algorithm)) continue;
      desc.arithmetic.algorithm = algorithm.index;
      const absl::StatusOr<GemmResult> result = Run(desc);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->note, algorithm.ToString());
      ++runs;
      if (one.contains("d_sha256")) {
        EXPECT_EQ(Sha256Of(result->d.bytes()).Hex(), one["d_sha256"].get<std::string>());
        continue;
      }
      EXPECT_EQ(Difference(result->d, *golden.tensors.Find(one["d"].get<std::string>())), "")
          << algorithm.ToString();
      if (one.contains("amax_bits")) {
        EXPECT_EQ(std::bit_cast<uint32_t>(*result->amax.as<float>()),
                  one["amax_bits"].get<uint32_t>());
      }
    }
  }
  std::cout << golden.cases.size() << " GEMMs, " << runs << " runs\n";
  EXPECT_GT(runs, 0);
}

INSTANTIATE_TEST_SUITE_P(Files, CublasLtGoldenTest,
                         ::testing::Values("bf16", "f16", "tf32", "fp8_e4m3", "fp8_e5m2_e4m3",
                                           "fp8_e4m3_e5m2", "epilogue_high_precision", "fp8_block",
                                           "block_splitk", "epilogue_fp8", "splitk", "large"));

/// The operand redrawn by `pattern`, in the layout it has.
Tensor Redrawn(const Tensor& tensor, testing::Pattern pattern, uint64_t seed) {
  const std::string type(DTypeName(tensor.dtype()));
  const std::vector<uint8_t> bytes = testing::PatternMatrix(
      pattern, testing::CodeFormatOf(type), 16, seed, tensor.shape()[0], tensor.shape()[1]);
  return *Tensor::FromBytes(tensor.dtype(), tensor.shape(), std::as_bytes(std::span(bytes)));
}

TEST_F(CublasLtGemmTest, EveryModelledAlgorithmGivesTheBitsOfTheCpuOnEveryPattern) {
  const std::vector<HardwareCase> cases = HardwareCases(HardwareCheckSize::kQuick);
  int runs = 0, split_runs = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    GemmDesc host = *DescOf(cases[i]);
    host.a.data = Redrawn(host.a.data, testing::kPatterns[i % 12].pattern, 2 * i);
    host.b.data = Redrawn(host.b.data, testing::kPatterns[i * 7 % 12].pattern, 2 * i + 1);
    GemmDesc desc = OnDevice(host);
    std::vector<std::pair<int, GemmResult>> models;  // By slices.
    for (const char* request : {"cublaslt", "cublaslt:splitk=any", "cublaslt:splitk=3"}) {
      desc.arithmetic = *Arithmetic::Parse(request);
      const absl::StatusOr<std::vector<CublasLtAlgorithm>> algorithms = cublaslt_->Algorithms(desc);
      // Not every kernel can be made to cut K in three.
      if (desc.arithmetic.split_k == 3 && absl::IsUnimplemented(algorithms.status())) continue;
      ASSERT_TRUE(algorithms.ok()) << algorithms.status();
      for (const CublasLtAlgorithm& algorithm : *algorithms) {
        // Id 43 of f32 may cut K by itself where it may (docs/tensor-cores.md section 3.6).
        if (!IsModelled(cases[i].a, algorithm)) continue;
        if (algorithm.id == 43 && desc.arithmetic.any_split_k) continue;
        const int slices = std::max(1, algorithm.split_k);
        auto model = std::find_if(models.begin(), models.end(),
                                  [&](const auto& known) { return known.first == slices; });
        if (model == models.end()) {
          GemmDesc of_model = host;
          of_model.arithmetic.family = ArithmeticFamily::kSm90;
          of_model.arithmetic.split_k = slices;
          models.emplace_back(slices, *GemmCpu(of_model, {}));
          model = models.end() - 1;
        }
        desc.arithmetic.algorithm = algorithm.index;
        const absl::StatusOr<GemmResult> result = Run(desc);
        ASSERT_TRUE(result.ok()) << result.status();
        ++runs;
        split_runs += slices > 1;
        EXPECT_EQ(Difference(result->d, model->second.d), "")
            << GemmText(desc) << ", " << testing::kPatterns[i % 12].name << " x "
            << testing::kPatterns[i * 7 % 12].name << ", " << algorithm.ToString();
        if (model->second.amax.has_value() && slices == 1) {
          EXPECT_EQ(Difference(result->amax, model->second.amax), "");
        }
        // What is said to have run is what the model took.
        const Arithmetic said = result->arithmetic;
        EXPECT_EQ(said.family, ArithmeticFamily::kCublasLt);
        EXPECT_EQ(said.split_k, slices);
        EXPECT_EQ(said.accumulation, ResolvedFor(host).accumulation);
      }
    }
  }
  std::cout << cases.size() << " GEMMs, " << runs << " runs, " << split_runs << " of them split\n";
  EXPECT_GT(split_runs, 100);
  EXPECT_GT(runs, 500);
}

/// The largest |value| of an f32 tensor that is a number, as bits.
uint32_t AmaxOfNumbers(const Tensor& values) {
  uint32_t amax = 0;
  for (int64_t i = 0; i < values.element_count(); ++i) {
    const uint32_t magnitude = values.as<uint32_t>()[i] & 0x7FFFFFFF;
    if (magnitude <= 0x7F800000) amax = std::max(amax, magnitude);
  }
  return amax;
}

/// The reported amax is a NaN where any value is (docs/tensor-cores.md section 3.3), but after
/// split-K that of the numbers.
TEST_F(CublasLtGemmTest, AmaxAfterSplitKIsThatOfTheNumbers) {
  HardwareCase one;
  one.shape = {64, 64, 4608};
  one.a = one.b = one.out = DType::kF8E4M3;
  one.a_scaling = one.b_scaling = ScaleMode::kTensor;
  for (const size_t nan_count : {size_t{0}, size_t{1}, size_t{64} * 4608}) {
    GemmDesc host = *DescOf(one);
    std::fill_n(host.a.data.data(), nan_count, std::byte{0x7F});
    for (const int slices : {1, 2, 3, 4}) {
      GemmDesc of_model = host;
      of_model.arithmetic.family = ArithmeticFamily::kSm90;
      of_model.arithmetic.split_k = slices;
      const uint32_t modelled = *GemmCpu(of_model, {})->amax.as<uint32_t>();
      of_model.out_dtype = DType::kF32;
      of_model.d_scale = Tensor();
      const uint32_t numbers = AmaxOfNumbers(GemmCpu(of_model, {})->d);
      if (slices > 1) {
        EXPECT_EQ(modelled, numbers) << slices << " slices, " << nan_count << " NaN";
      }
      GemmDesc desc = OnDevice(host);
      desc.arithmetic.split_k = slices;
      for (const CublasLtAlgorithm& algorithm : AlgorithmsOf(desc)) {
        desc.arithmetic.algorithm = algorithm.index;
        const absl::StatusOr<GemmResult> result = Run(desc);
        ASSERT_TRUE(result.ok()) << result.status();
        EXPECT_EQ(*result->amax.as<uint32_t>(), modelled)
            << slices << " slices, " << nan_count << " NaN, " << algorithm.ToString();
      }
    }
  }
}

/// cuBLASLt's heuristic has none for it that leaves K whole.
TEST_F(CublasLtGemmTest, FewOutputsUnderALongKAreLeftWholeToo) {
  HardwareCase one;
  one.shape = {32, 48, 16384};
  one.a = one.b = DType::kF8E4M3;
  one.a_scaling = one.b_scaling = ScaleMode::kTensor;
  one.use_split_accumulator = true;
  GemmDesc host = *DescOf(one);
  const absl::StatusOr<GemmResult> result = Run(OnDevice(host));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->arithmetic.ToString(), "cublaslt:split");
  EXPECT_THAT(result->note, HasSubstr(" splitk=1 reduction=0 "));
  host.arithmetic = host.arithmetic.Model();
  EXPECT_EQ(Difference(result->d, GemmCpu(host, {})->d), "");
}

TEST_F(CublasLtGemmTest, AnEmptyMGivesAnEmptyTensor) {
  HardwareCase one;
  one.shape = {0, 32, 64};
  one.a = one.b = DType::kF8E4M3;
  one.out = DType::kF8E4M3;
  one.a_scaling = one.b_scaling = ScaleMode::kTensor;
  const GemmDesc desc = OnDevice(*DescOf(one));
  const absl::StatusOr<GemmResult> result = Run(desc);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->d.shape(), (Shape{0, 32}));
  EXPECT_EQ(*result->amax.as<uint32_t>(), 0u);
  EXPECT_EQ(result->arithmetic.ToString(), "cublaslt:fast");
  EXPECT_TRUE(AlgorithmsOf(desc).empty());
}

/// The tensor's bytes at `offset` of a larger buffer.
Tensor ViewAt(CudaDevice& device, const Tensor& tensor, size_t offset) {
  std::shared_ptr<Buffer> buffer = *device.AllocateBytes(tensor.byte_size() + offset);
  Tensor view = *Tensor::View(tensor.dtype(), tensor.shape(), buffer, offset);
  EXPECT_TRUE(QG_CUDA_STATUS(cudaMemcpyAsync(view.data(), tensor.data(), tensor.byte_size(),
                                             cudaMemcpyDeviceToDevice, device.stream()))
                  .ok());
  return view;
}

TEST_F(CublasLtGemmTest, ViewsThatLieAnywhereGiveTheSameBits) {
  for (HardwareCase one : HardwareCases(HardwareCheckSize::kQuick)) {
    if (one.shape.k != 656) continue;
    const GemmDesc desc = OnDevice(*DescOf(one));
    const absl::StatusOr<GemmResult> plain = Run(desc);
    ASSERT_TRUE(plain.ok()) << plain.status();
    for (const int64_t elements : {1, 2, 4, 8, 16, 32}) {
      const absl::StatusOr<GemmDesc> moved =
          WithTensors(desc, [&](const Tensor& tensor) -> absl::StatusOr<Tensor> {
            return ViewAt(*device_, tensor,
                          static_cast<size_t>(elements) * DTypeBytes(tensor.dtype()));
          });
      const absl::StatusOr<GemmResult> result = Run(*moved);
      EXPECT_TRUE(result.ok()) << "at " << elements << ": " << result.status();
      if (!result.ok()) continue;
      EXPECT_EQ(Difference(result->d, plain->d), "") << GemmText(desc) << " at " << elements;
    }
  }
}

TEST_F(CublasLtGemmTest, CIsLeftAsItWas) {
  for (HardwareCase one : HardwareCases(HardwareCheckSize::kQuick)) {
    if (one.epilogue != CaseEpilogue::kInPlace && one.epilogue != CaseEpilogue::kSum) continue;
    const GemmDesc host = *DescOf(one);
    const GemmDesc desc = OnDevice(host);
    ASSERT_TRUE(Run(desc).ok());
    EXPECT_EQ(Difference(*device_->ToHost(desc.c), host.c), "") << GemmText(desc);
  }
}

TEST_F(CublasLtGemmTest, SlicesAreThoseAskedForOrNamed) {
  HardwareCase one;
  one.shape = {64, 64, 8192};
  one.out = DType::kF32;
  GemmDesc desc = OnDevice(*DescOf(one));
  EXPECT_EQ(Run(desc)->arithmetic.ToString(), "cublaslt");
  for (const CublasLtAlgorithm& algorithm : AlgorithmsOf(desc)) {
    EXPECT_LE(algorithm.split_k, 1) << algorithm.ToString();
  }
  desc.arithmetic.split_k = 4;
  const absl::StatusOr<GemmResult> four = Run(desc);
  ASSERT_TRUE(four.ok()) << four.status();
  EXPECT_EQ(four->arithmetic.ToString(), "cublaslt:splitk=4");
  EXPECT_THAT(four->note, HasSubstr(" splitk=4 reduction=2 "));
  desc.arithmetic.split_k = 1;
  desc.arithmetic.any_split_k = true;
  int split = 0;
  for (const CublasLtAlgorithm& algorithm : AlgorithmsOf(desc)) {
    split += algorithm.split_k > 1;
  }
  EXPECT_GT(split, 0);
}

TEST_F(CublasLtGemmTest, BadRequestsAreNamed) {
  HardwareCase one;
  one.shape = {64, 64, 64};
  const GemmDesc host = *DescOf(one);
  GemmDesc desc = OnDevice(host);
  const size_t count = AlgorithmsOf(desc).size();
  desc.arithmetic.algorithm = static_cast<int>(count);
  const absl::Status status = Run(desc).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              StartsWith(absl::StrCat("arithmetic.algorithm is ", count,
                                      ": cuBLASLt's heuristic returns ", count)));
  desc = OnDevice(host);
  desc.b.data = host.b.data;
  EXPECT_THAT(std::string(Run(desc).status().message()), HasSubstr("in host memory"));
  Cancellation cancellation;
  cancellation.Cancel();
  EXPECT_TRUE(absl::IsCancelled(cublaslt_->Gemm(OnDevice(host), &cancellation).status()));
}

TEST_F(CublasLtGemmTest, FullMemoryIsToldAndNothingIsLost) {
  for (HardwareCase one : HardwareCases(HardwareCheckSize::kQuick)) {
    if (one.shape.k != 656) continue;
    const GemmDesc desc = OnDevice(*DescOf(one));
    const int64_t before = device_->allocation_count();
    const absl::StatusOr<GemmResult> plain = cublaslt_->Gemm(desc, nullptr);
    ASSERT_TRUE(plain.ok()) << plain.status();
    const int64_t allocations = device_->allocation_count() - before;
    EXPECT_GT(allocations, 0);
    const int64_t bytes = device_->bytes_in_use();
    for (int64_t k = 1; k <= allocations; ++k) {
      device_->FailAllocation(k);
      EXPECT_EQ(cublaslt_->Gemm(desc, nullptr).status().code(),
                absl::StatusCode::kResourceExhausted);
      device_->FailAllocation(0);
      EXPECT_EQ(device_->bytes_in_use(), bytes);
    }
    EXPECT_EQ(Difference(Run(desc)->d, *device_->ToHost(plain->d)), "");
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
