// Attention between its projections by hand, in the order of docs/quantizers.md section 10.11:
// heads are moved byte by byte, and every other step is a call for one head.
#pragma once

#include "kernels/layer/layer.h"

namespace quantgate {

struct HandAttention {
  AttentionOptions options;  ///< Of the heads that `qkv` has.
  int64_t sequence = 0, batch = 1;
  Tensor qkv;       ///< [S * B][(heads + 2 groups) * D], in the activation dtype.
  Tensor dcontext;  ///< [S * B][heads * D], absent: forward only.
};
struct HandAttentionResult {
  Tensor context;        ///< [S * B][heads * D].
  Tensor dqkv;           ///< The shape of qkv.
  Tensor probabilities;  ///< f32 [B * heads][S][S].
};
HandAttentionResult AttentionByHand(const HandAttention& call);

}  // namespace quantgate
