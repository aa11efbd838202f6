// The attributes of QG_LOOP give a loop its instruction set, whatever options the file is compiled
// with, and inline what it calls.
#include "kernels/ops/attention/attention_loops.h"

#include <bit>
#include <limits>

#include "kernels/numerics/attention.h"

namespace quantgate {
namespace {

namespace scalar_attention {
#define QG_LOOP __attribute__((flatten))
#include "kernels/ops/attention/attention_loops_body.h"
#undef QG_LOOP
}  // namespace scalar_attention

namespace avx2_attention {
#define QG_LOOP __attribute__((target("avx2,fma"), flatten))
#include "kernels/ops/attention/attention_loops_body.h"
#undef QG_LOOP
}  // namespace avx2_attention

namespace avx512_attention {
#define QG_LOOP \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512"), flatten))
#include "kernels/ops/attention/attention_loops_body.h"
#undef QG_LOOP
}  // namespace avx512_attention

}  // namespace

AttentionLoops AttentionLoopsOf(Isa isa) {
  switch (isa) {
    case Isa::kAvx512:
      return avx512_attention::kLoops;
    case Isa::kAvx2:
      return avx2_attention::kLoops;
    case Isa::kScalar:
      break;
  }
  return scalar_attention::kLoops;
}

}  // namespace quantgate
