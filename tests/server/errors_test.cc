#include "server/errors.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace quantgate {
namespace {

TEST(ErrorsTest, DetailsTravelWithTheStatus) {
  const Digest digest{Sha256Of({}), 7};
  const error::Detail missing = error::DetailOf(error::BlobsMissing("x, weight", {digest, digest}));
  EXPECT_EQ(missing.field, "x, weight");
  EXPECT_EQ(missing.missing, (std::vector<Digest>{digest, digest}));
  EXPECT_FALSE(missing.retry_after.has_value());

  const absl::Status offset = error::OffsetMismatch(5, 3);
  EXPECT_TRUE(absl::IsOutOfRange(offset));
  EXPECT_EQ(error::DetailOf(offset).committed_size, 3);
  EXPECT_EQ(error::DetailOf(error::QueueFull("runs", 4)).retry_after, absl::Seconds(1));
  EXPECT_EQ(error::DetailOf(absl::InternalError("x")).reason, "");
}

TEST(ErrorsTest, BrokenRulesAreTakenApart) {
  const auto parts = [](const char* text) {
    const error::BrokenRule rule = error::BrokenRuleOf(absl::InvalidArgumentError(text));
    return rule.field + "|" + rule.value + "|" + rule.rule;
  };
  EXPECT_EQ(parts("a.scale_inv is f32[3]: expected f32[1]"), "a.scale_inv|f32[3]|expected f32[1]");
  EXPECT_EQ(parts("x: bf16[2x3]; its rank must be 2: [N][K]"),
            "x|bf16[2x3]|its rank must be 2: [N][K]");
  EXPECT_EQ(parts("variants[1].recipe: a does not take x: K = 3; K must be a multiple of 16"),
            "variants[1].recipe|a does not take x: K = 3|K must be a multiple of 16");
  EXPECT_EQ(parts("no rule in here"), "||");
  EXPECT_EQ(parts("x: without a value"), "||");
  EXPECT_EQ(parts(""), "||");
}

TEST(ErrorsTest, EngineErrorsAreAtAField) {
  const absl::Status status =
      error::AtField(absl::InvalidArgumentError("x: 3; must be 4"), "spec.step");
  EXPECT_EQ(status.message(), "spec.step.x: 3; must be 4");
  EXPECT_EQ(error::DetailOf(status).field, "spec.step.x");
  EXPECT_EQ(error::DetailOf(status).value, "3");
  EXPECT_EQ(error::DetailOf(status).rule, "must be 4");
  const absl::Status other =
      error::AtField(absl::UnimplementedError("not on this machine"), "spec");
  EXPECT_TRUE(absl::IsUnimplemented(other));
  EXPECT_EQ(error::DetailOf(other).field, "spec");
  // What has a field already keeps it.
  EXPECT_EQ(error::DetailOf(error::AtField(status, "other")).field, "spec.step.x");
  EXPECT_TRUE(error::AtField(absl::OkStatus(), "x").ok());
}

TEST(ErrorsTest, SystemErrorsHaveCodes) {
  EXPECT_EQ(error::DetailOf(error::FromErrno(ENOSPC, "writing")).reason, "disk");
  EXPECT_TRUE(absl::IsResourceExhausted(error::FromErrno(EDQUOT, "writing")));
  EXPECT_TRUE(absl::IsDataLoss(error::FromErrno(EIO, "reading")));
  EXPECT_TRUE(absl::IsInternal(error::FromErrno(EBADF, "reading")));
}

}  // namespace
}  // namespace quantgate
