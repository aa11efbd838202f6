#include "kernels/gemm/arithmetic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

TEST(ArithmeticTest, CanonicalTextParsesBack) {
  for (const std::string text :
       {"auto", "sm90", "sm90:fast", "sm90:split", "sm90:splitk=3", "sm90:fast,splitk=12",
        "sm90:split,splitk=2", "exact", "fp32", "sm70", "sm75:acc=f16", "sm80", "sm86",
        "sm89:acc=f16", "sm90_mma_fp8", "sm100", "sm100_mma_fp8", "sm100_mma_fp8:acc=f16",
        "sm120"}) {
    const auto arithmetic = Arithmetic::Parse(text);
    ASSERT_TRUE(arithmetic.ok()) << text << ": " << arithmetic.status();
    EXPECT_EQ(arithmetic->ToString(), text);
  }
}

TEST(ArithmeticTest, BlackwellsMmaHasTheNameOfAParameter) {
  EXPECT_EQ(Arithmetic::Parse("sm100:mma")->ToString(), "sm100_mma_fp8");
  EXPECT_EQ(Arithmetic::Parse("sm100:mma,acc=f16")->ToString(), "sm100_mma_fp8:acc=f16");
  EXPECT_FALSE(Arithmetic::Parse("sm120:mma").ok());
  EXPECT_FALSE(Arithmetic::Parse("sm100_mma_fp8:mma").ok());
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
    EXPECT_EQ(description.is_hardware, description.name == "cublaslt");
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
                        "sm90_mma_fp8, sm100, sm100_mma_fp8, sm120, exact, fp32"));
}

TEST(ArithmeticTest, CublasLtHasAModelAndParametersOfItsOwn) {
  const Arithmetic plain = Arithmetic::Parse("cublaslt").value();
  EXPECT_EQ(plain.family, ArithmeticFamily::kCublasLt);
  EXPECT_FALSE(IsTensorCore(plain.family));
  EXPECT_EQ(plain.Model().ToString(), "sm90");
  const std::string text = "cublaslt:split,splitk=any,algorithm=3";
  const Arithmetic chosen = Arithmetic::Parse(text).value();
  EXPECT_EQ(chosen.ToString(), text);
  EXPECT_TRUE(chosen.any_split_k);
  EXPECT_EQ(chosen.algorithm, 3);
  EXPECT_EQ(chosen.Model().ToString(), "sm90:split");
  EXPECT_EQ(Arithmetic::Parse("cublaslt:fast,splitk=4").value().Model().ToString(),
            "sm90:fast,splitk=4");
  for (const char* bad : {"cublaslt:acc=f16", "cublaslt:algorithm=-1", "cublaslt:algorithm=1024",
                          "sm90:algorithm=1", "sm90:splitk=any"}) {
    EXPECT_EQ(Arithmetic::Parse(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
