#include "client/cli/options/suggestion.h"

#include <gtest/gtest.h>

namespace quantgate {
namespace QG_TEST_FILE {

TEST(SuggestionTest, ValuesOfMessages) {
  EXPECT_EQ(SuggestValue("--layer: \"liner\" is none of linear, chain"), "did you mean linear?");
  EXPECT_EQ(SuggestValue("--format: jsno not in {table,json,jsonl}"), "did you mean json?");
  EXPECT_EQ(SuggestValue("no tensor \"fc1.X\"; the file has fc1.bias, fc1.x."),
            "did you mean fc1.x?");
  EXPECT_EQ(SuggestValue("--spec: \"s.json\": no RunSpec as JSON: (step.layer.attention.heads): "
                         "invalid value \"four\" for type TYPE_INT32"),
            "");
  EXPECT_EQ(SuggestValue("--seed: \"-1\" is no integer from 0 to 2^64-1"), "");
  // What is quoted first may be right, or the whole that a slip is in.
  EXPECT_EQ(
      SuggestValue("--recipe: knobs[\"power_2_scales\"] is \"ture\": must be one of false|true"),
      "did you mean true?");
  EXPECT_EQ(SuggestValue("--recipe: knobs[\"power2_scales\"] is \"true\": unknown knob; knobs of "
                         "fp8_current: margin, power_2_scales"),
            "did you mean power_2_scales?");
  EXPECT_EQ(SuggestValue("--input: \"gen:normal,sed=1\": \"sed=1\" is none of seed=..., shape=..."),
            "did you mean seed?");
  EXPECT_EQ(
      SuggestValue("--arithmetic is \"sm90:splt\": arithmetic \"sm90:splt\": unknown parameter "
                   "\"splt\"; sm90 takes fast, split and splitk=N"),
      "did you mean split?");
  EXPECT_EQ(SuggestValue("--overlap: \"colum_fprop=x\": \"colum_fprop=x\" is none of column_fprop"),
            "did you mean column_fprop?");
  EXPECT_EQ(SuggestValue("knobs[\"rules\"][0].format is \"mxpf8\": must be one of nvfp4, mxfp8"),
            "did you mean mxfp8?");
  // A word that is known is none that is misspelt.
  EXPECT_EQ(SuggestValue("knobs[\"rules\"] is \"[]\": must be a list of 1 to 64 rules"), "");
  EXPECT_EQ(SuggestValue("--dim: \"127\" is none of 128, 256"), "");
  EXPECT_EQ(SuggestValue("\"unfinished"), "");
  EXPECT_EQ(SuggestValue(""), "");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
