#include "kernels/gemm/arithmetic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quantgate {
namespace {

using ::testing::HasSubstr;

TEST(ArithmeticTest, CanonicalTextParsesBack) {
  for (const std::string text :
       {"auto", "sm90", "sm90:fast", "sm90:split", "sm90:splitk=3", "sm90:fast,splitk=12",
        "sm90:split,splitk=2", "exact", "fp32", "sm70", "sm75:acc=f16", "sm80", "sm86",
        "sm89:acc=f16", "sm90_mma_fp8", "sm100", "sm120"}) {
    const auto arithmetic = Arithmetic::Parse(text);
    ASSERT_TRUE(arithmetic.ok()) << text << ": " << arithmetic.status();
    EXPECT_EQ(arithmetic->ToString(), text);
  }
}

TEST(ArithmeticTest, ParametersMeanWhatTheySay) {
  const auto arithmetic = Arithmetic::Parse("sm90:splitk=3,split");
  ASSERT_TRUE(arithmetic.ok());
  EXPECT_EQ(arithmetic->family, ArithmeticFamily::kSm90);
  EXPECT_EQ(arithmetic->accumulation, Accumulation::kSplit);
  EXPECT_EQ(arithmetic->split_k, 3);
  EXPECT_EQ(arithmetic->ToString(), "sm90:split,splitk=3");
  EXPECT_EQ(Arithmetic::Parse("sm90:splitk=1")->ToString(), "sm90");
}

TEST(ArithmeticTest, AutoResolvesToTheModelOnTheCpu) {
  EXPECT_EQ(Arithmetic::Parse("auto")->Resolved().ToString(), "sm90");
  EXPECT_EQ(Arithmetic::Parse("exact")->Resolved().ToString(), "exact");
}

TEST(ArithmeticTest, EveryListedNameParses) {
  for (const ArithmeticDescription& description : AllArithmetics()) {
    EXPECT_TRUE(Arithmetic::Parse(description.name).ok()) << description.name;
    EXPECT_FALSE(description.is_hardware);
  }
}

TEST(ArithmeticTest, RefusalsNameTheValueAndTheChoices) {
  for (const std::string text : {"",
                                 "sm91",
                                 "SM90",
                                 "sm90:",
                                 "sm90:slow",
                                 "sm90:fast,split",
                                 "sm90:fast,fast",
                                 "sm90:splitk=0",
                                 "sm90:splitk=-1",
                                 "sm90:splitk=x",
                                 "sm90:splitk=99999999999",
                                 "sm90:splitk=1025",
                                 "sm90:acc=f16",
                                 "sm80:fast",
                                 "sm100:splitk=2",
                                 "sm80:acc=bf16",
                                 "exact:fast",
                                 "fp32:splitk=2",
                                 "auto:fast",
                                 "sm90:fast,"}) {
    const auto arithmetic = Arithmetic::Parse(text);
    EXPECT_EQ(arithmetic.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(arithmetic.status().message()), HasSubstr("\"" + text + "\""));
  }
  EXPECT_THAT(std::string(Arithmetic::Parse("sm91").status().message()),
              HasSubstr("auto, sm70, sm75, sm80, sm86, sm89, sm90, sm90:fast, sm90:split, "
                        "sm90_mma_fp8, sm100, sm120, exact, fp32"));
}

TEST(ArithmeticTest, HardwareNeedsABuildWithCuda) {
  for (const std::string text : {"cublaslt", "cublaslt:splitk=any"}) {
    const auto arithmetic = Arithmetic::Parse(text);
    EXPECT_EQ(arithmetic.status().code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(arithmetic.status().message()), HasSubstr("needs a build with CUDA"));
  }
}

}  // namespace
}  // namespace quantgate
