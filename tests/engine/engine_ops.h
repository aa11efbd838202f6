// The operations of kernels/ops through an engine, each with its operands and the tensors that it
// gives: for tests of any engine.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/engine/engine.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {

using OpResult = absl::StatusOr<std::vector<Tensor>>;

/// Calls `engine` and calls the CPU's function beside it.
struct EngineOp {
  std::string name;
  std::function<OpResult(Engine& engine, const Cancellation* cancellation)> on_engine;
  std::function<OpResult()> directly;
};

namespace engine_ops {

inline OpResult One(const absl::StatusOr<Tensor>& tensor) {
  if (!tensor.ok()) return tensor.status();
  return std::vector<Tensor>{*tensor};
}
/// The members of a result.
template <class Result, class... Members>
OpResult Each(const absl::StatusOr<Result>& result, Members... members) {
  if (!result.ok()) return result.status();
  return std::vector<Tensor>{(*result).*members...};
}

inline OpResult Of(const absl::StatusOr<NormForwardResult>& result) {
  return Each(result, &NormForwardResult::y, &NormForwardResult::mean, &NormForwardResult::rstd);
}
inline OpResult Of(const absl::StatusOr<NormGradients>& result) {
  return Each(result, &NormGradients::dx, &NormGradients::dgamma, &NormGradients::dbeta);
}
inline OpResult Of(const absl::StatusOr<AdamResult>& result) {
  return Each(result, &AdamResult::master, &AdamResult::m, &AdamResult::v);
}
inline OpResult Of(const absl::StatusOr<SgdResult>& result) {
  return Each(result, &SgdResult::master, &SgdResult::momentum);
}
inline OpResult Of(const absl::StatusOr<SoftmaxResult>& result) {
  return Each(result, &SoftmaxResult::probabilities, &SoftmaxResult::rounded);
}
inline OpResult Of(const absl::StatusOr<SplitTensor>& result) {
  return Each(result, &SplitTensor::parameter, &SplitTensor::remainder);
}

inline OpResult Of(const absl::StatusOr<QuantizedFragment>& result) {
  if (!result.ok()) return result.status();
  return std::vector<Tensor>{result->codes, result->whole.scale_inv, result->whole.amax};
}
inline OpResult Of(const absl::StatusOr<TensorAmaxes>& result) {
  return Each(result, &TensorAmaxes::rowwise, &TensorAmaxes::columnwise);
}

inline Tensor Normal(uint64_t seed, DType dtype, Shape shape) {
  return Generated(Distribution::kNormal, seed, dtype, std::move(shape));
}

inline NormForwardDesc Forward() {
  NormForwardDesc desc;
  desc.x = Normal(1, DType::kBF16, {9, 24});
  desc.gamma = Normal(2, DType::kF32, {24});
  desc.beta = Normal(3, DType::kF32, {24});
  return desc;
}

inline NormBackwardDesc Backward() {
  NormBackwardDesc desc;
  const NormForwardDesc forward = Forward();
  const NormForwardResult z = *NormForwardCpu(forward, {});
  desc.x = forward.x;
  desc.gamma = forward.gamma;
  desc.mean = z.mean;
  desc.rstd = z.rstd;
  desc.dz = Normal(4, DType::kBF16, {9, 24});
  desc.residual = Normal(5, DType::kBF16, {9, 24});
  desc.wanted.dbeta = true;
  return desc;
}

/// Two groups of two query heads, a key head and a value head.
inline RotaryDesc Rotary() {
  RotaryDesc desc;
  desc.heads = Normal(12, DType::kBF16, {8, 7, 16});
  desc.table = *MakeRotaryTable(1e4f, 7, 16, DType::kBF16);
  desc.period = 4;
  desc.rotated = 3;
  return desc;
}

inline SoftmaxDesc Softmax() {
  SoftmaxDesc desc;
  desc.scores = Normal(13, DType::kBF16, {3, 7, 40});
  desc.scale = 0.3f;
  desc.mask = AttentionMask::kCausal;
  return desc;
}

inline SoftmaxBackwardDesc SoftmaxBackward() {
  SoftmaxBackwardDesc desc;
  desc.gradient = Normal(14, DType::kBF16, {3, 7, 40});
  desc.probabilities = SoftmaxForwardCpu(Softmax(), {})->probabilities;
  desc.scale = 0.3f;
  desc.mask = AttentionMask::kCausal;
  return desc;
}

inline AdamDesc Adam() {
  AdamDesc desc;
  desc.master = Normal(6, DType::kF32, {33});
  desc.gradient = Normal(7, DType::kBF16, {33});
  desc.m = Normal(8, DType::kF32, {33});
  desc.v = Generated(Distribution::kAllZero, 0, DType::kF32, {33});
  return desc;
}

inline SgdDesc Sgd() {
  SgdDesc desc;
  desc.master = Normal(6, DType::kF32, {33});
  desc.gradient = Normal(7, DType::kBF16, {33});
  desc.momentum = Normal(8, DType::kF32, {33});
  desc.options.momentum = 0.9f;
  return desc;
}

}  // namespace engine_ops

inline std::vector<EngineOp> EngineOps() {
  using engine_ops::Of;
  using engine_ops::One;
  using C = const Cancellation*;
  const NormForwardDesc forward = engine_ops::Forward();
  const NormBackwardDesc backward = engine_ops::Backward();
  const RotaryDesc rotary = engine_ops::Rotary();
  const SoftmaxDesc softmax = engine_ops::Softmax();
  const SoftmaxBackwardDesc softmax_backward = engine_ops::SoftmaxBackward();
  const AdamDesc adam = engine_ops::Adam();
  const SgdDesc sgd = engine_ops::Sgd();
  const Tensor a = forward.x, b = backward.dz, master = adam.master;
  const std::vector<Tensor> parts = {a, b, a};
  const SplitTensor split = *SplitMasterCpu(master, {});
  const std::vector<Tensor> masters = {master, adam.v, adam.m};
  const Tensor source = engine_ops::Normal(9, DType::kBF16, {32, 64});
  Quantizer hadamard(QuantizerSpec{.format = QuantizerFormat::kNvfp4, .element = DType::kF4E2M1x2});
  hadamard.columnwise.hadamard = true;
  const QuantizerSpec tiles = {
      .format = QuantizerFormat::kNvfp4, .element = DType::kF4E2M1x2, .block_dim = 2};
  const TensorFragment fragment = {source, 333, {64, 64}};
  const FragmentAmaxes amaxes = {*MeasureFragmentCpu(fragment, tiles, Usage::kRowwise, {})};
  const Tensor factors = engine_ops::Normal(10, DType::kF32, {32});
  static constexpr int64_t kRowNumbers[] = {3, kNoRow, 31, 3, 0, 7};
  const RowSums row_sums = {.rows = source,
                            .positions = kRowNumbers,
                            .choices = 3,
                            .weights = engine_ops::Normal(11, DType::kF32, {6}),
                            .accumulation = SumAccumulation::kElement};
  constexpr DType kOut = DType::kF16;
  constexpr SumAccumulation kByElement = SumAccumulation::kElement;
  return {
      {"norm forward", [=](Engine& e, C c) { return Of(e.NormForward(forward, c)); },
       [=] { return Of(NormForwardCpu(forward, {})); }},
      {"norm backward", [=](Engine& e, C c) { return Of(e.NormBackward(backward, c)); },
       [=] { return Of(NormBackwardCpu(backward, {})); }},
      {"add", [=](Engine& e, C c) { return One(e.Add(a, b, kOut, c)); },
       [=] { return One(AddCpu(a, b, kOut, {})); }},
      {"scale", [=](Engine& e, C c) { return One(e.Scale(a, 0.3f, kOut, c)); },
       [=] { return One(ScaleCpu(a, 0.3f, kOut, {})); }},
      {"concatenate rows", [=](Engine& e, C c) { return One(e.ConcatenateRows(parts, c)); },
       [=] { return One(ConcatenateRowsCpu(parts, {})); }},
      {"concatenate columns", [=](Engine& e, C c) { return One(e.ConcatenateColumns(parts, c)); },
       [=] { return One(ConcatenateColumnsCpu(parts, {})); }},
      {"slice", [=](Engine& e, C c) { return One(e.Slice(a, 1, 3, 7, c)); },
       [=] { return One(SliceCpu(a, 1, 3, 7, {})); }},
      {"ordered sum", [=](Engine& e, C c) { return One(e.OrderedSum(parts, kByElement, kOut, c)); },
       [=] { return One(OrderedSumCpu(parts, kByElement, kOut, {})); }},
      {"ordered sum to rows",
       [=](Engine& e, C c) -> OpResult {
         const absl::StatusOr<Tensor> whole = e.Allocate(DType::kBF16, {9, 24});
         if (!whole.ok()) return whole.status();
         const absl::Status status = e.OrderedSumTo(parts, kByElement, *whole, c);
         if (!status.ok()) return status;
         return std::vector<Tensor>{*whole};
       },
       [=] { return One(OrderedSumCpu(parts, kByElement, DType::kBF16, {})); }},
      {"maximum", [=](Engine& e, C c) { return One(e.Maximum(masters, c)); },
       [=] { return One(MaximumCpu(masters, {})); }},
      {"gather rows", [=](Engine& e, C c) { return One(e.GatherRows(source, kRowNumbers, c)); },
       [=] { return One(GatherRowsCpu(source, kRowNumbers, {})); }},
      {"scale rows", [=](Engine& e, C c) { return One(e.ScaleRows(source, factors, c)); },
       [=] { return One(ScaleRowsCpu(source, factors, {})); }},
      {"sum rows", [=](Engine& e, C c) { return One(e.SumRows(row_sums, c)); },
       [=] { return One(SumRowsCpu(row_sums, {})); }},
      {"measure fragment",
       [=](Engine& e, C c) { return One(e.MeasureFragment(fragment, tiles, Usage::kRowwise, c)); },
       [=] { return One(MeasureFragmentCpu(fragment, tiles, Usage::kRowwise, {})); }},
      {"quantize fragment",
       [=](Engine& e, C c) {
         return Of(e.QuantizeFragment(fragment, tiles, Usage::kRowwise, amaxes, Tensor(), c));
       },
       [=] {
         return Of(QuantizeFragmentCpu(fragment, tiles, Usage::kRowwise, amaxes, Tensor(), {}));
       }},
      {"measure amax",
       [=](Engine& e, C c) {
         return Of(e.MeasureAmax(source, hadamard, {true, true}, c));
       },
       [=] {
         return Of(MeasureAmaxCpu(source, hadamard, {true, true}, {}));
       }},
      {"swap dims", [=](Engine& e, C c) { return One(e.SwapDims(softmax.scores, c)); },
       [=] { return One(SwapDimsCpu(softmax.scores, {})); }},
      {"rotate", [=](Engine& e, C c) { return One(e.Rotate(rotary, c)); },
       [=] { return One(RotateCpu(rotary, {})); }},
      {"softmax forward", [=](Engine& e, C c) { return Of(e.SoftmaxForward(softmax, c)); },
       [=] { return Of(SoftmaxForwardCpu(softmax, {})); }},
      {"softmax backward",
       [=](Engine& e, C c) { return One(e.SoftmaxBackward(softmax_backward, c)); },
       [=] { return One(SoftmaxBackwardCpu(softmax_backward, {})); }},
      {"adam step", [=](Engine& e, C c) { return Of(e.AdamStep(adam, c)); },
       [=] { return Of(AdamStepCpu(adam, {})); }},
      {"sgd step", [=](Engine& e, C c) { return Of(e.SgdStep(sgd, c)); },
       [=] { return Of(SgdStepCpu(sgd, {})); }},
      {"split master", [=](Engine& e, C c) { return Of(e.SplitMaster(master, c)); },
       [=] { return Of(SplitMasterCpu(master, {})); }},
      {"join master", [=](Engine& e, C c) { return One(e.JoinMaster(split, c)); },
       [=] { return One(JoinMasterCpu(split, {})); }},
  };
}

/// Every operation on `engine` gives what the CPU's function gives, and stops when cancelled.
inline void ExpectEngineOps(Engine& engine) {
  Cancellation cancelled;
  cancelled.Cancel();
  for (const EngineOp& op : EngineOps()) {
    SCOPED_TRACE(op.name);
    const OpResult actual = op.on_engine(engine, nullptr), expected = op.directly();
    ASSERT_TRUE(actual.ok()) << actual.status();
    ASSERT_TRUE(expected.ok()) << expected.status();
    ASSERT_EQ(actual->size(), expected->size());
    for (size_t i = 0; i < expected->size(); ++i) {
      EXPECT_TRUE(SameBits(*engine.ToHost((*actual)[i], nullptr), (*expected)[i])) << i;
    }
    EXPECT_EQ(op.on_engine(engine, &cancelled).status().code(), absl::StatusCode::kCancelled);
  }
}

}  // namespace quantgate
