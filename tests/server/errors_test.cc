#include "server/errors.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "kernels/base/refusal.h"

namespace quantgate {
namespace QG_TEST_FILE {

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

TEST(ErrorsTest, RefusalsOfTheEngineAreDetails) {
  const absl::Status status = WithinField("spec.step", Refuse("x", "bf16[3]", "must be of rank 2"));
  EXPECT_EQ(error::DetailOf(status).field, "spec.step.x");
  EXPECT_EQ(error::DetailOf(status).value, "bf16[3]");
  EXPECT_EQ(error::DetailOf(status).rule, "must be of rank 2");
}

TEST(ErrorsTest, SystemErrorsHaveCodes) {
  EXPECT_EQ(error::DetailOf(error::FromErrno(ENOSPC, "writing")).reason, "disk");
  EXPECT_TRUE(absl::IsResourceExhausted(error::FromErrno(EDQUOT, "writing")));
  EXPECT_TRUE(absl::IsDataLoss(error::FromErrno(EIO, "reading")));
  EXPECT_TRUE(absl::IsInternal(error::FromErrno(EBADF, "reading")));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
