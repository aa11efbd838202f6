// A recipe on one rank and on several as variants of one run, and checks of their outputs.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "kernels/validate/run/output_report.h"
#include "kernels/validate/run/run.h"
#include "tests/engine/tensor_values.h"
#include "tests/validate/run_watched.h"

namespace quantgate {

/// The recipe on one rank, which is the reference, and on several.
inline LayerRunRequest Twins(LayerRequest step, const std::string& recipe, ParallelSpec parallel,
                             Requirement requirement = Requirement::kBound) {
  LayerRunRequest request;
  request.step = std::move(step);
  request.variants = {{*Recipe::Parse(recipe), {}}, {*Recipe::Parse(recipe), {}, parallel}};
  request.reference = 0;
  request.requirement = requirement;
  return request;
}

/// Expects as many steps to be reported as were announced.
inline absl::StatusOr<RunReport> TryRun(const LayerRunRequest& request) {
  const auto engine = MakeCpuEngine({.threads = 2});
  const absl::StatusOr<Plan> plan = Plan::Create(request);
  if (!plan.ok()) return plan.status();
  int last_step = 0, step_count = -1;
  const auto on_progress = [&](const RunProgress& progress) {
    last_step = progress.step;
    step_count = progress.step_count;
  };
  auto report = RunPlan(*plan, *engine, nullptr, {on_progress, [](int, const VariantReport&) {}});
  EXPECT_TRUE(!report.ok() || last_step == step_count) << last_step << " of " << step_count;
  return report;
}

inline ::testing::AssertionResult HasBitsOfOneRank(const RunReport& report,
                                                   const std::string& output) {
  return SameBits(OutputOf(report.variants[1], output).value,
                  OutputOf(report.variants[0], output).value);
}

/// Of Twins: every output has the shape of one rank's, an exact value and, where that has one, a
/// bound, and all ranks have the same of it.
inline void ExpectWholeAndWithinBounds(const RunReport& report) {
  ASSERT_EQ(report.variants.size(), 2u);
  EXPECT_TRUE(report.verdict.pass) << report.verdict.finding;
  for (const OutputReport& alone : report.variants[0].outputs) {
    SCOPED_TRACE(alone.tensor);
    const OutputReport& output = OutputOf(report.variants[1], alone.tensor);
    EXPECT_EQ(output.value.shape(), alone.value.shape());
    EXPECT_EQ(output.bound.has_value(), alone.bound.has_value());
    EXPECT_EQ(output.against_exact.error.element_count, output.value.element_count());
    // Half an ulp of bf16 for each of a partial, the sum and the bias, and the accumulation.
    EXPECT_LT(output.against_exact.error.relative_frobenius, 0x1p-6);
    EXPECT_FALSE(output.exact_note.empty());
    EXPECT_EQ(output.rank_difference, "");
  }
}

}  // namespace quantgate
