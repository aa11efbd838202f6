// Running plans of a linear layer, and recording what the observer is told.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/validate/run/output_report.h"
#include "kernels/validate/run/run.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {

inline constexpr char kHighPrecision[] = "fp8_current:backward_override=high_precision";
inline constexpr char kDequantized[] = "fp8_current:backward_override=dequantized";

inline LayerRunRequest RequestOf(const std::vector<std::string>& recipes,
                                 const std::string& arithmetic = "sm90") {
  LayerRunRequest request;
  request.step.x = Generated(Distribution::kNormal, 1, DType::kBF16, {2, 16, 96});
  request.step.parameters["weight"] = Generated(Distribution::kNormal, 2, DType::kBF16, {48, 96});
  request.step.parameters["bias"] = Generated(Distribution::kNormal, 3, DType::kBF16, {48});
  request.step.grad_output = Generated(Distribution::kNormal, 4, DType::kBF16, {2, 16, 48});
  for (const std::string& recipe : recipes) {
    request.variants.push_back({*Recipe::Parse(recipe), *Arithmetic::Parse(arithmetic)});
  }
  return request;
}

struct Watched {
  std::vector<RunProgress> progress;
  std::vector<int> variants;
  std::vector<size_t> comparisons;  ///< By variant, their number when it was handed out.
};

inline absl::StatusOr<RunReport> RunWatched(const LayerRunRequest& request, Engine& engine,
                                            const Cancellation* cancellation, Watched& watched,
                                            const std::function<void(int)>& on_step = nullptr) {
  const absl::StatusOr<Plan> plan = Plan::Create(request);
  EXPECT_TRUE(plan.ok()) << plan.status();
  const auto on_progress = [&](const RunProgress& progress) {
    watched.progress.push_back(progress);
    if (on_step) on_step(progress.step);
  };
  const auto on_variant = [&](int index, const VariantReport& report) {
    watched.variants.push_back(index);
    watched.comparisons.push_back(report.against_reference.size());
  };
  return RunPlan(*plan, engine, cancellation, {on_progress, on_variant});
}

/// Expects as many steps to be reported as were announced.
inline RunReport RunOk(const LayerRunRequest& request, const CpuEngineOptions& options = {}) {
  const auto engine = MakeCpuEngine(options);
  Watched watched;
  auto report = RunWatched(request, *engine, nullptr, watched);
  EXPECT_TRUE(report.ok()) << report.status();
  if (!report.ok()) return {};
  EXPECT_FALSE(watched.progress.empty());
  if (!watched.progress.empty()) {
    EXPECT_EQ(watched.progress.back().step, watched.progress.back().step_count);
  }
  return *std::move(report);
}

inline const OutputReport& OutputOf(const VariantReport& variant, const std::string& name) {
  if (const OutputReport* const found = FindOutput(variant, name)) return *found;
  ADD_FAILURE() << "no " << name << " of " << variant.label;
  static const OutputReport none;
  return none;
}

}  // namespace quantgate
