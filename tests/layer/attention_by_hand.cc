#include "tests/layer/attention_by_hand.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/engine/engine.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace {

const ExecutionContext kContext;

class Hand {
 public:
  explicit Hand(const HandAttention& call)
      : call_(call),
        groups_(call.options.group_count()),
        queries_(call.options.heads / groups_),
        columns_(call.qkv.columns() / (groups_ * (queries_ + 2))),
        dtype_(call.qkv.dtype()) {}

  HandAttentionResult Run() {
    HandAttentionResult result;
    result.context = *Tensor::Allocate(dtype_, {rows(), call_.options.heads * columns_});
    if (call_.dcontext.has_value()) {
      result.dqkv = *Tensor::Allocate(dtype_, call_.qkv.shape());
    }
    result.probabilities = *Tensor::Allocate(
        DType::kF32, {call_.batch * call_.options.heads, call_.sequence, call_.sequence});
    for (int64_t batch = 0; batch < call_.batch; ++batch) {
      for (int64_t group = 0; group < groups_; ++group) RunGroup(batch, group, result);
    }
    return result;
  }

 private:
  int64_t rows() const { return call_.sequence * call_.batch; }
  size_t width() const { return static_cast<size_t>(columns_) * DTypeBytes(dtype_); }

  /// Head `head` of one batch of a [S * B][heads * D] tensor: [S][D].
  Tensor HeadOf(const Tensor& from, int64_t batch, int64_t head) const {
    Tensor to = *Tensor::Allocate(dtype_, {call_.sequence, columns_});
    for (int64_t s = 0; s < call_.sequence; ++s) {
      std::memcpy(to.data() + static_cast<size_t>(s) * width(), Place(from, s, batch, head),
                  width());
    }
    return to;
  }
  void SetHead(const Tensor& head_values, int64_t batch, int64_t head, Tensor& to) const {
    for (int64_t s = 0; s < call_.sequence; ++s) {
      std::memcpy(const_cast<std::byte*>(Place(to, s, batch, head)),
                  head_values.data() + static_cast<size_t>(s) * width(), width());
    }
  }
  const std::byte* Place(const Tensor& tensor, int64_t s, int64_t batch, int64_t head) const {
    const int64_t row = s * call_.batch + batch;
    return tensor.data() +
           static_cast<size_t>(row * tensor.columns() + head * columns_) * DTypeBytes(dtype_);
  }

  Tensor Rotated(const Tensor& head, bool is_backward) const {
    if (!call_.options.rotary_base.has_value()) return head;
    RotaryDesc desc;
    desc.heads = *head.Reinterpret(dtype_, {1, call_.sequence, columns_});
    desc.table = *MakeRotaryTable(*call_.options.rotary_base, call_.sequence, columns_, dtype_);
    desc.is_backward = is_backward;
    return *RotateCpu(desc, kContext)->Reinterpret(dtype_, head.shape());
  }

  Tensor Multiply(const Tensor& a, const Tensor& b, GemmLayout layout) const {
    static Engine& engine = *MakeCpuEngine({Isa::kScalar, 1}).release();
    GemmDesc desc;
    desc.a.data = a;
    desc.b.data = b;
    desc.layout = layout;
    desc.out_dtype = dtype_;
    return engine.Gemm(desc, nullptr)->d;
  }

  /// In fp32, in this order, rounded once.
  Tensor Sum(const std::vector<Tensor>& parts) const {
    std::vector<float> sum = ToValues(parts[0]);
    for (size_t i = 1; i < parts.size(); ++i) {
      const std::vector<float> values = ToValues(parts[i]);
      for (size_t at = 0; at < sum.size(); ++at) sum[at] += values[at];
    }
    return FromValues(dtype_, parts[0].shape(), sum);
  }

  void RunGroup(int64_t batch, int64_t group, HandAttentionResult& result) const {
    const int64_t first = group * (queries_ + 2);
    const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(columns_)));
    const AttentionMask mask = call_.options.mask;
    const Tensor k = Rotated(HeadOf(call_.qkv, batch, first + queries_), false);
    const Tensor v = HeadOf(call_.qkv, batch, first + queries_ + 1);
    std::vector<Tensor> dks, dvs;
    for (int64_t i = 0; i < queries_; ++i) {
      const int64_t head = group * queries_ + i;
      const Tensor q = Rotated(HeadOf(call_.qkv, batch, first + i), false);
      const SoftmaxResult p =
          *SoftmaxForwardCpu({Multiply(q, k, GemmLayout::kTN), scale, mask}, kContext);
      std::memcpy(
          result.probabilities.data() +
              static_cast<size_t>(batch * call_.options.heads + head) * p.probabilities.byte_size(),
          p.probabilities.data(), p.probabilities.byte_size());
      SetHead(Multiply(p.rounded, v, GemmLayout::kNN), batch, head, result.context);
      if (!call_.dcontext.has_value()) continue;
      const Tensor dcontext = HeadOf(call_.dcontext, batch, head);
      const Tensor dscores = *SoftmaxBackwardCpu(
          {Multiply(dcontext, v, GemmLayout::kTN), p.probabilities, scale, mask}, kContext);
      SetHead(Rotated(Multiply(dscores, k, GemmLayout::kNN), true), batch, first + i, result.dqkv);
      dks.push_back(Multiply(dscores, q, GemmLayout::kNT));
      dvs.push_back(Multiply(p.rounded, dcontext, GemmLayout::kNT));
    }
    if (dks.empty()) return;
    SetHead(Rotated(Sum(dks), true), batch, first + queries_, result.dqkv);
    SetHead(Sum(dvs), batch, first + queries_ + 1, result.dqkv);
  }

  const HandAttention& call_;
  const int64_t groups_, queries_, columns_;
  const DType dtype_;
};

}  // namespace

HandAttentionResult AttentionByHand(const HandAttention& call) { return Hand(call).Run(); }

}  // namespace quantgate
