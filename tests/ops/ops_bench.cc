// Norms, element-wise operations and optimizers against memcpy in the same run; compare
// bytes_per_second. Bytes are what must be read and written once; the backward of a norm reads x
// and dz for rows and for columns, and counts both.
#include <benchmark/benchmark.h>

#include <cstring>

#include "kernels/ops/elementwise/elementwise.h"
#include "kernels/ops/norm/norm.h"
#include "kernels/ops/optimizer/optimizer.h"
#include "kernels/tensor/generate/generate.h"

namespace quantgate {
namespace {

constexpr int64_t kElements = 16 << 20;
constexpr int64_t kColumns = 4096;

Tensor Source(DType dtype, Shape shape, Distribution distribution = Distribution::kNormal) {
  return *Generate(
      {.distribution = distribution, .seed = 1, .dtype = dtype, .shape = std::move(shape)}, {});
}

ExecutionContext Context(benchmark::State& state) {
  ExecutionContext context;
  context.isa = static_cast<Isa>(state.range(0));
  context.threads = 1;
  if (context.isa > BestIsa()) state.SkipWithError("instruction set not available");
  state.SetLabel(std::string(IsaName(context.isa)));
  return context;
}

void BM_Memcpy(benchmark::State& state) {
  const Tensor from = Source(DType::kBF16, {kElements});
  Tensor to = *Tensor::FromBytes(from.dtype(), from.shape(), from.bytes());
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), from.byte_size());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * 2 * static_cast<int64_t>(from.byte_size()));
}
BENCHMARK(BM_Memcpy);

template <NormKind kKind, DType kType>
NormForwardDesc Forward() {
  NormForwardDesc desc;
  desc.options.kind = kKind;
  desc.x = Source(kType, {kElements / kColumns, kColumns});
  desc.gamma = Source(kType, {kColumns});
  if (kKind == NormKind::kLayerNorm) desc.beta = desc.gamma;
  desc.out = kType;
  return desc;
}

template <NormKind kKind, DType kType>
void BM_NormForward(benchmark::State& state) {
  const ExecutionContext context = Context(state);
  const NormForwardDesc desc = Forward<kKind, kType>();
  for (auto _ : state) benchmark::DoNotOptimize(NormForwardCpu(desc, context));
  state.SetBytesProcessed(state.iterations() * kElements * 2 * DTypeBytes(kType));
}

template <NormKind kKind, DType kType>
void BM_NormBackward(benchmark::State& state) {
  const ExecutionContext context = Context(state);
  const NormForwardDesc forward = Forward<kKind, kType>();
  const NormForwardResult z = *NormForwardCpu(forward, {});
  NormBackwardDesc desc;
  desc.x = forward.x;
  desc.dz = z.y;
  desc.gamma = forward.gamma;
  desc.mean = z.mean;
  desc.rstd = z.rstd;
  desc.options = forward.options;
  desc.wanted.dbeta = kKind == NormKind::kLayerNorm;
  for (auto _ : state) benchmark::DoNotOptimize(NormBackwardCpu(desc, context));
  state.SetBytesProcessed(state.iterations() * kElements * 5 * DTypeBytes(kType));
}

template <DType kType>
void BM_Add(benchmark::State& state) {
  const ExecutionContext context = Context(state);
  const Tensor a = Source(kType, {kElements}), b = Source(kType, {kElements});
  for (auto _ : state) benchmark::DoNotOptimize(AddCpu(a, b, kType, context));
  state.SetBytesProcessed(state.iterations() * kElements * 3 * DTypeBytes(kType));
}

template <DType kGradient>
void BM_Adam(benchmark::State& state) {
  const ExecutionContext context = Context(state);
  AdamDesc desc;
  desc.master = Source(DType::kF32, {kElements});
  desc.gradient = Source(kGradient, {kElements});
  desc.m = desc.master;
  desc.v = Source(DType::kF32, {kElements}, Distribution::kAllZero);
  for (auto _ : state) benchmark::DoNotOptimize(AdamStepCpu(desc, context));
  state.SetBytesProcessed(state.iterations() * kElements * (24 + DTypeBytes(kGradient)));
}

void EveryIsa(benchmark::internal::Benchmark* bench) {
  bench->ArgName("isa")->DenseRange(0, 2)->Unit(benchmark::kMillisecond);
}
BENCHMARK(BM_NormForward<NormKind::kLayerNorm, DType::kBF16>)->Apply(EveryIsa);
BENCHMARK(BM_NormForward<NormKind::kRmsNorm, DType::kBF16>)->Apply(EveryIsa);
BENCHMARK(BM_NormForward<NormKind::kLayerNorm, DType::kF16>)->Apply(EveryIsa);
BENCHMARK(BM_NormForward<NormKind::kLayerNorm, DType::kF32>)->Apply(EveryIsa);
BENCHMARK(BM_NormBackward<NormKind::kLayerNorm, DType::kBF16>)->Apply(EveryIsa);
BENCHMARK(BM_NormBackward<NormKind::kRmsNorm, DType::kBF16>)->Apply(EveryIsa);
BENCHMARK(BM_Add<DType::kBF16>)->Apply(EveryIsa);
BENCHMARK(BM_Adam<DType::kBF16>)->Apply(EveryIsa);

}  // namespace
}  // namespace quantgate
