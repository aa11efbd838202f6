#include "proto/variant_join.h"

#include <gtest/gtest.h>

#include <string>

namespace quantgate {
namespace QG_TEST_FILE {

v1::RunEvent Told(int index, const std::string& name, double rms) {
  v1::RunEvent event;
  v1::OutputFinished& told = *event.mutable_output();
  told.set_index(index);
  told.mutable_report()->mutable_tensor()->set_name(name);
  told.mutable_report()->mutable_against_unquantized()->set_rms(rms);
  return event;
}

void AddBounded(const std::string& name, v1::VariantReport& report) {
  v1::OutputReport& output = *report.add_outputs();
  output.mutable_tensor()->set_name(name);
  output.mutable_bound()->set_worst_ratio(0.5);
}

TEST(VariantJoin, CompletesWhatWasTold) {
  VariantJoin join;
  join.Take(Told(1, "y", 1));
  join.Take(Told(0, "y", 2));
  join.Take(Told(1, "dx", 3));
  v1::RunEvent event;
  v1::VariantFinished& finished = *event.mutable_variant();
  finished.set_index(1);
  finished.mutable_report()->set_label("fp8_current");
  AddBounded("y", *finished.mutable_report());
  AddBounded("dx", *finished.mutable_report());
  join.Take(event);
  ASSERT_EQ(join.variants().size(), 1u);
  const v1::VariantReport& report = join.variants().at(1);
  EXPECT_EQ(report.label(), "fp8_current");
  ASSERT_EQ(report.outputs_size(), 2);
  EXPECT_EQ(report.outputs(0).tensor().name(), "y");
  EXPECT_EQ(report.outputs(0).against_unquantized().rms(), 1);
  EXPECT_EQ(report.outputs(0).bound().worst_ratio(), 0.5);
  EXPECT_EQ(report.outputs(1).against_unquantized().rms(), 3);
  EXPECT_EQ(report.outputs(1).bound().worst_ratio(), 0.5);

  // The last one comes with the end.
  event.Clear();
  AddBounded("y", *event.mutable_finished()->mutable_variant()->mutable_report());
  join.Take(event);
  ASSERT_EQ(join.variants().size(), 2u);
  EXPECT_EQ(join.variants().at(0).outputs(0).against_unquantized().rms(), 2);
  EXPECT_TRUE(join.variants().at(0).outputs(0).has_bound());
}

// Of a run that streams no outputs, or not all of them.
TEST(VariantJoin, KeepsWhatWasNotTold) {
  VariantJoin join;
  join.Take(Told(0, "y", 1));
  v1::RunEvent event;
  AddBounded("dx", *event.mutable_variant()->mutable_report());
  join.Take(event);
  const v1::VariantReport& report = join.variants().at(0);
  ASSERT_EQ(report.outputs_size(), 2);
  EXPECT_EQ(report.outputs(0).tensor().name(), "y");
  EXPECT_EQ(report.outputs(0).against_unquantized().rms(), 1);
  EXPECT_FALSE(report.outputs(0).has_bound());
  EXPECT_EQ(report.outputs(1).tensor().name(), "dx");
  EXPECT_TRUE(report.outputs(1).has_bound());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
