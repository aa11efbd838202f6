#include "server/wire/convert_recipe.h"

#include <gtest/gtest.h>

#include <string>

namespace quantgate {
namespace QG_TEST_FILE {

v1::Recipe Named(const std::string& name, const std::string& knob, const std::string& value) {
  v1::Recipe proto;
  proto.set_name(name);
  if (!knob.empty()) (*proto.mutable_knobs())[knob] = value;
  return proto;
}

std::string TextOf(const v1::Recipe& proto) {
  const absl::StatusOr<Recipe> recipe = RecipeFromProto(proto, "recipe");
  return recipe.ok() ? recipe->ShortText() : recipe.status().ToString();
}

// Recipes are kept once they are made, so each is asked for twice.
TEST(ConvertRecipeTest, EachNameAndKnobHasItsOwn) {
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(TextOf(Named("mxfp8", "", "")), "mxfp8");
    EXPECT_EQ(TextOf(Named("fp8_current", "", "")), "fp8_current");
    EXPECT_EQ(TextOf(Named("fp8_current", "power_2_scales", "true")),
              "fp8_current:power_2_scales=true");
    EXPECT_EQ(TextOf(Named("fp8_current", "power_2_scales", "false")), "fp8_current");
  }
}

TEST(ConvertRecipeTest, WhatIsRefusedIsRefusedAgain) {
  for (int i = 0; i < 2; ++i) {
    const absl::Status status =
        RecipeFromProto(Named("fp8_current", "power_2_scales", "2"), "recipe").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("recipe.knobs[\"power_2_scales\"] is \"2\""), std::string::npos)
        << status;
  }
}

TEST(ConvertRecipeTest, MoreThanAreKeptAreStillMade) {
  for (int i = 1; i <= 300; ++i) {
    const std::string text = "fp8_delayed:amax_history_len=" + std::to_string(i);
    EXPECT_EQ(TextOf(Named("fp8_delayed", "amax_history_len", std::to_string(i))), text);
  }
}

v1::Recipe Delayed(size_t history) {
  return Named("fp8_delayed", "amax_history_len", std::to_string(history));
}

TEST(RecipeCacheTest, OneTooManyDropsThoseBefore) {
  RecipeCache cache;
  const Recipe recipe = *Recipe::Create("mxfp8", {});
  for (size_t i = 0; i < 256; ++i) cache.Add(Delayed(i), recipe);
  for (size_t i = 0; i < 256; ++i) EXPECT_TRUE(cache.Find(Delayed(i)).has_value()) << i;
  cache.Add(Delayed(256), recipe);
  for (size_t i = 0; i < 256; ++i) EXPECT_FALSE(cache.Find(Delayed(i)).has_value()) << i;
  EXPECT_TRUE(cache.Find(Delayed(256)).has_value());
}

TEST(RecipeCacheTest, OneOfManyBytesIsNotKept) {
  RecipeCache cache;
  const Recipe recipe = *Recipe::Create("mxfp8", {});
  for (const size_t bytes : {size_t{4000}, size_t{4096}}) {
    const v1::Recipe proto = Named("mxfp8", "knob", std::string(bytes, '1'));
    cache.Add(proto, recipe);
    EXPECT_EQ(cache.Find(proto).has_value(), bytes == 4000);
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
