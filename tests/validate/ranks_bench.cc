// A linear layer forward and backward on virtual ranks of the CPU beside the same on one rank, on
// the same CPUs. Columns: the time it took, and the CPU time of all threads together, whose ratio
// of eight ranks to one is what the ranks do beyond the layer's own work. taskset says how many
// CPUs take part.
#include <benchmark/benchmark.h>

#include <string>

#include "kernels/tensor/generate/generate.h"
#include "kernels/validate/ranks/parallel_run.h"

namespace quantgate {
namespace {

Tensor Made(uint64_t seed, int64_t size) {
  GeneratorSpec spec;
  spec.seed = seed;
  spec.shape = {size, size};
  return Generate(spec, ExecutionContext()).value();
}

/// Range: rows, columns and outputs of the layer; ranks.
void BM_Layer(benchmark::State& state, const char* recipe, const char* arithmetic,
              ParallelMode mode) {
  LayerRequest request;
  request.layer.parallel_mode = mode;
  request.x = Made(1, state.range(0));
  request.parameters["weight"] = Made(2, state.range(0));
  request.grad_output = Made(3, state.range(0));
  Variant variant{Recipe::Parse(recipe).value(), Arithmetic::Parse(arithmetic).value()};
  variant.parallel =
      ParallelSpec{.tensor_parallel = static_cast<int>(state.range(1)), .sequence_parallel = true};
  const std::unique_ptr<Engine> engine = MakeCpuEngine({});
  RankEngines engines(*engine);
  const auto run = [&]() -> absl::Status {
    if (variant.parallel->size() > 1) {
      return RunOnRanks(request, *engine, variant, engines.EnginesFor(*variant.parallel).value(),
                        nullptr, nullptr)
          .status();
    }
    LayerRequest alone = request;
    alone.layer.parallel_mode = ParallelMode::kNone;
    return RunLayer(*engine, alone, variant.recipe, variant.arithmetic, nullptr).status();
  };
  for (auto _ : state) {
    const absl::Status status = run();
    if (!status.ok()) return state.SkipWithError(std::string(status.message()).c_str());
  }
  const int64_t size = state.range(0);
  state.SetItemsProcessed(state.iterations() * 3 * size * size * size);  // Multiply-adds.
}

void OneAndEight(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"n", "ranks"})->UseRealTime()->MeasureProcessCPUTime();
  bench->Unit(benchmark::kMillisecond);
  for (const int64_t size : {2048, 4096}) {
    for (const int ranks : {1, 8}) bench->Args({size, ranks});
  }
}
#define QUANTGATE_RANKS_BENCHMARK(name, recipe, arithmetic)                             \
  BENCHMARK_CAPTURE(BM_Layer, name##_column, recipe, arithmetic, ParallelMode::kColumn) \
      ->Apply(OneAndEight);                                                             \
  BENCHMARK_CAPTURE(BM_Layer, name##_row, recipe, arithmetic, ParallelMode::kRow)       \
      ->Apply(OneAndEight)
QUANTGATE_RANKS_BENCHMARK(fp8_current, "fp8_current", "sm90");
QUANTGATE_RANKS_BENCHMARK(bf16, "bf16", "sm90");
QUANTGATE_RANKS_BENCHMARK(mxfp8, "mxfp8", "sm100");

}  // namespace
}  // namespace quantgate
