#include "kernels/base/refusal.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"

namespace quantgate {
namespace QG_TEST_FILE {

/// The parts and the text at once.
void ExpectRefusal(const absl::Status& status, const std::string& field, const std::string& value,
                   const std::string& rule, const std::string& text) {
  const std::optional<Refusal> refusal = RefusalOf(status);
  ASSERT_TRUE(refusal.has_value()) << status;
  EXPECT_EQ(refusal->field, field);
  EXPECT_EQ(refusal->value, value);
  EXPECT_EQ(refusal->rule, rule);
  EXPECT_EQ(status.message(), text);
}

TEST(Refusal, SaysFieldValueAndRule) {
  const absl::Status status = Refuse("m_splits", "3, 4", "must add up to 8 rows");
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  ExpectRefusal(status, "m_splits", "3, 4", "must add up to 8 rows",
                "m_splits is 3, 4: must add up to 8 rows");
}

TEST(Refusal, SaysThatAFieldIsAbsent) {
  ExpectRefusal(RefuseAbsent("weight", "a linear layer has one"), "weight", "",
                "a linear layer has one", "weight is absent: a linear layer has one");
}

TEST(Refusal, KeepsItsCode) {
  const absl::Status status = StatusOf({.code = absl::StatusCode::kUnimplemented,
                                        .field = "usage",
                                        .value = "columnwise",
                                        .rule = "read rowwise"});
  EXPECT_TRUE(absl::IsUnimplemented(WithinField("request", status)));
  EXPECT_TRUE(absl::IsUnimplemented(AsField("usage", status)));
}

TEST(Refusal, IsSaidWithinALongerPath) {
  const absl::Status inner = Refuse("layer.eps", "-1", "must be at least 0");
  ExpectRefusal(WithinField("spec.step", inner), "spec.step.layer.eps", "-1", "must be at least 0",
                "spec.step.layer.eps is -1: must be at least 0");
  ExpectRefusal(WithinField("variants", Refuse("[2].recipe", "fp9", "unknown")),
                "variants[2].recipe", "fp9", "unknown", "variants[2].recipe is fp9: unknown");
  ExpectRefusal(WithinField("", inner), "layer.eps", "-1", "must be at least 0",
                "layer.eps is -1: must be at least 0");
  ExpectRefusal(WithinField("x", RefuseAbsent("", "it must be given")), "x", "", "it must be given",
                "x is absent: it must be given");
}

TEST(Refusal, TakesTheTextOfOtherErrorsAsTheRule) {
  const absl::Status other = absl::DataLossError("the file ends inside its header");
  EXPECT_FALSE(RefusalOf(other).has_value());
  ExpectRefusal(WithinField("checkpoint", other), "checkpoint", "",
                "the file ends inside its header", "checkpoint: the file ends inside its header");
  EXPECT_TRUE(absl::IsDataLoss(WithinField("checkpoint", other)));
  EXPECT_TRUE(WithinField("checkpoint", absl::OkStatus()).ok());
}

TEST(Refusal, OfNoFieldIsSaidOfOneLater) {
  const absl::Status nameless = WithinField("", absl::InvalidArgumentError("no such thing"));
  ExpectRefusal(nameless, "", "", "no such thing", "no such thing");
  ExpectRefusal(WithinField("spec", nameless), "spec", "", "no such thing", "spec: no such thing");
}

TEST(Refusal, OfAParserIsSaidOfTheFieldThatWasParsed) {
  const absl::Status parsed = Refuse("dtype", "\"f9\"", "unknown name; known: f32, bf16");
  ExpectRefusal(AsField("out_dtype", parsed), "out_dtype", "\"f9\"",
                "unknown name; known: f32, bf16",
                "out_dtype is \"f9\": unknown name; known: f32, bf16");
}

TEST(Refusal, KeepsOtherPayloads) {
  absl::Status status = Refuse("digest", "ab", "must be stored");
  status.SetPayload("quantgate/missing", absl::Cord("ab/4"));
  EXPECT_EQ(WithinField("x", status).GetPayload("quantgate/missing"), absl::Cord("ab/4"));
  absl::Status other = absl::AbortedError("gone");
  other.SetPayload("quantgate/missing", absl::Cord("ab/4"));
  EXPECT_EQ(WithinField("x", other).GetPayload("quantgate/missing"), absl::Cord("ab/4"));
}

TEST(Refusal, KeepsItsPartsBehindAPrefix) {
  const absl::Status prefixed = Prefixed("rank 1: ", Refuse("rows", "3", "must be even"));
  ExpectRefusal(prefixed, "rows", "3", "must be even", "rank 1: rows is 3: must be even");
  ExpectRefusal(WithinField("step", prefixed), "step.rows", "3", "must be even",
                "step.rows is 3: must be even");
  EXPECT_TRUE(Prefixed("rank 1: ", absl::OkStatus()).ok());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
