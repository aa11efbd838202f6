// Quantization against memcpy in the same run; compare bytes_per_second. Bytes are what must move:
// a copy reads and writes every byte once. BM_Quantize counts the per-tensor source twice (amax,
// cast), QuantizeBoth what it reads once and writes once.
#include <benchmark/benchmark.h>

#include <cstring>

#include "kernels/quantize/quantizer.h"
#include "kernels/tensor/column_sums.h"
#include "kernels/tensor/convert.h"
#include "kernels/tensor/fingerprint.h"
#include "kernels/tensor/generate/generate.h"
#include "kernels/tensor/transpose.h"

namespace quantgate {
namespace {

constexpr int64_t kBytes = 64 << 20;

Tensor Source(DType dtype) {
  const int64_t columns = 4096;
  return *Generate({.distribution = Distribution::kNormal,
                    .seed = 1,
                    .dtype = dtype,
                    .shape = {kBytes / DTypeBytes(dtype) / columns, columns}},
                   {});
}

ExecutionContext Context(benchmark::State& state) {
  ExecutionContext context;
  context.isa = static_cast<Isa>(state.range(0));
  context.threads = static_cast<int>(state.range(1));
  if (context.isa > BestIsa()) state.SkipWithError("instruction set not available");
  state.SetLabel(std::string(IsaName(context.isa)));
  return context;
}

void SetBytes(benchmark::State& state, int64_t bytes) {
  state.SetBytesProcessed(state.iterations() * bytes);
}

/// memcpy of a 64 MiB tensor into memory that is already there, on state.range(0) threads.
void BM_Memcpy(benchmark::State& state) {
  const Tensor from = Source(DType::kBF16);
  Tensor to = *Tensor::FromBytes(from.dtype(), from.shape(), from.bytes());
  ExecutionContext context;
  context.threads = static_cast<int>(state.range(0));
  const int64_t grain = kBytes / context.threads;
  for (auto _ : state) {
    ParallelFor(context, kBytes, grain, [&](int64_t begin, int64_t end) {
      std::memcpy(to.data() + begin, from.data() + begin, static_cast<size_t>(end - begin));
    });
    benchmark::ClobberMemory();
  }
  SetBytes(state, 2 * kBytes);
}
BENCHMARK(BM_Memcpy)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime();

template <DType kSource>
void BM_Quantize(benchmark::State& state) {
  const ExecutionContext context = Context(state);
  const Tensor source = Source(kSource);
  const QuantizerSpec spec = {.format = QuantizerFormat::kFp8Tensor};
  for (auto _ : state) {
    benchmark::DoNotOptimize(QuantizeCpu(source, spec, {}, {}, context)->rowwise->data.data());
  }
  SetBytes(state, 2 * kBytes + source.element_count());
}

/// Reads the source once from memory, and a second time from the caches.
template <DType kSource>
void BM_QuantizeRows(benchmark::State& state) {
  const ExecutionContext context = Context(state);
  const Tensor source = Source(kSource);
  const QuantizerSpec spec = {.format = QuantizerFormat::kFp8Rowwise};
  for (auto _ : state) {
    benchmark::DoNotOptimize(QuantizeCpu(source, spec, {}, {}, context)->rowwise->data.data());
  }
  SetBytes(state, kBytes + source.element_count());
}

void EveryPath(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"isa", "threads"})->UseRealTime()->Unit(benchmark::kMillisecond);
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    for (const int threads : {1, 2}) benchmark->Args({static_cast<int>(isa), threads});
  }
}
BENCHMARK_TEMPLATE(BM_Quantize, DType::kBF16)->Apply(EveryPath);
BENCHMARK_TEMPLATE(BM_Quantize, DType::kF32)->Apply(EveryPath);
BENCHMARK_TEMPLATE(BM_Quantize, DType::kF16)->Apply(EveryPath);
BENCHMARK_TEMPLATE(BM_QuantizeRows, DType::kBF16)->Apply(EveryPath);
BENCHMARK_TEMPLATE(BM_QuantizeRows, DType::kF32)->Apply(EveryPath);

void BestPath(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"isa", "threads"})->UseRealTime()->Unit(benchmark::kMillisecond);
  for (const int threads : {1, 2}) benchmark->Args({static_cast<int>(BestIsa()), threads});
}

// ---- every format, from bf16 unless said; bytes: read once, written once

Quantizer Fp8Tensor() { return QuantizerSpec{.format = QuantizerFormat::kFp8Tensor}; }

Quantizer Fp8Rowwise() { return QuantizerSpec{.format = QuantizerFormat::kFp8Rowwise}; }

Quantizer Fp8Block(int block_dim) {
  QuantizerSpec spec = {.format = QuantizerFormat::kFp8Block, .block_dim = block_dim};
  spec.power_2_scale = true;
  return spec;
}

Quantizer Mx(DType element, int block_dim) {
  return QuantizerSpec{
      .format = QuantizerFormat::kMxfp8, .element = element, .block_dim = block_dim};
}

/// With stochastic rounding: of gradients, both directions, the columnwise one transformed.
Quantizer Nvfp4(int block_dim, bool is_stochastic) {
  QuantizerSpec spec = {.format = QuantizerFormat::kNvfp4, .element = DType::kF4E2M1x2};
  spec.block_dim = block_dim;
  if (is_stochastic) spec.element_rounding = ElementRounding::kStochastic;
  Quantizer quantizer(spec);
  quantizer.columnwise.hadamard = is_stochastic;
  return quantizer;
}

Quantizer FourOverSixNvfp4(int block_dim, FourOverSix error) {
  Quantizer quantizer = Nvfp4(block_dim, false);
  quantizer.rowwise.four_over_six = error;
  quantizer.rowwise.e4m3_max = 256;
  quantizer.columnwise = quantizer.rowwise;
  return quantizer;
}

void QuantizeCopies(benchmark::State& state, const Quantizer& quantizer, Usages usages,
                    DType dtype = DType::kBF16) {
  const ExecutionContext context = Context(state);
  const Tensor source = Source(dtype);
  int64_t bytes = 0;
  for (auto _ : state) {
    const QuantizedTensor q = *QuantizeCpu(source, quantizer, usages, {}, context);
    bytes = kBytes;
    for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
      if (!q.copy(usage).has_value()) continue;
      bytes += static_cast<int64_t>(q.copy(usage)->data.byte_size() +
                                    q.copy(usage)->scale_inv.byte_size());
    }
  }
  SetBytes(state, bytes);
  state.SetItemsProcessed(state.iterations() * source.element_count());
}

void QuantizeBoth(benchmark::State& state, const Quantizer& quantizer) {
  QuantizeCopies(state, quantizer, {true, true});
}

void EveryIsa(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"isa", "threads"})->UseRealTime()->Unit(benchmark::kMillisecond);
  for (const Isa isa : RunnableIsas()) benchmark->Args({static_cast<int>(isa), 1});
}
BENCHMARK_CAPTURE(QuantizeBoth, fp8_tensor, Fp8Tensor())->Apply(EveryIsa);
BENCHMARK_CAPTURE(QuantizeBoth, fp8_rowwise, Fp8Rowwise())->Apply(EveryIsa);
BENCHMARK_CAPTURE(QuantizeBoth, fp8_block, Fp8Block(1))->Apply(EveryIsa);
BENCHMARK_CAPTURE(QuantizeBoth, fp8_block_tiles, Fp8Block(2))->Apply(EveryIsa);
BENCHMARK_CAPTURE(QuantizeBoth, mxfp8, Mx(DType::kF8E4M3, 1))->Apply(EveryIsa);
BENCHMARK_CAPTURE(QuantizeBoth, mxfp8_tiles, Mx(DType::kF8E4M3, 2))->Apply(EveryIsa);
BENCHMARK_CAPTURE(QuantizeBoth, mxfp6_e2m3, Mx(DType::kF6E2M3, 1))->Apply(EveryIsa);
BENCHMARK_CAPTURE(QuantizeBoth, mxfp6_e3m2, Mx(DType::kF6E3M2, 1))->Apply(EveryIsa);
BENCHMARK_CAPTURE(QuantizeBoth, mxfp4, Mx(DType::kF4E2M1x2, 1))->Apply(EveryIsa);
BENCHMARK_CAPTURE(QuantizeBoth, mxfp4_tiles, Mx(DType::kF4E2M1x2, 2))->Apply(EveryIsa);
BENCHMARK_CAPTURE(QuantizeBoth, nvfp4, Nvfp4(1, false))->Apply(EveryIsa);
BENCHMARK_CAPTURE(QuantizeBoth, nvfp4_tiles, Nvfp4(2, false))->Apply(EveryIsa);
BENCHMARK_CAPTURE(QuantizeBoth, nvfp4_hadamard_stochastic, Nvfp4(1, true))->Apply(EveryIsa);
BENCHMARK_CAPTURE(QuantizeBoth, nvfp4_4over6, FourOverSixNvfp4(1, FourOverSix::kMae))
    ->Apply(EveryIsa);
BENCHMARK_CAPTURE(QuantizeBoth, nvfp4_4over6_tiles, FourOverSixNvfp4(2, FourOverSix::kMse))
    ->Apply(EveryIsa);

constexpr Usages kRowwiseAlone = {true, false};

/// A format of levels by its usual rule; group 0 is the usual one.
Quantizer LevelCodes(QuantizerFormat format, int group = 0) {
  QuantizerSpec spec = {.format = format, .element = TraitsOf(format).elements.front()};
  spec.group = group;
  return spec;
}
// Beside formats that read and write as many bytes: fp8_rowwise and fp8_tensor.
BENCHMARK_CAPTURE(QuantizeCopies, fp8_rowwise, Fp8Rowwise(), kRowwiseAlone)->Apply(EveryIsa);
BENCHMARK_CAPTURE(QuantizeCopies, int8, LevelCodes(QuantizerFormat::kInt8), kRowwiseAlone)
    ->Apply(EveryIsa);
BENCHMARK_CAPTURE(QuantizeCopies, fp8_rowwise_f32, Fp8Rowwise(), kRowwiseAlone, DType::kF32)
    ->Apply(EveryIsa);
BENCHMARK_CAPTURE(QuantizeCopies, int8_f32, LevelCodes(QuantizerFormat::kInt8), kRowwiseAlone,
                  DType::kF32)
    ->Apply(EveryIsa);
BENCHMARK_CAPTURE(QuantizeCopies, fp8_tensor, Fp8Tensor(), kRowwiseAlone)->Apply(EveryIsa);
BENCHMARK_CAPTURE(QuantizeCopies, int8_tensor, LevelCodes(QuantizerFormat::kInt8, kTensorGroup),
                  kRowwiseAlone)
    ->Apply(EveryIsa);
BENCHMARK_CAPTURE(QuantizeCopies, int4, LevelCodes(QuantizerFormat::kInt4), kRowwiseAlone)
    ->Apply(EveryIsa);
BENCHMARK_CAPTURE(QuantizeCopies, nf4, LevelCodes(QuantizerFormat::kNf4), kRowwiseAlone)
    ->Apply(EveryIsa);
BENCHMARK_CAPTURE(QuantizeBoth, int8, LevelCodes(QuantizerFormat::kInt8))->Apply(EveryIsa);
BENCHMARK_CAPTURE(QuantizeCopies, nvfp4, Nvfp4(1, false), kRowwiseAlone)->Apply(EveryIsa);
BENCHMARK_CAPTURE(QuantizeCopies, nvfp4_4over6, FourOverSixNvfp4(1, FourOverSix::kMae),
                  kRowwiseAlone)
    ->Apply(EveryIsa);
BENCHMARK_CAPTURE(QuantizeCopies, nvfp4_4over6_mse, FourOverSixNvfp4(1, FourOverSix::kMse),
                  kRowwiseAlone)
    ->Apply(EveryIsa);
BENCHMARK_CAPTURE(QuantizeCopies, nvfp4_4over6_tiles, FourOverSixNvfp4(2, FourOverSix::kMae),
                  kRowwiseAlone)
    ->Apply(EveryIsa);
/// 64 MiB are half as many elements.
BENCHMARK_CAPTURE(QuantizeCopies, nvfp4_4over6_f32, FourOverSixNvfp4(1, FourOverSix::kMae),
                  kRowwiseAlone, DType::kF32)
    ->Apply(EveryIsa);

void Dequantize(benchmark::State& state, const Quantizer& quantizer, Usage usage, DType out) {
  const ExecutionContext context = Context(state);
  const QuantizedTensor quantized =
      *QuantizeCpu(Source(DType::kBF16), quantizer, {true, true}, {}, context);
  int64_t bytes = 0;
  for (auto _ : state) {
    const Tensor values = *DequantizeCpu(quantized, usage, out, context);
    bytes = static_cast<int64_t>(values.byte_size() + quantized.copy(usage)->data.byte_size());
  }
  SetBytes(state, bytes);
  state.SetItemsProcessed(state.iterations() * kBytes / 2);
}
BENCHMARK_CAPTURE(Dequantize, fp8_tensor, Fp8Tensor(), Usage::kRowwise, DType::kBF16)
    ->Apply(BestPath);
BENCHMARK_CAPTURE(Dequantize, fp8_block, Fp8Block(1), Usage::kRowwise, DType::kBF16)
    ->Apply(BestPath);
BENCHMARK_CAPTURE(Dequantize, fp8_block_columnwise, Fp8Block(2), Usage::kColumnwise, DType::kBF16)
    ->Apply(BestPath);
BENCHMARK_CAPTURE(Dequantize, mxfp8, Mx(DType::kF8E4M3, 1), Usage::kRowwise, DType::kBF16)
    ->Apply(BestPath);
BENCHMARK_CAPTURE(Dequantize, mxfp8_to_f16, Mx(DType::kF8E4M3, 1), Usage::kRowwise, DType::kF16)
    ->Apply(BestPath);
BENCHMARK_CAPTURE(Dequantize, mxfp8_to_f32, Mx(DType::kF8E4M3, 1), Usage::kRowwise, DType::kF32)
    ->Apply(BestPath);
BENCHMARK_CAPTURE(Dequantize, mxfp8_columnwise, Mx(DType::kF8E4M3, 1), Usage::kColumnwise,
                  DType::kBF16)
    ->Apply(BestPath);
BENCHMARK_CAPTURE(Dequantize, nvfp4, Nvfp4(1, false), Usage::kRowwise, DType::kBF16)
    ->Apply(BestPath);

void BM_TransposeBytes(benchmark::State& state) {
  const ExecutionContext context = Context(state);
  const Tensor codes = *Source(DType::kBF16).Reinterpret(DType::kU8, {kBytes / 4096, 4096});
  for (auto _ : state) benchmark::DoNotOptimize(Transpose2d(codes, context)->data());
  SetBytes(state, 2 * kBytes);
}
BENCHMARK(BM_TransposeBytes)->Apply(BestPath);

void BM_ColumnSums(benchmark::State& state) {
  const ExecutionContext context = Context(state);
  const Tensor source = Source(DType::kBF16);
  for (auto _ : state) {
    benchmark::DoNotOptimize(ColumnSums(source, DType::kF32, context)->data());
  }
  SetBytes(state, kBytes);
}
BENCHMARK(BM_ColumnSums)->Apply(BestPath);

void BM_CastF32ToBf16(benchmark::State& state) {
  const ExecutionContext context = Context(state);
  const Tensor source = Source(DType::kF32);
  for (auto _ : state) {
    benchmark::DoNotOptimize(CastTensor(source, DType::kBF16, context)->data());
  }
  SetBytes(state, kBytes + kBytes / 2);
}
BENCHMARK(BM_CastF32ToBf16)->Apply(BestPath);

void BM_CastF32ToF16(benchmark::State& state) {
  const ExecutionContext context = Context(state);
  const Tensor source = Source(DType::kF32);
  for (auto _ : state) {
    benchmark::DoNotOptimize(CastTensor(source, DType::kF16, context)->data());
  }
  SetBytes(state, kBytes + kBytes / 2);
}
BENCHMARK(BM_CastF32ToF16)->Apply(BestPath);

void BM_Fingerprint(benchmark::State& state) {
  const ExecutionContext context = Context(state);
  const Tensor source = Source(DType::kBF16);
  for (auto _ : state) benchmark::DoNotOptimize(FingerprintOf(source, context));
  SetBytes(state, kBytes);
}
BENCHMARK(BM_Fingerprint)->Apply(BestPath);

void BM_GenerateNormal(benchmark::State& state) {
  const ExecutionContext context = Context(state);
  const GeneratorSpec spec = {.shape = {kBytes / 16, 8}};
  for (auto _ : state) benchmark::DoNotOptimize(Generate(spec, context)->data());
  SetBytes(state, kBytes);
}
BENCHMARK(BM_GenerateNormal)->Apply(BestPath);

}  // namespace
}  // namespace quantgate
