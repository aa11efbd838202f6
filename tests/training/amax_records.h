// Amax groups in tests of sessions, and what steps and histories say of amaxes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/comm/group/amax_groups.h"
#include "tests/training/session_fixture.h"

namespace quantgate {

inline AmaxGroups AmaxGroupsOf(const std::vector<std::pair<TensorRole, std::string>>& named) {
  AmaxGroups groups;
  for (const auto& [role, text] : named) groups[role] = *ParseAmaxGroup(text);
  return groups;
}

inline ForwardStep ForwardOf(const Tensor& x, const std::string& microbatch, AmaxGroups groups) {
  ForwardStep step;
  step.microbatch = microbatch;
  step.x = x;
  step.amax_groups = std::move(groups);
  return step;
}

inline std::string HexOf(Engine& engine, const absl::StatusOr<SessionStepResult>& result,
                         const std::string& name) {
  const auto fingerprint = engine.FingerprintOf(OutputOf(result, name), nullptr);
  return fingerprint.ok() ? fingerprint->Hex() : "";
}

/// By tensor, as rank `rank` quantized it.
inline QuantizationRecord RecordOf(const absl::StatusOr<SessionStepResult>& result, size_t rank,
                                   const std::string& tensor) {
  EXPECT_TRUE(result.ok()) << result.status();
  if (!result.ok()) return {};
  for (const QuantizationRecord& record : result->ranks[rank].records.quantizations) {
    if (record.tensor == tensor) return record;
  }
  ADD_FAILURE() << "no " << tensor;
  return {};
}

/// Of a tensor of the state, f32: a history.
inline float LargestOf(Session& session, const std::string& name) {
  const auto tensor = session.Find(name, nullptr);
  EXPECT_TRUE(tensor.ok()) << tensor.status();
  float largest = 0;
  for (int64_t i = 0; tensor.ok() && i < tensor->element_count(); ++i) {
    largest = std::max(largest, tensor->as<float>()[i]);
  }
  return largest;
}

}  // namespace quantgate
