// That two sessions, on other ranks or with weights divided otherwise, do and hold the same.
#pragma once

#include <gmock/gmock.h>

#include <map>
#include <string>

#include "absl/functional/function_ref.h"
#include "kernels/training/parallel/parallel_session.h"
#include "tests/training/session_fixture.h"

namespace quantgate {

/// Both do a step: equal outputs. The ranks of `b` agree on them and use what they saved as it was.
inline void ExpectSameStep(Session& a, Session& b,
                           absl::FunctionRef<absl::StatusOr<SessionStepResult>(Session&)> step) {
  const auto x = step(a), y = step(b);
  ASSERT_TRUE(x.ok() && y.ok()) << x.status() << "\n" << y.status();
  EXPECT_THAT(y->rank_differences, ::testing::IsEmpty());
  ASSERT_EQ(x->outputs.size(), y->outputs.size());
  for (size_t i = 0; i < x->outputs.size(); ++i) {
    EXPECT_EQ(x->outputs[i].name, y->outputs[i].name);
    EXPECT_TRUE(SameBits(x->outputs[i].tensor, y->outputs[i].tensor)) << x->outputs[i].name;
  }
  for (const RankStepRecords& rank : y->ranks) {
    for (const SavedOperand& saved : rank.records.saved) {
      if (saved.used) {
        EXPECT_EQ(saved.at_use, saved.at_save) << saved.name;
      }
    }
  }
}

/// Checkpoints of the same tensors and metadata.
inline void ExpectSameFiles(Session& a, Session& b) {
  const auto x = a.Checkpoint(nullptr), y = b.Checkpoint(nullptr);
  ASSERT_TRUE(x.ok() && y.ok()) << x.status() << "\n" << y.status();
  EXPECT_EQ(x->metadata, y->metadata);
  ASSERT_EQ(x->tensors.size(), y->tensors.size());
  for (size_t i = 0; i < x->tensors.size(); ++i) {
    EXPECT_EQ(x->tensors[i].name, y->tensors[i].name);
    EXPECT_TRUE(SameBits(x->tensors[i].tensor, y->tensors[i].tensor)) << x->tensors[i].name;
  }
}

/// The parameters of these names.
inline void ExpectSameParameters(Session& a, Session& b,
                                 const std::map<std::string, Tensor>& parameters) {
  for (const auto& [name, given] : parameters) {
    const auto x = a.Find(name, nullptr), y = b.Find(name, nullptr);
    ASSERT_TRUE(x.ok() && y.ok()) << x.status() << "\n" << y.status();
    EXPECT_TRUE(SameBits(*x, *y)) << name;
  }
}

}  // namespace quantgate
