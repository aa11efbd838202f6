// Nothing is read between the operations of a layer: on a device each read would wait for all that
// is under way. What reports need is read once everything is on its way.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/engine/order_recorder.h"
#include "tests/layer/layer_cases.h"

namespace quantgate {
namespace QG_TEST_FILE {

TEST(LayerResidencyTest, ReadsNothingBeforeTheLastOperation) {
  const auto cpu = MakeCpuEngine({.threads = 1});
  for (const NamedCase& one : AllLayerCases()) {
    for (const Recipe& recipe : CaseRecipes()) {
      for (const bool fused : {true, false}) {
        SCOPED_TRACE(one.name + " " + recipe.ShortText());
        LayerRequest request = one.request;
        request.layer.fused = fused;
        OrderRecorder engine(*cpu);
        const auto result = RunLayer(engine, request, recipe, Arithmetic{}, nullptr);
        ASSERT_TRUE(result.ok()) << result.status();
        // The fingerprints of what was saved are read, so the order was looked at.
        EXPECT_GT(ExpectReadsLast(engine.operations), 0);
      }
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
