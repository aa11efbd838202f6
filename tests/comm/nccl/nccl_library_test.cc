// What is asked of NCCL's environment before it is loaded, and that it is loaded.
#include "kernels/comm/nccl/nccl_library.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"

namespace quantgate {
namespace QG_TEST_FILE {

/// A variable with this value for the life of it; null: without one.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    value == nullptr ? unsetenv(name) : setenv(name, value, 1);
  }
  ~ScopedVariable() { unsetenv(name_); }

 private:
  const char* const name_;
};

std::string Refusal() {
  const absl::Status status = KeepMulticastOff();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  return std::string(status.message());
}

TEST(NcclEnvironment, SwitchesMulticastOff) {
  const ScopedVariable unset("NCCL_NVLS_ENABLE", nullptr);
  EXPECT_TRUE(KeepMulticastOff().ok());
  ASSERT_NE(std::getenv("NCCL_NVLS_ENABLE"), nullptr);
  EXPECT_STREQ(std::getenv("NCCL_NVLS_ENABLE"), "0");
  EXPECT_TRUE(KeepMulticastOff().ok());
}

TEST(NcclEnvironment, RefusesWhatDemandsMulticast) {
  for (const char* value : {"1", "2", "on", "00"}) {
    const ScopedVariable multicast("NCCL_NVLS_ENABLE", value);
    EXPECT_EQ(Refusal(), absl::StrCat("NCCL_NVLS_ENABLE is ", value,
                                      ": must be 0: collectives run without NVLink multicast"));
    EXPECT_FALSE(NcclLibrary::Load().ok());
    EXPECT_STREQ(std::getenv("NCCL_NVLS_ENABLE"), value);  // Left to who set it.
  }
  const ScopedVariable off("NCCL_NVLS_ENABLE", "0");
  for (const char* value : {"NVLS", "ring,nvlsTree", "allreduce:NVLSTree"}) {
    const ScopedVariable algorithms("NCCL_ALGO", value);
    EXPECT_NE(Refusal().find(absl::StrCat("NCCL_ALGO is ", value)), std::string::npos);
  }
  for (const char* value : {"Ring", "^NVLS,NVLSTree", "Tree,Ring"}) {
    const ScopedVariable algorithms("NCCL_ALGO", value);
    EXPECT_TRUE(KeepMulticastOff().ok()) << value;
  }
}

TEST(NcclEnvironment, IsListedByName) {
  const ScopedVariable protocol("NCCL_PROTO", "Simple"), off("NCCL_NVLS_ENABLE", "0");
  const std::string listed = NcclEnvironment();
  EXPECT_NE(listed.find("NCCL_NVLS_ENABLE=0 NCCL_PROTO=Simple"), std::string::npos) << listed;
}

/// Of the header's major version: the host's NCCL need not be the build's.
TEST(NcclLibrary, IsLoadedOnce) {
  const ScopedVariable off("NCCL_NVLS_ENABLE", nullptr);
  const auto library = NcclLibrary::Load();
  ASSERT_TRUE(library.ok()) << library.status();
  EXPECT_EQ((*library)->version().find(absl::StrCat(NCCL_MAJOR, ".")), 0u);
  EXPECT_EQ(*NcclLibrary::Load(), *library);
  EXPECT_TRUE((*library)->StatusOf(ncclSuccess, "ncclSend").ok());
  const absl::Status lost = (*library)->StatusOf(ncclRemoteError, "ncclSend");
  EXPECT_EQ(lost.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(lost.message().find("ncclSend"), std::string::npos) << lost;
  EXPECT_EQ((*library)->StatusOf(ncclInvalidUsage, "ncclSend").code(), absl::StatusCode::kInternal);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
