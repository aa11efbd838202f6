// Quantization on a GPU beside a copy of its memory in the same run; compare bytes_per_second.
// Bytes are what must move: the source read once (twice where a scale waits for the amax), codes
// and scales written once. A call by itself pays for the host's way to the kernel, a tenth of the
// time at 256 MiB; queued ones do not, to be compared with queued copies.
#include "kernels/quantize/cuda/quantize_cuda.h"
#include "kernels/tensor/device/tensor_cuda.h"
#include "tests/tensor/cuda_benchmark.h"

namespace quantgate {
namespace {

constexpr int64_t kColumns = 8192;

BENCHMARK(BM_DeviceCopy)
    ->ArgName("bytes")
    ->Arg(256 << 20)
    ->Arg(1 << 30)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_DeviceCopyQueued)
    ->ArgName("bytes")
    ->Arg(256 << 20)
    ->Arg(1 << 30)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

/// state.range(0) bytes of normal numbers.
Tensor Source(benchmark::State& state, DType dtype) {
  return ValueOrDie(GenerateCuda(
      BenchmarkDevice(), {.distribution = Distribution::kNormal,
                          .seed = 1,
                          .dtype = dtype,
                          .shape = {state.range(0) / DTypeBytes(dtype) / kColumns, kColumns}}));
}

int64_t BytesOf(const QuantizedTensor& quantized) {
  int64_t bytes = 0;
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    const std::optional<QuantizedCopy>& copy = quantized.copy(usage);
    if (!copy.has_value()) continue;
    bytes += static_cast<int64_t>(copy->data.byte_size());
    if (copy->scale_inv.has_value()) bytes += static_cast<int64_t>(copy->scale_inv.byte_size());
  }
  return bytes;
}

void TimeQuantize(benchmark::State& state, const Quantizer& quantizer, Usages usages, Calls calls) {
  CudaDevice& device = BenchmarkDevice();
  const Tensor source = Source(state, DType::kBF16);
  const QuantizerSpec& spec = quantizer.rowwise;
  QuantizeArguments arguments;
  const bool is_delayed = spec.scaling == Scaling::kDelayed;
  if (is_delayed) arguments.scale = ValueOrDie(device.ToDevice(ValueOrDie(Tensor::FromScalar(80))));
  const bool reads_twice = spec.format == QuantizerFormat::kFp8Tensor && !is_delayed;
  int64_t bytes = 0;
  TimeOnDevice(
      state,
      [&] {
        const auto quantized = QuantizeCuda(device, source, quantizer, usages, arguments);
        if (quantized.ok()) bytes = BytesOf(*quantized);
        return quantized.status();
      },
      calls);
  bytes += static_cast<int64_t>(source.byte_size()) * (reads_twice ? 2 : 1);
  state.SetBytesProcessed(state.iterations() * bytes);
}

void BM_Quantize(benchmark::State& state, const Quantizer& quantizer, Usages usages) {
  TimeQuantize(state, quantizer, usages, Calls::kAlone);
}
void BM_QuantizeQueued(benchmark::State& state, const Quantizer& quantizer, Usages usages) {
  TimeQuantize(state, quantizer, usages, Calls::kQueued);
}

QuantizerSpec SpecOf(QuantizerFormat format, int block_dim = 1) {
  return {.format = format, .block_dim = block_dim};
}
QuantizerSpec Delayed() {
  return {.format = QuantizerFormat::kFp8Tensor, .scaling = Scaling::kDelayed};
}
QuantizerSpec Power2Blocks(int block_dim) {
  QuantizerSpec spec = SpecOf(QuantizerFormat::kFp8Block, block_dim);
  spec.power_2_scale = true;
  return spec;
}
/// A rule that the tuned kernels leave to the plain ones.
QuantizerSpec Away(QuantizerFormat format) {
  QuantizerSpec spec = SpecOf(format);
  spec.element_rounding = ElementRounding::kNearestAway;
  return spec;
}
QuantizerSpec Narrow(DType element) {
  QuantizerSpec spec = SpecOf(QuantizerFormat::kMxfp8);
  spec.element = element;
  return spec;
}

constexpr Usages kBoth = {true, true}, kRow = {true, false}, kColumn = {false, true};

void Sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("bytes")->Arg(256 << 20)->Arg(1 << 30)->UseManualTime();
  benchmark->Unit(benchmark::kMicrosecond);
}
void OneSize(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("bytes")->Arg(256 << 20)->UseManualTime();
  benchmark->Unit(benchmark::kMicrosecond);
}
using Format = QuantizerFormat;
BENCHMARK_CAPTURE(BM_Quantize, fp8_tensor, SpecOf(Format::kFp8Tensor), kBoth)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Quantize, fp8_tensor_row, SpecOf(Format::kFp8Tensor), kRow)->Apply(OneSize);
BENCHMARK_CAPTURE(BM_Quantize, fp8_tensor_delayed, Delayed(), kBoth)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Quantize, fp8_block, Power2Blocks(1), kBoth)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Quantize, fp8_block_row, Power2Blocks(1), kRow)->Apply(OneSize);
BENCHMARK_CAPTURE(BM_Quantize, fp8_block_column, Power2Blocks(1), kColumn)->Apply(OneSize);
BENCHMARK_CAPTURE(BM_Quantize, fp8_block_tiles, Power2Blocks(2), kBoth)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Quantize, mxfp8, SpecOf(Format::kMxfp8), kBoth)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Quantize, mxfp8_row, SpecOf(Format::kMxfp8), kRow)->Apply(OneSize);
BENCHMARK_CAPTURE(BM_Quantize, mxfp8_tiles, SpecOf(Format::kMxfp8, 2), kBoth)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_Quantize, mxfp6, Narrow(DType::kF6E2M3), kBoth)->Apply(OneSize);
BENCHMARK_CAPTURE(BM_Quantize, fp8_tensor_plain, Away(Format::kFp8Tensor), kBoth)->Apply(OneSize);
BENCHMARK_CAPTURE(BM_Quantize, fp8_block_plain, Away(Format::kFp8Block), kBoth)->Apply(OneSize);
BENCHMARK_CAPTURE(BM_Quantize, mxfp8_plain, Away(Format::kMxfp8), kBoth)->Apply(OneSize);
BENCHMARK_CAPTURE(BM_Quantize, identity, SpecOf(Format::kIdentity), kRow)->Apply(OneSize);
BENCHMARK_CAPTURE(BM_QuantizeQueued, fp8_tensor, SpecOf(Format::kFp8Tensor), kBoth)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_QuantizeQueued, fp8_block, Power2Blocks(1), kBoth)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_QuantizeQueued, fp8_block_tiles, Power2Blocks(2), kBoth)->Apply(Sizes);
BENCHMARK_CAPTURE(BM_QuantizeQueued, mxfp8, SpecOf(Format::kMxfp8), kBoth)->Apply(Sizes);

void BM_Dequantize(benchmark::State& state, const Quantizer& quantizer, Usage usage) {
  CudaDevice& device = BenchmarkDevice();
  const Tensor source = Source(state, DType::kBF16);
  const QuantizedTensor quantized = ValueOrDie(QuantizeCuda(
      device, source, quantizer, {usage == Usage::kRowwise, usage == Usage::kColumnwise}, {}));
  TimeOnDevice(state,
               [&] { return DequantizeCuda(device, quantized, usage, DType::kBF16).status(); });
  state.SetBytesProcessed(state.iterations() *
                          (BytesOf(quantized) + static_cast<int64_t>(source.byte_size())));
}
BENCHMARK_CAPTURE(BM_Dequantize, fp8_tensor, SpecOf(Format::kFp8Tensor), Usage::kRowwise)
    ->Apply(OneSize);
BENCHMARK_CAPTURE(BM_Dequantize, fp8_block_column, Power2Blocks(1), Usage::kColumnwise)
    ->Apply(OneSize);
BENCHMARK_CAPTURE(BM_Dequantize, mxfp8, SpecOf(Format::kMxfp8), Usage::kRowwise)->Apply(OneSize);

void BM_Summarize(benchmark::State& state, const Quantizer& quantizer) {
  CudaDevice& device = BenchmarkDevice();
  const QuantizedTensor quantized =
      ValueOrDie(QuantizeCuda(device, Source(state, DType::kBF16), quantizer, kBoth, {}));
  TimeOnDevice(state, [&] { return SummarizeCuda(device, {&quantized, 1}).status(); });
}
BENCHMARK_CAPTURE(BM_Summarize, mxfp8, SpecOf(Format::kMxfp8))->Apply(OneSize);

}  // namespace
}  // namespace quantgate
