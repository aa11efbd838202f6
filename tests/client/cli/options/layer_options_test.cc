#include "client/cli/options/layer_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

LayerOptions Options() {
  LayerOptions options;
  options.recipes = {"bf16,fp8_current"};
  options.backward_overrides = {"none,dequantized"};
  options.arithmetics = {"sm90", "exact"};
  return options;
}

TEST(LayerOptionsTest, VariantsAreTheProductArithmeticsFastest) {
  const auto variants = VariantsOf(Options());
  ASSERT_TRUE(variants.ok()) << variants.status();
  ASSERT_EQ(variants->size(), 8u);
  EXPECT_EQ(VariantText((*variants)[0]), "bf16 / none / sm90");
  EXPECT_EQ(VariantText((*variants)[1]), "bf16 / none / exact");
  EXPECT_EQ(VariantText((*variants)[2]), "bf16 / dequantized / sm90");
  EXPECT_EQ(VariantText((*variants)[7]), "fp8_current / dequantized / exact");
}

TEST(LayerOptionsTest, ListsLeftOutLeaveTheDefaultToTheServer) {
  LayerOptions options;
  options.recipes = {"bf16"};
  const auto variants = VariantsOf(options);
  ASSERT_TRUE(variants.ok());
  ASSERT_EQ(variants->size(), 1u);
  EXPECT_EQ((*variants)[0].backward_override(), "");
  EXPECT_EQ((*variants)[0].arithmetic(), "");
}

TEST(LayerOptionsTest, ReferenceByNumberOrByWhatWasTyped) {
  const auto variants = *VariantsOf(Options());
  EXPECT_EQ(*FindVariant("0", variants), 0);
  EXPECT_EQ(*FindVariant("7", variants), 7);
  EXPECT_EQ(*FindVariant("fp8_current/none/exact", variants), 5);
  EXPECT_EQ(*FindVariant("fp8_current / none / exact", variants), 5);
  for (const char* text : {"8", "-1", "bf16", "bf16/none", "mxfp8", "bf16/none/sm90/x", ""}) {
    const absl::Status status = FindVariant(text, variants).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("fp8_current / dequantized / exact"));
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
