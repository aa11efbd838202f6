// Engine.Execute of variants on several ranks through a real channel: what is reported of each
// rank, and what is refused.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "quantgate/v1/scenarios_service.grpc.pb.h"
#include "tests/server/rpc/bad_input_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

v1::RunSpec TwinsSpec(const std::string& recipe, const std::string& mode) {
  v1::RunSpec spec = LinearSpec(64, 128, 128);
  spec.mutable_step()->mutable_layer()->set_parallel_mode(mode);
  *spec.add_variants() = MakeVariant(recipe, "none", recipe == "mxfp8" ? "sm100" : "sm90");
  *spec.add_variants() = spec.variants(0);
  v1::Parallel& parallel = *spec.mutable_variants(1)->mutable_parallel();
  parallel.set_tensor_parallel(2);
  parallel.set_sequence_parallel(true);
  spec.set_reference(0);
  return spec;
}

class ParallelRunTest : public BadInputTest {
 protected:
  /// Reports by variant; the run's goes to `report`.
  std::map<int, v1::VariantReport> Run(const v1::RunSpec& spec, v1::RunReport& report) {
    v1::ExecuteRequest request;
    *request.mutable_spec() = spec;
    grpc::ClientContext context;
    const auto reader = server_.engine().Execute(&context, request);
    std::map<int, v1::VariantReport> variants;
    v1::RunEvent event;
    while (reader->Read(&event)) {
      if (event.has_variant()) variants[event.variant().index()] = event.variant().report();
    }
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(event.finished().state(), v1::RUN_STATE_SUCCEEDED)
        << event.finished().status_message();
    report = event.finished().report();
    return variants;
  }
  void ExpectTwinsRefused(const std::function<void(v1::RunSpec&)>& spoil, const Refusal& expected) {
    v1::ExecuteRequest request;
    *request.mutable_spec() = TwinsSpec("bf16", "column");
    spoil(*request.mutable_spec());
    ExpectRefused(Execute(request), expected);
  }
};

TEST_F(ParallelRunTest, RanksAreReported) {
  v1::RunSpec spec = TwinsSpec("mxfp8", "column");
  spec.mutable_step()->mutable_requires_grad()->set_weight(true);
  spec.set_requirement(v1::REQUIREMENT_BITWISE);
  v1::RunReport report;
  std::map<int, v1::VariantReport> variants = Run(spec, report);
  EXPECT_TRUE(report.verdict().pass()) << report.verdict().finding();
  EXPECT_EQ(variants[0].ranks_size(), 0);
  const v1::VariantReport& twin = variants[1];
  EXPECT_EQ(twin.label(), "mxfp8 / none / sm100 / tp2 sp");
  ASSERT_EQ(twin.ranks_size(), 2);
  EXPECT_EQ(twin.saved_bytes().bytes(), 2 * (4224 + 8448));
  for (int i = 0; i < 2; ++i) {
    const v1::RankReport& rank = twin.ranks(i);
    EXPECT_EQ(rank.rank(), i);
    EXPECT_EQ(rank.device(), "cpu");
    ASSERT_GT(rank.outputs_size(), 0);
    EXPECT_EQ(rank.outputs(0).name(), "y");
    EXPECT_EQ(rank.outputs(0).type().shape(1), 64);
    EXPECT_EQ(rank.gemms_size(), 2);
    // Its half of x [64][128] columnwise and of the weight [128][128] rowwise, an E8M0 scale
    // each 32.
    ASSERT_EQ(rank.saved_size(), 2);
    EXPECT_EQ(rank.saved(0).counted_bytes(), 32 * 128 + 128);
    EXPECT_EQ(rank.saved(1).counted_bytes(), 64 * 128 + 64 * 4);
    EXPECT_EQ(rank.saved_bytes().bytes(), 4224 + 8448);
    // x whole, columnwise.
    EXPECT_EQ(rank.gathered_peak_bytes(), 64 * 128 + 2 * 128);
    EXPECT_EQ(rank.gathered_held_bytes(), 0);
    EXPECT_GT(rank.quantizations_size(), 0);
    std::vector<std::string> stages;
    for (const v1::StageTime& stage : rank.stages()) stages.push_back(stage.stage());
    EXPECT_THAT(stages, Contains(StartsWith("all-gather x")));
  }
}

TEST_F(ParallelRunTest, AnOutputThatDiffersFromOneRankIsTheVerdict) {
  v1::RunSpec spec = TwinsSpec("bf16", "row");
  spec.set_requirement(v1::REQUIREMENT_BITWISE);
  v1::RunReport report;
  Run(spec, report);
  EXPECT_FALSE(report.verdict().pass());
  EXPECT_THAT(report.verdict().finding(), HasSubstr("y of bf16 / none / sm90 / tp2 sp differs"));
  spec.set_requirement(v1::REQUIREMENT_BOUND);
  std::map<int, v1::VariantReport> variants = Run(spec, report);
  EXPECT_TRUE(report.verdict().pass()) << report.verdict().finding();
  EXPECT_THAT(variants[1].outputs(0).bound().derivation(), HasSubstr("each rank's part p_r"));
}

// The bits are those without overlap, and each rank says when what ran.
TEST_F(ParallelRunTest, OverlapIsReported) {
  v1::RunSpec spec = TwinsSpec("bf16", "column");
  *spec.mutable_variants(0)->mutable_parallel() = spec.variants(1).parallel();
  spec.mutable_variants(1)->mutable_parallel()->mutable_overlap()->set_pieces(2);
  spec.set_requirement(v1::REQUIREMENT_BITWISE);
  v1::RunReport report;
  std::map<int, v1::VariantReport> variants = Run(spec, report);
  EXPECT_TRUE(report.verdict().pass()) << report.verdict().finding();
  EXPECT_EQ(variants[1].label(), "bf16 / none / sm90 / tp2 sp overlap:pieces=2");
  EXPECT_EQ(variants[0].ranks(0).overlaps_size(), 0);
  for (const v1::RankReport& rank : variants[1].ranks()) {
    std::vector<std::string> stages;
    for (const v1::OverlapReport& overlap : rank.overlaps()) {
      stages.push_back(overlap.stage());
      double end = 0;
      bool multiplies = false;
      for (const v1::OverlapTask& task : overlap.tasks()) {
        EXPECT_LE(task.begin_seconds(), task.end_seconds());
        end = std::max(end, task.end_seconds());
        multiplies |= task.resource() == "compute";
      }
      EXPECT_TRUE(multiplies) << overlap.stage();
      EXPECT_GE(end, overlap.total_seconds());
      EXPECT_GE(overlap.communication_seconds(), overlap.exposed_seconds());
      EXPECT_EQ(overlap.efficiency(),
                overlap.total_seconds() /
                    std::max(overlap.compute_seconds(), overlap.communication_seconds()));
    }
    EXPECT_THAT(stages, testing::ElementsAre("fprop", "dgrad", "wgrad"));
  }
}

TEST_F(ParallelRunTest, OverlapRefusals) {
  const auto invalid = grpc::StatusCode::INVALID_ARGUMENT;
  const auto overlap_of = [](v1::RunSpec& spec) -> v1::Overlap& {
    return *spec.mutable_variants(1)->mutable_parallel()->mutable_overlap();
  };
  const std::string field = "spec.variants[1].parallel";
  ExpectTwinsRefused([&](v1::RunSpec& spec) { overlap_of(spec).set_column_fprop("fast"); },
                     {invalid, field + ".overlap.column_fprop", "fast", "ring_exchange"});
  ExpectTwinsRefused([&](v1::RunSpec& spec) { overlap_of(spec).set_column_fprop("bulk"); },
                     {invalid, field + ".overlap.column_fprop", "bulk", "ring_exchange or none"});
  ExpectTwinsRefused([&](v1::RunSpec& spec) { overlap_of(spec).set_pieces(-1); },
                     {invalid, field + ".overlap.pieces", "-1", "[1, 64]"});
  ExpectTwinsRefused(
      [&](v1::RunSpec& spec) {
        overlap_of(spec);
        spec.mutable_variants(1)->mutable_parallel()->set_sequence_parallel(false);
      },
      {invalid, field + ".overlap", "default", "sequence_parallel is false"});
  ExpectTwinsRefused(
      [&](v1::RunSpec& spec) {
        overlap_of(spec).set_column_wgrad("bulk");
        spec.mutable_variants(1)->mutable_recipe()->set_name("fp8_block");
      },
      {invalid, field + ".overlap.column_wgrad", "bulk",
       "unquantized, per-tensor FP8 and mxfp8 recipes overlap"});
  ExpectTwinsRefused(
      [](v1::RunSpec& spec) { spec.mutable_variants(1)->mutable_parallel()->set_data_parallel(2); },
      {invalid, field + ".data_parallel", "2", "only sessions"});
  ExpectTwinsRefused(
      [](v1::RunSpec& spec) {
        spec.mutable_variants(1)->mutable_parallel()->set_fully_sharded(true);
      },
      {invalid, field + ".fully_sharded", "true", "in sessions"});
  ExpectTwinsRefused(
      [](v1::RunSpec& spec) {
        spec.mutable_variants(1)->mutable_parallel()->set_reshard_after_forward(false);
      },
      {invalid, field + ".reshard_after_forward", "false", "in sessions"});
}

TEST_F(ParallelRunTest, Refusals) {
  const auto invalid = grpc::StatusCode::INVALID_ARGUMENT;
  const auto parallel_of = [](v1::RunSpec& spec) -> v1::Parallel& {
    return *spec.mutable_variants(1)->mutable_parallel();
  };
  ExpectTwinsRefused([&](v1::RunSpec& spec) { parallel_of(spec).set_tensor_parallel(9); },
                     {invalid, "spec.variants[1].parallel.tensor_parallel", "9", "2 to 8"});
  ExpectTwinsRefused([&](v1::RunSpec& spec) { parallel_of(spec).clear_tensor_parallel(); },
                     {invalid, "spec.variants[1].parallel.tensor_parallel", "0", "2 to 8"});
  ExpectTwinsRefused(
      [&](v1::RunSpec& spec) { parallel_of(spec).set_reduction_profile("fast"); },
      {invalid, "spec.variants[1].parallel.reduction_profile", "fast", "rank_asc_fp32"});
  ExpectTwinsRefused([&](v1::RunSpec& spec) { parallel_of(spec).set_backend("mpi"); },
                     {invalid, "spec.variants[1].parallel.backend", "mpi", "local, nccl"});
  ExpectTwinsRefused(
      [](v1::RunSpec& spec) {
        spec.mutable_step()->mutable_layer()->set_parallel_mode("diagonal");
      },
      {invalid, "spec.step.layer.parallel_mode", "diagonal", "column"});
  ExpectTwinsRefused(
      [](v1::RunSpec& spec) { spec.mutable_step()->mutable_layer()->clear_parallel_mode(); },
      {invalid, "spec.step.layer.parallel_mode", "none", "column or row"});
  ExpectTwinsRefused(
      [](v1::RunSpec& spec) { spec.mutable_variants()->RemoveLast(); },
      {invalid, "spec.step.layer.parallel_mode", "column", "no variant is parallel"});
  ExpectTwinsRefused([&](v1::RunSpec& spec) { parallel_of(spec).set_tensor_parallel(3); },
                     {invalid, "spec.step.grad_output", "bf16[", "multiple of 3"});
}

// A scenario's ranks end, or do not come to a call before its deadline, in the server's process;
// the run after them is right.
TEST_F(ParallelRunTest, RanksThatEndOrDoNotComeLeaveTheNextRunAlone) {
  v1::RunScenariosRequest request;
  request.add_names("ranks-that-differ-are-told");
  request.set_with_faults(true);
  const auto stub = v1::Scenarios::NewStub(server_.channel());
  grpc::ClientContext context;
  const auto reader = stub->Run(&context, request);
  std::vector<std::string> outcomes;
  v1::ScenarioEvent event;
  while (reader->Read(&event)) {
    if (event.has_scenario()) outcomes.push_back(event.scenario().outcome());
    if (event.has_fault()) outcomes.push_back(event.fault().outcome());
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_THAT(outcomes, testing::ElementsAre("passed", "caught", "caught"));
  ExpectServing();
  v1::RunSpec spec = TwinsSpec("mxfp8", "column");
  spec.mutable_step()->mutable_requires_grad()->set_weight(true);
  spec.set_requirement(v1::REQUIREMENT_BITWISE);
  v1::RunReport report;
  Run(spec, report);
  EXPECT_TRUE(report.verdict().pass()) << report.verdict().finding();
}

TEST_F(ParallelRunTest, CapabilitiesNameProfilesAndBackends) {
  v1::Capabilities capabilities;
  grpc::ClientContext context;
  ASSERT_TRUE(server_.info().GetCapabilities(&context, {}, &capabilities).ok());
  EXPECT_THAT(capabilities.reduction_profiles(),
              testing::ElementsAre("rank_asc_fp32", "ub_p2p", "ub_atomic", "nccl_ring",
                                   "bf16_rotated:0", "bf16_rotated:1", "nccl"));
  EXPECT_THAT(capabilities.collective_backends(), testing::ElementsAre("local", "nccl"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
