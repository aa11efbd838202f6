#include "client/cli/options/recipe_argument.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/client/process.h"
#include "tests/server/temporary_directory.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Items = std::vector<std::string>;

TEST(RecipeArgumentTest, Text) {
  absl::StatusOr<v1::Recipe> recipe = ParseRecipeArgument("bf16");
  ASSERT_TRUE(recipe.ok());
  EXPECT_EQ(recipe->name(), "bf16");
  EXPECT_EQ(recipe->knobs_size(), 0);

  recipe = ParseRecipeArgument("fp8_current:power_2_scales=true,fp8_format=e4m3");
  ASSERT_TRUE(recipe.ok());
  EXPECT_EQ(recipe->name(), "fp8_current");
  EXPECT_EQ(recipe->knobs().at("power_2_scales"), "true");
  EXPECT_EQ(RecipeText(*recipe), "fp8_current:fp8_format=e4m3,power_2_scales=true");

  for (const char* text :
       {"", ":a=b", "fp8_current:", "fp8_current:power_2_scales", "r:=1", "r:a=1,a=2", "r:a=1,"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseRecipeArgument(text).status())) << text;
  }
}

TEST(RecipeArgumentTest, File) {
  const TemporaryDirectory directory;
  const auto parse = [&](const std::string& json) {
    WriteFile(directory.Path("r.json"), json);
    return ParseRecipeArgument("@" + directory.Path("r.json"));
  };
  const absl::StatusOr<v1::Recipe> recipe = parse(
      R"({"name": "fp8_current", "knobs": {"power_2_scales": true, "amax_epsilon": 0.5, "fp8_format": "e4m3"}})");
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  EXPECT_EQ(RecipeText(*recipe),
            "fp8_current:amax_epsilon=0.5,fp8_format=e4m3,power_2_scales=true");

  // JSON stays JSON: what it means is the server's to say.
  EXPECT_EQ(RecipeText(*parse(
                R"({"name": "custom", "knobs": {"rules": [{"quantizer": {"format": "mxfp8"}}]}})")),
            R"(custom:rules=[{"quantizer":{"format":"mxfp8"}}])");
  EXPECT_EQ(RecipeText(*parse(R"({"name": "hybrid", "knobs": {"fprop": {"name": "mxfp8"}}})")),
            R"(hybrid:fprop={"name":"mxfp8"})");

  const std::pair<std::string, std::string> bad[] = {
      {"", "not valid JSON"},
      {"{", "not valid JSON"},
      {"[]", "a recipe is an object"},
      {"{}", "no \"name\""},
      {R"({"name": 1})", "\"name\""},
      {R"({"name": "bf16", "extra": 1})", "\"extra\""},
      {R"({"name": "bf16", "knobs": {"a": null}})", "knobs.a"},
      {std::string(100'000, '['), "nested deeper than 32"},
      {R"({"name": "mxfp8", "knobs": {}, "name": "bf16"})",
       "the key \"name\" stands twice in one object"},
      {std::string((1 << 20) + 1, ' '), "longer than 1 MiB"},
  };
  for (const auto& [json, message] : bad) {
    const absl::Status status = parse(json).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << json.substr(0, 80);
    EXPECT_THAT(std::string(status.message()), HasSubstr(message)) << json.substr(0, 80);
  }
  EXPECT_TRUE(absl::IsNotFound(ParseRecipeArgument("@" + directory.Path("none")).status()));
}

TEST(RecipeArgumentTest, Lists) {
  EXPECT_THAT(*SplitItems("--recipe", {"bf16,fp8_current"}), ElementsAre("bf16", "fp8_current"));
  EXPECT_THAT(
      *SplitItems("--recipe", {"bf16,fp8_current:power_2_scales=true,fp8_format=e4m3,fp8_current"}),
      ElementsAre("bf16", "fp8_current:power_2_scales=true,fp8_format=e4m3", "fp8_current"));
  EXPECT_THAT(*SplitItems("--recipe", {"a:x=1,b:y=2,z=3", "c"}),
              ElementsAre("a:x=1", "b:y=2,z=3", "c"));
  EXPECT_THAT(*SplitItems("--recipe", {R"(hybrid:fprop={"name":"mxfp8","knobs":{"a":"b,c:d"}},)"
                                       R"(dgrad=nvfp4,custom:rules=[{"quantizer":"x"},{}],bf16)"}),
              ElementsAre(R"(hybrid:fprop={"name":"mxfp8","knobs":{"a":"b,c:d"}},dgrad=nvfp4)",
                          R"(custom:rules=[{"quantizer":"x"},{}])", "bf16"));
  EXPECT_THAT(*SplitItems("--arithmetic", {"sm90,sm90:split,splitk=3,exact"}),
              ElementsAre("sm90", "sm90:split,splitk=3", "exact"));
  EXPECT_THAT(*SplitItems("--recipe", {}), IsEmpty());

  for (const Items& values : {Items{""}, Items{"bf16,"}, Items{",bf16"}, Items{"bf16,x=1"},
                              Items{"x=1"}, Items{"a:x=1", "y=2"}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(SplitItems("--recipe", values).status())) << values.back();
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
