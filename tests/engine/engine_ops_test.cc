// Norms, element-wise operations and optimizers through the CPU engine.
#include "tests/engine/engine_ops.h"

#include <gtest/gtest.h>

namespace quantgate {
namespace {

TEST(CpuEngineOps, GiveWhatTheFunctionsGiveAndStopWhenCancelled) {
  ExpectEngineOps(*MakeCpuEngine({}));
}

}  // namespace
}  // namespace quantgate
