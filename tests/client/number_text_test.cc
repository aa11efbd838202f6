#include "server/report/number_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <sstream>

#include "absl/time/clock.h"
#include "client/cli/exit.h"
#include "client/cli/progress.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(NumberTextTest, Reals) {
  EXPECT_EQ(ShortReal(0), "0");
  EXPECT_EQ(ShortReal(0.25), "0.25");
  EXPECT_EQ(ShortReal(-0.0261), "-0.0261");
  EXPECT_EQ(ShortReal(2.61e-4), "2.61e-04");
  EXPECT_EQ(ShortReal(123456), "1.23e+05");
  EXPECT_EQ(ShortReal(kNan), "nan");
  EXPECT_EQ(ShortReal(-kNan), "nan");
  EXPECT_EQ(ShortReal(-kInf), "-inf");
  // 0x3dcd as bf16.
  EXPECT_EQ(ExactReal(0.10009765625), "0.100097656");
  EXPECT_EQ(ExactReal(0.1), "0.1");
  EXPECT_EQ(ExactReal(1.0 + 1e-12), "1.000000000001");
  EXPECT_EQ(ExactReal(-0.0), "-0");
  EXPECT_EQ(ExactReal(kInf), "inf");
  EXPECT_EQ(Decibels(50.345), "50.3");
  EXPECT_EQ(Decibels(kInf), "inf");
}

TEST(NumberTextTest, CountsAndShares) {
  EXPECT_EQ(Count(0), "0");
  EXPECT_EQ(Count(999), "999");
  EXPECT_EQ(Count(1000), "1,000");
  EXPECT_EQ(Count(-1234567), "-1,234,567");
  EXPECT_EQ(Percent(0, 10), "0");
  EXPECT_EQ(Percent(0, 0), "0");
  EXPECT_EQ(Percent(1, 1'000'000'000), "<0.01 %");
  EXPECT_EQ(Percent(999'999'999, 1'000'000'000), ">99.99 %");
  EXPECT_EQ(Percent(1, 8), "12.5 %");
  EXPECT_EQ(Percent(1, 80), "1.25 %");
  EXPECT_EQ(Percent(10, 10), "100 %");
  EXPECT_EQ(Bytes(512), "512 B");
  EXPECT_EQ(Bytes(3 << 19), "1.5 MiB");
  EXPECT_EQ(Seconds(0.0123), "12.3 ms");
}

TEST(NumberTextTest, BitsHaveTheWidthOfTheirDtype) {
  EXPECT_EQ(HexBits(0x7F, "f8_e4m3"), "0x7f");
  EXPECT_EQ(HexBits(1, "bf16"), "0x0001");
  EXPECT_EQ(HexBits(0x7FC00000, "f32"), "0x7fc00000");
  EXPECT_EQ(HexBits(0, "f64"), "0x0000000000000000");
  EXPECT_EQ(HexBits(0x1ABCD, ""), "0x1abcd");
  EXPECT_EQ(HexBits(0, ""), "0x0");
  EXPECT_EQ(HexBits(0x12345, "bf16"), "0x12345");
}

TEST(NumberTextTest, ExitCodesAreThoseOfTheDesign) {
  const std::pair<absl::StatusCode, int> codes[] = {{absl::StatusCode::kOk, 0},
                                                    {absl::StatusCode::kInvalidArgument, 2},
                                                    {absl::StatusCode::kNotFound, 2},
                                                    {absl::StatusCode::kOutOfRange, 2},
                                                    {absl::StatusCode::kFailedPrecondition, 2},
                                                    {absl::StatusCode::kUnimplemented, 2},
                                                    {absl::StatusCode::kUnavailable, 4},
                                                    {absl::StatusCode::kInternal, 4},
                                                    {absl::StatusCode::kDataLoss, 4},
                                                    {absl::StatusCode::kAborted, 4},
                                                    {absl::StatusCode::kUnauthenticated, 6},
                                                    {absl::StatusCode::kPermissionDenied, 6},
                                                    {absl::StatusCode::kResourceExhausted, 7},
                                                    {absl::StatusCode::kDeadlineExceeded, 124},
                                                    {absl::StatusCode::kCancelled, 130}};
  for (const auto& [code, exit_code] : codes) {
    EXPECT_EQ(ExitCodeOf(absl::Status(code, "x")), exit_code) << absl::StatusCodeToString(code);
  }
}

TEST(NumberTextTest, ABoundShareIsOneOnlyAtTheLimit) {
  EXPECT_EQ(BoundShare(1), "1");
  EXPECT_EQ(BoundShare(0.179061), "0.179");
  EXPECT_EQ(BoundShare(0.99987), "0.99987");
  EXPECT_EQ(BoundShare(1.0004), "1.0004");
  EXPECT_EQ(BoundShare(1 - 1e-9), "<1");
  EXPECT_EQ(BoundShare(1 + 1e-9), ">1");
  EXPECT_EQ(BoundShare(5.15e37), ">2^64");  // The bound is next to 0.
  EXPECT_EQ(BoundShare(kInf), "inf");
}

TEST(NumberTextTest, ProgressLineFitsItsColumns) {
  EXPECT_EQ(ProgressLine("uploading x", 1, 2, 80), "[############            ]  50 %  uploading x");
  EXPECT_EQ(ProgressLine(std::string(200, 'x'), 5, 4, 40).size(), 40u);
  EXPECT_EQ(ProgressLine("x", 1, 0, 80), "x");
}

TEST(NumberTextTest, ProgressCountsTheSecondsOfWhatIsSilent) {
  std::ostringstream out;
  const absl::Time start = absl::Now();
  ProgressBar bar(out, /*is_shown=*/true);
  bar.Tick(start + absl::Seconds(1));
  EXPECT_EQ(out.str(), "");
  bar.Update("making gen:normal,shape=65536x65536", 0, 0);
  bar.Tick(start + absl::Seconds(67));
  EXPECT_THAT(out.str(), ::testing::ContainsRegex("making gen:normal,shape=65536x65536, 6[67] s"));
  bar.Update("uploading x", 4, 4);
  bar.Tick(start + absl::Seconds(100));
  EXPECT_THAT(out.str(), ::testing::ContainsRegex("computing, (99|100) s$"));
  // Nothing is drawn over what a command prints.
  bar.Clear();
  out.str("");
  bar.Tick(start + absl::Seconds(200));
  EXPECT_EQ(out.str(), "");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
