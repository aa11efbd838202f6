// What a request leaves open of overlap becomes what docs/ranks.md section 10.1 says of the recipe.
#include "kernels/comm/overlap/overlap_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

namespace quantgate {
namespace QG_TEST_FILE {

using enum OverlapMethod;
using enum GemmRole;

void ExpectPlan(const OverlapPlan& plan, OverlapMethod fprop, OverlapMethod dgrad,
                OverlapMethod wgrad) {
  EXPECT_EQ(plan.fprop, fprop);
  EXPECT_EQ(plan.dgrad, dgrad);
  EXPECT_EQ(plan.wgrad, wgrad);
}

TEST(OverlapSpec, DefaultsAreTheTables) {
  const Recipe bf16 = *Recipe::Parse("bf16"), mxfp8 = *Recipe::Parse("mxfp8");
  ExpectPlan(OverlapPlanOf({}, OverlapSide::kColumn, bf16), kRingExchange, kBulk, kBulk);
  ExpectPlan(OverlapPlanOf({}, OverlapSide::kRow, bf16), kPipeline, kRingExchange, kNone);
  ExpectPlan(OverlapPlanOf({}, OverlapSide::kRow, mxfp8), kPipeline, kRingExchange, kExternal);
  for (const OverlapSide side : {OverlapSide::kColumn, OverlapSide::kRow}) {
    EXPECT_THAT(OverlapPlanOf({}, side, mxfp8).gives_way, testing::Each(true));
  }
}

TEST(OverlapSpec, WhatIsNamedDoesNotGiveWay) {
  const Recipe bf16 = *Recipe::Parse("bf16");
  OverlapSpec spec;
  spec.methods[{OverlapSide::kColumn, kDgrad}] = kBulk;
  const OverlapPlan column = OverlapPlanOf(spec, OverlapSide::kColumn, bf16);
  ExpectPlan(column, kRingExchange, kBulk, kBulk);
  EXPECT_THAT(column.gives_way, testing::ElementsAre(true, false, true));
  // A number of splits names the method that has them.
  spec.splits = 8;
  EXPECT_THAT(OverlapPlanOf(spec, OverlapSide::kColumn, bf16).gives_way,
              testing::ElementsAre(true, false, true));
  EXPECT_THAT(OverlapPlanOf(spec, OverlapSide::kRow, bf16).gives_way,
              testing::ElementsAre(false, true, true));
}

TEST(OverlapSpec, WhatIsAskedForReplacesThem) {
  const Recipe mxfp8 = *Recipe::Parse("mxfp8");
  OverlapSpec spec;
  EXPECT_EQ(spec.Text(), "default");
  spec.methods[{OverlapSide::kRow, kDgrad}] = kNone;
  spec.methods[{OverlapSide::kColumn, kDgrad}] = kRingExchange;
  spec.aggregate = true;
  spec.pieces = 2;
  spec.splits = 8;
  EXPECT_EQ(spec.Text(), "column_dgrad=ring_exchange,row_dgrad=none,aggregate,pieces=2,splits=8");
  // What wgrad would scatter, dgrad has. What would run beside dgrad's ring stays open, for a note.
  const OverlapPlan column = OverlapPlanOf(spec, OverlapSide::kColumn, mxfp8);
  ExpectPlan(column, kRingExchange, kRingExchange, kNone);
  const OverlapPlan row = OverlapPlanOf(spec, OverlapSide::kRow, mxfp8);
  ExpectPlan(row, kPipeline, kNone, kExternal);
  EXPECT_THAT(row.gives_way, testing::ElementsAre(false, false, true));
  EXPECT_TRUE(column.aggregate);
  EXPECT_EQ(column.pieces, 2);
  EXPECT_EQ(column.splits, 8);
  spec.methods[{OverlapSide::kRow, kWgrad}] = kExternal;
  ExpectPlan(OverlapPlanOf(spec, OverlapSide::kRow, mxfp8), kPipeline, kNone, kExternal);
}

TEST(OverlapSpec, ExternalNamesTheRingThatItRunsBeside) {
  const Recipe mxfp8 = *Recipe::Parse("mxfp8");
  OverlapSpec spec;
  spec.methods[{OverlapSide::kRow, kWgrad}] = kExternal;
  const OverlapPlan row = OverlapPlanOf(spec, OverlapSide::kRow, mxfp8);
  ExpectPlan(row, kPipeline, kRingExchange, kExternal);
  EXPECT_THAT(row.gives_way, testing::ElementsAre(true, false, false));
  spec.methods[{OverlapSide::kRow, kWgrad}] = kNone;
  EXPECT_THAT(OverlapPlanOf(spec, OverlapSide::kRow, mxfp8).gives_way,
              testing::ElementsAre(true, true, false));
}

TEST(OverlapSpec, OnlyADgradThatScattersDxLeavesWgradNothing) {
  const Recipe bf16 = *Recipe::Parse("bf16");
  OverlapSpec spec;
  for (const auto& [dgrad, wgrad] :
       {std::pair(kNone, kBulk), {kBulk, kBulk}, {kRingExchange, kNone}, {kPipeline, kNone}}) {
    spec.methods[{OverlapSide::kColumn, kDgrad}] = dgrad;
    ExpectPlan(OverlapPlanOf(spec, OverlapSide::kColumn, bf16), kRingExchange, dgrad, wgrad);
  }
}

TEST(OverlapSpec, NoneNamesNothing) {
  OverlapSpec spec;
  EXPECT_TRUE(spec.names_nothing());
  spec.methods[{OverlapSide::kRow, kFprop}] = kNone;
  EXPECT_TRUE(spec.names_nothing());
  spec.methods[{OverlapSide::kRow, kWgrad}] = kExternal;
  EXPECT_FALSE(spec.names_nothing());
  EXPECT_FALSE((OverlapSpec{.aggregate = true}).names_nothing());
  EXPECT_FALSE((OverlapSpec{.pieces = 2}).names_nothing());
  EXPECT_FALSE((OverlapSpec{.splits = 2}).names_nothing());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
