// Norms, element-wise operations and optimizers through the CUDA engine, from operands in host
// memory.
#include <gtest/gtest.h>

#include "kernels/engine/cuda_engine.h"
#include "tests/engine/engine_ops.h"

namespace quantgate {
namespace {

TEST(CudaEngineOps, GiveTheCpusBytesAndStopWhenCancelled) {
  ExpectEngineOps(**CudaEngine::Open(0));
}

}  // namespace
}  // namespace quantgate
