// NVFP4 on a GPU beside a copy of device memory in the same run; compare bytes_per_second. Bytes
// are what must move: the source once for its amaxes and once for its codes, codes and scales once.
#include <benchmark/benchmark.h>

#include "kernels/quantize/nvfp4/quantize_nvfp4_cuda.h"
#include "kernels/tensor/generate/generate.h"
#include "tests/tensor/cuda_benchmark.h"

namespace quantgate {
namespace {

constexpr int64_t kColumns = 16384;

/// `rows` x kColumns of bf16, a pattern of 4 MiB over and over.
Tensor Source(int64_t rows) {
  CudaDevice& device = BenchmarkDevice();
  const int64_t some = 128;
  const Tensor pattern = *device.ToDevice(
      *Generate({.seed = 1, .dtype = DType::kBF16, .shape = {some, kColumns}}, {}));
  Tensor source = ValueOrDie(device.Allocate(DType::kBF16, {rows, kColumns}));
  for (size_t at = 0; at < source.byte_size(); at += pattern.byte_size()) {
    DieUnlessOk(
        QG_CUDA_STATUS(cudaMemcpyAsync(source.data() + at, pattern.data(), pattern.byte_size(),
                                       cudaMemcpyDeviceToDevice, device.stream())));
  }
  return source;
}

QuantizerSpec Spec(ElementRounding rounding, bool hadamard, int block_dim = 1) {
  QuantizerSpec spec = {.format = QuantizerFormat::kNvfp4, .element = DType::kF4E2M1x2};
  spec.element_rounding = rounding;
  spec.hadamard = hadamard;
  spec.block_dim = block_dim;
  return spec;
}

void Quantize(benchmark::State& state, const QuantizerSpec& spec, Usages usages,
              Nvfp4Path path = Nvfp4Path::kTuned) {
  CudaDevice& device = BenchmarkDevice();
  const Tensor source = Source(state.range(0));
  Tensor counts = ValueOrDie(device.AllocateZeroed(DType::kI64, {kQuantizationCountKinds}));
  TimeOnDevice(state, [&] {
    QuantizedCopy rowwise, columnwise;
    return QuantizeNvfp4Cuda(device, source, spec, usages.rowwise ? &rowwise : nullptr,
                             usages.columnwise ? &columnwise : nullptr, {.seed = 9}, counts, path);
  });
  const int64_t elements = source.element_count();
  const int64_t written = elements / 2 + elements / 16;
  const int copies = (usages.rowwise ? 1 : 0) + (usages.columnwise ? 1 : 0);
  state.SetBytesProcessed(state.iterations() * (2 * 2 * elements + copies * written));
}

constexpr Usages kBoth = {true, true}, kRowwise = {true, false}, kColumnwise = {false, true};
constexpr auto kNearest = ElementRounding::kNearestEven;
constexpr auto kStochastic = ElementRounding::kStochastic;

void Sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("rows")->Arg(8192)->Arg(16384)->UseManualTime()->Unit(benchmark::kMicrosecond);
}

BENCHMARK(BM_DeviceCopy)
    ->Arg(int64_t{256} << 20)
    ->Arg(int64_t{512} << 20)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Quantize, gradient, Spec(kStochastic, true), kBoth)->Apply(Sizes);
BENCHMARK_CAPTURE(Quantize, activation, Spec(kNearest, true), kBoth)->Apply(Sizes);
BENCHMARK_CAPTURE(Quantize, weight_tiles, Spec(kNearest, false, 2), kBoth)->Apply(Sizes);
BENCHMARK_CAPTURE(Quantize, nearest_rowwise, Spec(kNearest, false), kRowwise)->Apply(Sizes);
BENCHMARK_CAPTURE(Quantize, stochastic_rowwise, Spec(kStochastic, false), kRowwise)->Apply(Sizes);
BENCHMARK_CAPTURE(Quantize, stochastic_columnwise, Spec(kStochastic, true), kColumnwise)
    ->Apply(Sizes);
BENCHMARK_CAPTURE(Quantize, gradient_plain, Spec(kStochastic, true), kBoth, Nvfp4Path::kPlain)
    ->Apply(Sizes);

void BM_Dequantize(benchmark::State& state) {
  CudaDevice& device = BenchmarkDevice();
  const Tensor source = Source(state.range(0));
  QuantizedCopy rowwise;
  Tensor counts;
  DieUnlessOk(
      QuantizeNvfp4Cuda(device, source, Spec(kNearest, false), &rowwise, nullptr, {}, counts));
  Tensor out = ValueOrDie(device.Allocate(DType::kBF16, source.shape()));
  TimeOnDevice(state, [&] { return DequantizeNvfp4Cuda(device, rowwise, out); });
  const int64_t elements = source.element_count();
  state.SetBytesProcessed(state.iterations() * (2 * elements + elements / 2 + elements / 16));
}
BENCHMARK(BM_Dequantize)->Apply(Sizes);

}  // namespace
}  // namespace quantgate
