#include "kernels/base/strict_json.h"

#include <gtest/gtest.h>

#include <string>

#include "kernels/base/refusal.h"

namespace quantgate {
namespace QG_TEST_FILE {

std::string RuleFor(std::string_view text, int depth_max = 3) {
  const auto json = ParseStrictJson(text, depth_max);
  return json.ok() ? "" : RefusalOf(json.status())->rule;
}

TEST(StrictJsonTest, KeepsWhatItReads) {
  const auto json = ParseStrictJson(R"({"a": {"b": 1}, "c": [{"b": 2}, {"b": 3}], "": 4})", 3);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(json->dump(), R"({"":4,"a":{"b":1},"c":[{"b":2},{"b":3}]})");
}

TEST(StrictJsonTest, RefusesAKeyGivenTwice) {
  EXPECT_EQ(RuleFor(R"({"a": 1, "b": 2, "a": 1})"), "the key \"a\" stands twice in one object");
  EXPECT_EQ(RuleFor(R"([{"b": {"c": 1, "c": 2}}])"), "the key \"c\" stands twice in one object");
  EXPECT_EQ(RuleFor(R"({"": 1, "": 2})"), "the key \"\" stands twice in one object");
  // Spelled in two ways, one key.
  EXPECT_EQ(RuleFor(R"({"a": 1, "\u0061": 2})"), "the key \"a\" stands twice in one object");
}

TEST(StrictJsonTest, RefusesWhatIsDeepOrNoJson) {
  EXPECT_EQ(RuleFor("[[[1]]]"), "");
  EXPECT_EQ(RuleFor("[[[[1]]]]"), "nested deeper than 3");
  EXPECT_EQ(RuleFor(std::string(20'000, '[')), "nested deeper than 3");
  for (const char* text : {"", "{", "{\"a\":}", "[1] 2", "{'a': 1}", "\"\xff\"", "nan"}) {
    EXPECT_EQ(RuleFor(text), "not valid JSON") << text;
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
