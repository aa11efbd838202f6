// A linear layer and a transformer layer forward and backward on a GPU, beside what each is made of
// in the same run: its GEMMs, and a copy of device memory for the bytes that its other operations
// read and write. Environment variable QUANTGATE_BENCH_DIM: M = N = K of the linear layer, 8192
// unless set; QUANTGATE_BENCH_TOKENS: tokens and width of the transformer layer, 4096 unless set.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/engine/cuda_engine.h"
#include "kernels/layer/layer.h"
#include "tests/tensor/cuda_benchmark.h"

namespace quantgate {
namespace {

CudaEngine& BenchmarkEngine() {
  static CudaEngine& engine = *ValueOrDie(CudaEngine::Open(0)).release();
  return engine;
}

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}
int64_t Dim() { return FromEnvironment("QUANTGATE_BENCH_DIM", 8192); }
int64_t Tokens() { return FromEnvironment("QUANTGATE_BENCH_TOKENS", 4096); }

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

/// A copy that reads half of `bytes` and writes half.
void TimeCopy(benchmark::State& state, int64_t bytes) {
  CudaDevice& device = BenchmarkEngine().device();
  const Tensor from = ValueOrDie(device.AllocateZeroed(DType::kU8, {bytes / 2}));
  Tensor to = ValueOrDie(device.Allocate(DType::kU8, {bytes / 2}));
  TimeOnEngine(state, [&] {
    // Tells the engine of work that is no call of it. Otherwise nothing lies between the beginning
    // and the end of its stopwatch, which share one event: the time is 0, and the iterations grow.
    const std::unique_lock<std::mutex> held = BenchmarkEngine().HoldStream();
    return QG_CUDA_STATUS(cudaMemcpyAsync(to.data(), from.data(), to.byte_size(),
                                          cudaMemcpyDeviceToDevice, device.stream()));
  });
  state.SetBytesProcessed(state.iterations() * bytes);
}

/// What a quantizer moves for each element: two reads of bf16 (amax and cast), and one code in each
/// direction.
constexpr int64_t kQuantizerBytes = 2 * 2 + 2;

/// As many bytes as the quantizers of x, weight and grad_output move.
void BM_QuantizerBytesAsCopy(benchmark::State& state) {
  TimeCopy(state, 3 * Dim() * Dim() * kQuantizerBytes);
}

// The transformer layer: one sequence of Tokens() under a causal mask, width Tokens(), heads of 128
// columns, four times the width within its MLP.

LayerRequest MakeTransformerRequest() {
  const int64_t width = Tokens();
  uint64_t seed = 1;
  const auto make = [&seed](Shape shape) {
    GeneratorSpec spec;
    spec.seed = seed++;
    spec.shape = std::move(shape);
    spec.scale = 0.02f;
    return ValueOrDie(BenchmarkEngine().Generate(spec, nullptr));
  };
  LayerRequest request;
  request.layer.kind = LayerKind::kTransformerLayer;
  request.layer.norm.kind = NormKind::kRmsNorm;
  request.layer.attention.heads = width / 128;
  request.layer.attention.mask = AttentionMask::kCausal;
  request.x = make({Tokens(), width});
  request.grad_output = make({Tokens(), width});
  request.parameters = {
      {"norm1.gamma", make({width})},           {"norm2.gamma", make({width})},
      {"qkv.weight", make({3 * width, width})}, {"proj.weight", make({width, width})},
      {"fc1.weight", make({4 * width, width})}, {"fc2.weight", make({width, 4 * width})}};
  return request;
}

/// What the transformer layer's operations other than GEMMs read and write in bf16 and codes, each
/// operand once.
int64_t TransformerBytes() {
  const int64_t values = Tokens() * Tokens();        // Of one tensor as large as x.
  const int64_t scores = values * (Tokens() / 128);  // Of all heads.
  const int64_t linears = (3 + 1 + 4 + 4) * values;  // Elements of all weights.
  // x of qkv, proj, fc1 and fc2; grad_output of qkv, proj, fc1 and fc2; weights.
  const int64_t quantized = (1 + 1 + 1 + 4) * values + (3 + 1 + 4 + 1) * values + linears;
  // Forward: two norms, heads apart and together, softmax, GELU, two sums.
  const int64_t forward = 2 * 4 * values + (3 + 1) * 4 * values + (2 + 4 + 2) * scores +
                          4 * 4 * values + 2 * 6 * values;
  // Backward: GELU, two norms with a gradient that joins and one pass for gamma, heads apart and
  // together, softmax, probabilities rounded again.
  const int64_t backward = 4 * 6 * values + 2 * (8 + 4) * values + (1 + 3) * 4 * values +
                           (2 + 4 + 2) * scores + (4 + 2) * scores;
  return quantized * kQuantizerBytes + forward + backward;
}

void BM_Transformer(benchmark::State& state, const char* recipe_text) {
  const LayerRequest request = MakeTransformerRequest();
  const Recipe recipe = ValueOrDie(Recipe::Parse(recipe_text));
  TimeOnEngine(state, [&] {
    return RunLayer(BenchmarkEngine(), request, recipe, Arithmetic{}, nullptr).status();
  });
}

/// Its GEMMs on the operands that it had, those of attention on the first head's.
void BM_TransformerGemms(benchmark::State& state, const char* recipe_text) {
  const LayerResult layer =
      ValueOrDie(RunLayer(BenchmarkEngine(), MakeTransformerRequest(),
                          ValueOrDie(Recipe::Parse(recipe_text)), Arithmetic{}, nullptr));
  TimeOnEngine(state, [&]() -> absl::Status {
    for (const GemmRecord& gemm : layer.gemms) {
      for (int64_t i = 0; i < std::max<int64_t>(1, gemm.matrices); ++i) {
        QG_RETURN_IF_ERROR(BenchmarkEngine().Gemm(gemm.desc, nullptr).status());
      }
    }
    return absl::OkStatus();
  });
}

void BM_TransformerBytesAsCopy(benchmark::State& state) { TimeCopy(state, TransformerBytes()); }

#define QG_LAYER_BENCHMARK(function, recipe) \
  BENCHMARK_CAPTURE(function, recipe, #recipe)->UseManualTime()->Unit(benchmark::kMicrosecond)

QG_LAYER_BENCHMARK(BM_Layer, fp8_current);
QG_LAYER_BENCHMARK(BM_Gemms, fp8_current);
QG_LAYER_BENCHMARK(BM_Layer, fp8_block);
QG_LAYER_BENCHMARK(BM_Gemms, fp8_block);
QG_LAYER_BENCHMARK(BM_Layer, bf16);
QG_LAYER_BENCHMARK(BM_Gemms, bf16);
BENCHMARK(BM_QuantizerBytesAsCopy)->UseManualTime()->Unit(benchmark::kMicrosecond);
QG_LAYER_BENCHMARK(BM_Transformer, fp8_current);
QG_LAYER_BENCHMARK(BM_TransformerGemms, fp8_current);
QG_LAYER_BENCHMARK(BM_Transformer, bf16);
QG_LAYER_BENCHMARK(BM_TransformerGemms, bf16);
BENCHMARK(BM_TransformerBytesAsCopy)->UseManualTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace quantgate
