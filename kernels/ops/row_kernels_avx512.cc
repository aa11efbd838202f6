#include <immintrin.h>

#include "kernels/ops/row_kernels.h"

namespace quantgate {
namespace {

constexpr int kLanes = 16;
#include "kernels/ops/row_kernels_body.h"

}  // namespace

const RowKernels kAvx512RowKernels = kRowKernels;

}  // namespace quantgate
