#include "kernels/gemm/models/round_toward_zero.h"

#include <immintrin.h>

namespace quantgate {

ScopedRoundTowardZero::ScopedRoundTowardZero() : saved_control_(_mm_getcsr()) {
  _mm_setcsr(_MM_MASK_MASK | _MM_ROUND_TOWARD_ZERO);
}

ScopedRoundTowardZero::~ScopedRoundTowardZero() { _mm_setcsr(saved_control_); }

}  // namespace quantgate
