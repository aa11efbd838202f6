// A linear layer forward and backward on a GPU, beside what it is made of in the same run: its
// three GEMMs, and a copy of device memory for the bytes that its quantizers read and write.
// Environment variable QUANTGATE_BENCH_DIM: M = N = K, 8192 unless set.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <string>

#include "kernels/engine/cuda_engine.h"
#include "kernels/layer/layer.h"
#include "tests/tensor/cuda_benchmark.h"

namespace quantgate {
namespace {

CudaEngine& BenchmarkEngine() {
  static CudaEngine& engine = *ValueOrDie(CudaEngine::Open(0)).release();
  return engine;
}

int64_t Dim() {
  const char* text = std::getenv("QUANTGATE_BENCH_DIM");
  return text == nullptr ? 8192 : std::atoll(text);
}

LayerRequest MakeRequest() {
  const auto make = [](uint64_t seed) {
    GeneratorSpec spec;
    spec.seed = seed;
    spec.shape = {Dim(), Dim()};
    return ValueOrDie(BenchmarkEngine().Generate(spec, nullptr));
  };
  LayerRequest request;
  request.x = make(1);
  request.parameters["weight"] = make(2);
  request.grad_output = make(3);
  return request;
}

/// Events on the engine's own stream, host time between the launches included.
template <typename Body>
void TimeOnEngine(benchmark::State& state, Body body) {
  DieUnlessOk(body());
  for (auto _ : state) {
    const std::unique_ptr<Stopwatch> stopwatch = BenchmarkEngine().StartStopwatch();
    DieUnlessOk(body());
    DieUnlessOk(stopwatch->Stop());
    state.SetIterationTime(ValueOrDie(stopwatch->Seconds()));
  }
}

void BM_Layer(benchmark::State& state, const char* recipe_text) {
  const LayerRequest request = MakeRequest();
  const Recipe recipe = ValueOrDie(Recipe::Parse(recipe_text));
  TimeOnEngine(state, [&] {
    return RunLayer(BenchmarkEngine(), request, recipe, Arithmetic{}, nullptr).status();
  });
}

/// The layer's GEMMs on the operands that it had, back to back.
void BM_Gemms(benchmark::State& state, const char* recipe_text) {
  const LayerRequest request = MakeRequest();
  const Recipe recipe = ValueOrDie(Recipe::Parse(recipe_text));
  const LayerResult layer =
      ValueOrDie(RunLayer(BenchmarkEngine(), request, recipe, Arithmetic{}, nullptr));
  TimeOnEngine(state, [&]() -> absl::Status {
    for (const GemmRecord& gemm : layer.gemms) {
      QG_RETURN_IF_ERROR(BenchmarkEngine().Gemm(gemm.desc, nullptr).status());
    }
    return absl::OkStatus();
  });
}

/// As many bytes as the quantizers of x, weight and grad_output move: two reads of bf16 (amax and
/// cast) and one code in each direction, by a copy that reads half of them and writes half.
void BM_QuantizerBytesAsCopy(benchmark::State& state) {
  const int64_t elements = Dim() * Dim();
  const int64_t bytes = 3 * elements * (2 * 2 + 2);
  CudaDevice& device = BenchmarkEngine().device();
  const Tensor from = ValueOrDie(device.AllocateZeroed(DType::kU8, {bytes / 2}));
  Tensor to = ValueOrDie(device.Allocate(DType::kU8, {bytes / 2}));
  TimeOnEngine(state, [&] {
    return QG_CUDA_STATUS(cudaMemcpyAsync(to.data(), from.data(), to.byte_size(),
                                          cudaMemcpyDeviceToDevice, device.stream()));
  });
  state.SetBytesProcessed(state.iterations() * bytes);
}

#define QG_LAYER_BENCHMARK(function, recipe) \
  BENCHMARK_CAPTURE(function, recipe, #recipe)->UseManualTime()->Unit(benchmark::kMicrosecond)

QG_LAYER_BENCHMARK(BM_Layer, fp8_current);
QG_LAYER_BENCHMARK(BM_Gemms, fp8_current);
QG_LAYER_BENCHMARK(BM_Layer, fp8_block);
QG_LAYER_BENCHMARK(BM_Gemms, fp8_block);
QG_LAYER_BENCHMARK(BM_Layer, bf16);
QG_LAYER_BENCHMARK(BM_Gemms, bf16);
BENCHMARK(BM_QuantizerBytesAsCopy)->UseManualTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace quantgate
