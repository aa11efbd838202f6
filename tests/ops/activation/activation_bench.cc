// Rates of activations on the CPU, one thread, elements of the output per second.
#include <benchmark/benchmark.h>

#include "kernels/ops/activation/activation.h"
#include "kernels/tensor/generate/generate.h"

namespace quantgate {
namespace {

constexpr int64_t kRows = 256, kColumns = 4096;

void BM_Activation(benchmark::State& state, ActivationKind kind, DType dtype, bool is_backward) {
  const ExecutionContext context = {static_cast<Isa>(state.range(0)), 1, nullptr};
  const ActivationOptions options = {.kind = kind};
  const auto source = [&](int64_t columns) {
    return *Generate(
        {.distribution = Distribution::kNormal, .dtype = dtype, .shape = {kRows, columns}},
        context);
  };
  const Tensor h = source(IsGated(kind) ? 2 * kColumns : kColumns), dy = source(kColumns);
  for (auto _ : state) {
    const auto result = is_backward ? ActivationBackwardCpu(dy, h, options, dtype, context)
                                    : ActivationForwardCpu(h, options, dtype, context);
    benchmark::DoNotOptimize(result->data());
  }
  state.SetItemsProcessed(state.iterations() * kRows * kColumns);
  state.SetLabel(std::string(IsaName(context.isa)));
}

void EveryIsa(benchmark::internal::Benchmark* bench) {
  for (const Isa isa : RunnableIsas()) {
    if (isa != Isa::kScalar) bench->Arg(static_cast<int>(isa));
  }
}
#define QG_BENCHMARKS(kind)                                                                   \
  BENCHMARK_CAPTURE(BM_Activation, kind##_forward, ActivationKind::kind, DType::kBF16, false) \
      ->Apply(EveryIsa);                                                                      \
  BENCHMARK_CAPTURE(BM_Activation, kind##_backward, ActivationKind::kind, DType::kBF16, true) \
      ->Apply(EveryIsa)
QG_BENCHMARKS(kGelu);
QG_BENCHMARKS(kSilu);
QG_BENCHMARKS(kSwiglu);
QG_BENCHMARKS(kClampedSwiglu);
QG_BENCHMARKS(kSrelu);

}  // namespace
}  // namespace quantgate
