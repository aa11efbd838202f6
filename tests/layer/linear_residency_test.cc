// Nothing is read between the operations of a layer: on a device each read would wait for all that
// is under way. What reports need is read once everything is on its way.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "kernels/engine/forwarding_engine.h"
#include "kernels/layer/linear.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace {

class OrderRecorder : public ForwardingEngine {
 public:
  using ForwardingEngine::ForwardingEngine;
  std::vector<std::string> operations;

 protected:
  void OnOperation(const std::string& name) override { operations.push_back(name); }
};

bool IsRead(const std::string& operation) {
  static const std::set<std::string> kReads = {"to host",      "summarize",     "read fingerprints",
                                               "compare bits", "measure error", "measure nearer",
                                               "check bound"};
  return kReads.count(operation) != 0;
}

TEST(LinearResidencyTest, ReadsNothingBeforeTheLastOperation) {
  const auto cpu = MakeCpuEngine({});
  LinearRequest request;
  request.x = Generated(Distribution::kNormal, 1, DType::kBF16, {128, 256});
  request.weight = Generated(Distribution::kNormal, 2, DType::kBF16, {128, 256});
  request.bias = Generated(Distribution::kNormal, 3, DType::kBF16, {128});
  request.grad_output = Generated(Distribution::kNormal, 4, DType::kBF16, {128, 128});
  for (const char* recipe :
       {"bf16", "fp8_current", "fp8_delayed", "fp8_block", "mxfp8", "nvfp4",
        "fp8_current:backward_override=dequantized", "mxfp8:backward_override=high_precision"}) {
    OrderRecorder engine(*cpu);
    const auto result = RunLinear(engine, request, *Recipe::Parse(recipe), Arithmetic{}, nullptr);
    ASSERT_TRUE(result.ok()) << recipe << ": " << result.status();
    size_t first_read = engine.operations.size(), last_write = 0;
    for (size_t i = 0; i < engine.operations.size(); ++i) {
      if (IsRead(engine.operations[i])) {
        first_read = std::min(first_read, i);
      } else {
        last_write = i;
      }
    }
    EXPECT_LT(last_write, first_read) << recipe << ": " << engine.operations[first_read];
    // The fingerprints of what was saved are read, so the order was looked at.
    EXPECT_LT(first_read, engine.operations.size()) << recipe;
  }
}

}  // namespace
}  // namespace quantgate
