// Divided layers that overlap, on GPUs: virtual ranks on one device, ranks on a device each, by
// copies and by NCCL. Every output, every tensor between and every recorded GEMM has the bytes of
// the same ranks on the CPU. Small, so that a memory checker can watch it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/comm/cuda_worlds.h"
#include "tests/engine/tensor_values.h"
#include "tests/layer/overlap_cases.h"

namespace quantgate {
namespace QG_TEST_FILE {

/// A world of CUDA ranks with the group that layers are divided over.
class DividedRanks {
 public:
  explicit DividedRanks(const CudaWorldCase& world) : ranks_(world) {
    std::vector<int> all;
    for (int rank = 0; rank < world.size; ++rank) all.push_back(rank);
    EXPECT_TRUE(ranks_.world().AddGroups("tp", {all}).ok());
  }
  World& world() { return ranks_.world(); }

 private:
  CudaRanks ranks_;
};

/// The tensors of a result in host memory.
absl::Status BringToHost(Engine& engine, LayerResult& result) {
  std::vector<Tensor*> tensors;
  for (auto* named : {&result.outputs, &result.intermediates, &result.state}) {
    for (NamedTensor& one : *named) tensors.push_back(&one.tensor);
  }
  for (GemmRecord& gemm : result.gemms) {
    for (Tensor* tensor : {&gemm.desc.a.data, &gemm.desc.a.scale_inv, &gemm.desc.b.data,
                           &gemm.desc.b.scale_inv, &gemm.result.d}) {
      if (tensor->has_value()) tensors.push_back(tensor);
    }
  }
  for (Tensor* tensor : tensors) {
    QG_ASSIGN_OR_RETURN(*tensor, engine.ToHost(*tensor, nullptr));
  }
  return absl::OkStatus();
}

std::vector<LayerResult> RunOnDevices(World& world, const LayerRequest& whole, const Recipe& recipe,
                                      const Arithmetic& arithmetic, const ParallelSetup& setup) {
  auto results = TryRanks(world, whole, recipe, arithmetic, setup);
  EXPECT_TRUE(results.ok()) << results.status();
  if (!results.ok()) return {};
  const absl::Status brought = world.Run(
      [&](Rank& rank) {
        return BringToHost(rank.engine(), (*results)[static_cast<size_t>(rank.index())]);
      },
      nullptr);
  EXPECT_TRUE(brought.ok()) << brought;
  return *std::move(results);
}

/// The models of both engines, and the hardware where it has their bits.
std::vector<Arithmetic> ArithmeticsOf(const std::string& recipe) {
  if (recipe == "mxfp8") return {*Arithmetic::Parse("sm100")};
  return {*Arithmetic::Parse("sm90"), *Arithmetic::Parse("cublaslt")};
}

/// One of each schedule, and all methods together.
std::vector<OverlapWay> WaysOf(const std::string& recipe) {
  static const auto& names =
      *new std::set<std::string>({"ring in pieces", "aggregate", "pipeline in another order",
                                  "point to point", "bulk", "defaults of 2 splits"});
  std::vector<OverlapWay> ways = OverlapWays(recipe == "mxfp8");
  std::erase_if(ways, [](const OverlapWay& way) { return !names.contains(way.name); });
  EXPECT_EQ(ways.size(), names.size());
  return ways;
}

/// Each way of the layer on every kind of world of `size` ranks; timed every other time.
void ExpectBytesOfTheCpu(const LayerRequest& whole, const std::string& text, int size) {
  const Recipe recipe = *Recipe::Parse(text);
  std::map<std::string, std::vector<LayerResult>> references;
  for (const CudaWorldCase& world : CudaWorldCases()) {
    if (world.size != size) continue;
    DividedRanks ranks(world);
    bool keeps_timelines = false;
    for (const OverlapWay& way : WaysOf(text)) {
      ParallelSetup setup = SetupOf(way, size);
      std::vector<LayerResult>& reference = references[way.name];
      if (reference.empty()) {
        TestWorld cpu(size);
        auto results =
            TryRanks(cpu.world(), whole, recipe, ArithmeticsOf(text)[0], WithoutOverlap(setup));
        ASSERT_TRUE(results.ok()) << results.status();
        reference = *std::move(results);
      }
      for (const Arithmetic& arithmetic : ArithmeticsOf(text)) {
        SCOPED_TRACE(absl::StrCat(CaseText(world), ", ", text, ", ", way.name, ", ",
                                  arithmetic.ToString(), keeps_timelines ? ", timed" : ""));
        setup.keeps_timelines = std::exchange(keeps_timelines, !keeps_timelines);
        const auto subject = RunOnDevices(ranks.world(), whole, recipe, arithmetic, setup);
        ASSERT_EQ(subject.size(), reference.size());
        for (size_t rank = 0; rank < subject.size(); ++rank) {
          ExpectSameResult(subject[rank], reference[rank]);
        }
      }
    }
  }
}

class OverlappedOnGpus : public testing::TestWithParam<std::tuple<const char*, int>> {
 protected:
  static std::string recipe() { return std::get<0>(GetParam()); }
  static int size() { return std::get<1>(GetParam()); }
};

TEST_P(OverlappedOnGpus, LinearOfColumns) {
  ExpectBytesOfTheCpu(LinearOf(ParallelMode::kColumn, recipe(), size()), recipe(), size());
}

TEST_P(OverlappedOnGpus, LinearOfRows) {
  ExpectBytesOfTheCpu(LinearOf(ParallelMode::kRow, recipe(), size()), recipe(), size());
}

TEST_P(OverlappedOnGpus, LayerNormMlp) {
  ExpectBytesOfTheCpu(NormLayerOf(LayerKind::kLayerNormMlp, recipe(), size()), recipe(), size());
}

INSTANTIATE_TEST_SUITE_P(Recipes, OverlappedOnGpus,
                         testing::Combine(testing::Values("bf16", "fp8_current", "fp8_delayed",
                                                          "mxfp8"),
                                          testing::Values(2, 4)),
                         [](const testing::TestParamInfo<std::tuple<const char*, int>>& info) {
                           return absl::StrCat(std::get<0>(info.param), "_on_",
                                               std::get<1>(info.param));
                         });

/// Scales that differ are refused on devices too, where the host compares them late.
TEST(OverlappedGatherOnGpus, RefusesScalesThatDiffer) {
  for (const CudaWorldCase& world : CudaWorldCases()) {
    if (world.size != 2) continue;
    SCOPED_TRACE(CaseText(world));
    CudaRanks ranks(world);
    std::vector<absl::Status> statuses(2);
    const absl::Status run = ranks.world().Run(
        [&](Rank& rank) -> absl::Status {
          OverlapBuffers buffers(rank.engine());
          QG_ASSIGN_OR_RETURN(const auto overlap,
                              Overlap::Create(rank.group(kWorldGroup), buffers));
          AllGatherGemmCall call{.name = {"layer1 fprop", "fc1_fprop", "fp8_tensor"}};
          for (GemmOperand* operand : {&call.gemm.a, &call.gemm.b}) {
            QG_ASSIGN_OR_RETURN(
                operand->data,
                rank.engine().Generate({.dtype = DType::kF8E4M3, .shape = {32, 32}}, nullptr));
            operand->scaling = ScaleMode::kTensor;
            QG_ASSIGN_OR_RETURN(const Tensor scale,
                                Tensor::FromScalar(rank.index() == 0 ? 1.0f : 2.0f));
            QG_ASSIGN_OR_RETURN(operand->scale_inv, rank.engine().ToDevice(scale, nullptr));
          }
          call.gemm.arithmetic = *Arithmetic::Parse("sm90");
          call.gemm.out_dtype = DType::kBF16;
          statuses[static_cast<size_t>(rank.index())] = overlap->AllGatherGemm(call).status();
          return absl::OkStatus();
        },
        nullptr);
    for (const absl::Status& status : statuses) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status << run;
      EXPECT_THAT(std::string(status.message()),
                  testing::EndsWith(
                      "layer1 fprop scale_inv differs between ranks: rank 0 has 0x3f800000 (1), "
                      "rank 1 has 0x40000000 (2)"));
      EXPECT_EQ(status, statuses[0]);
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
