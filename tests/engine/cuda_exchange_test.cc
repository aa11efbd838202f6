// Several CUDA engines on one device: what one reads of another is there when it reads it, and
// stays until it has been read, whoever drops it.
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "kernels/base/cuda_status.h"
#include "kernels/engine/cuda_engine.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr int kEngines = 4;

std::vector<std::unique_ptr<CudaEngine>> OpenEngines(int count) {
  std::vector<std::unique_ptr<CudaEngine>> engines;
  for (int i = 0; i < count; ++i) {
    // On as many devices as there are.
    auto engine = CudaEngine::Open(i % CudaDevice::Count());
    EXPECT_TRUE(engine.ok()) << engine.status();
    engines.push_back(*std::move(engine));
  }
  return engines;
}

/// Work that keeps a stream busy for a while: what comes after it is not there yet.
void KeepBusy(Engine& engine) {
  GeneratorSpec spec;
  spec.distribution = Distribution::kNormal;
  spec.dtype = DType::kF32;
  spec.shape = {1 << 26};
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(engine.Generate(spec, nullptr).ok());
}

Tensor OnEngine(Engine& engine, uint64_t seed, Shape shape) {
  GeneratorSpec spec;
  spec.distribution = Distribution::kNormal;
  spec.seed = seed;
  spec.dtype = DType::kBF16;
  spec.shape = std::move(shape);
  auto tensor = engine.Generate(spec, nullptr);
  EXPECT_TRUE(tensor.ok()) << tensor.status();
  return *std::move(tensor);
}

Tensor Expected(uint64_t seed, Shape shape) {
  return Generated(Distribution::kNormal, seed, DType::kBF16, std::move(shape));
}

TEST(CudaExchange, ReadsWhatIsWrittenLater) {
  const auto engines = OpenEngines(2);
  const Shape shape = {513, 257};
  for (uint64_t round = 0; round < 20; ++round) {
    KeepBusy(*engines[0]);
    Tensor source = OnEngine(*engines[0], round, shape);
    const auto moment = engines[0]->MarkMoment();
    ASSERT_TRUE(moment.ok()) << moment.status();
    ASSERT_TRUE(engines[1]->WaitFor(**moment).ok());
    KeepBusy(*engines[1]);
    const auto imported = engines[1]->Import(source);
    ASSERT_TRUE(imported.ok()) << imported.status();
    // Dropped, and its memory asked for again, while the other engine has yet to read it.
    source = Tensor();
    OnEngine(*engines[0], 1000 + round, shape);
    EXPECT_TRUE(SameBits(*engines[1]->ToHost(*imported, nullptr), Expected(round, shape)));
  }
}

TEST(CudaExchange, CopiesToAnOffsetAndRefusesBeyond) {
  const auto engines = OpenEngines(2);
  const Tensor first = OnEngine(*engines[0], 1, {3, 5}), second = OnEngine(*engines[0], 2, {4, 5});
  const auto moment = *engines[0]->MarkMoment();
  ASSERT_TRUE(engines[1]->WaitFor(*moment).ok());
  const Tensor whole = *engines[1]->Allocate(DType::kBF16, {7, 5});
  const auto first_bytes = static_cast<int64_t>(first.byte_size());
  EXPECT_TRUE(engines[1]->Copy(second, whole, first_bytes).ok());
  EXPECT_TRUE(engines[1]->Copy(first, whole, 0).ok());
  EXPECT_EQ(engines[1]->Copy(first, whole, first_bytes * 2).code(),
            absl::StatusCode::kInvalidArgument);
  const Tensor expected =
      *ConcatenateRowsCpu({{Expected(1, {3, 5}), Expected(2, {4, 5})}}, ExecutionContext());
  EXPECT_TRUE(SameBits(*engines[1]->ToHost(whole, nullptr), expected));
  // From host memory too, and nothing of nothing.
  EXPECT_TRUE(engines[1]->Copy(Expected(3, {7, 5}), whole, 0).ok());
  EXPECT_TRUE(engines[1]->Copy(*engines[0]->Allocate(DType::kBF16, {0, 5}), whole, 70).ok());
  EXPECT_TRUE(SameBits(*engines[1]->ToHost(whole, nullptr), Expected(3, {7, 5})));
}

class StrangeMoment final : public Moment {};

TEST(CudaExchange, KnowsItsOwnMoments) {
  const auto engines = OpenEngines(1);
  EXPECT_EQ(engines[0]->WaitFor(StrangeMoment()).code(), absl::StatusCode::kInvalidArgument);
}

TEST(CudaExchange, FinishWaitsForEverythingThatWasAsked) {
  const auto engines = OpenEngines(1);
  CudaEngine& engine = *engines[0];
  const auto stream = reinterpret_cast<cudaStream_t>(engine.StreamHandle());
  ASSERT_EQ(stream, engine.device().stream());
  KeepBusy(engine);
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  ASSERT_TRUE(engine.Finish().ok());
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
}

/// A ring of ranks, each on its own thread, pass tensors on under load; every one must have gone
/// around unchanged. Threads meet on the host alone.
TEST(CudaExchange, ARingUnderLoad) {
  const auto engines = OpenEngines(kEngines);
  constexpr int kRounds = 24;
  const Shape shape = {1031, 127};
  struct Slot {
    Tensor tensor;
    std::shared_ptr<const Moment> moment;
  };
  std::vector<Slot> slots(kEngines);
  for (int rank = 0; rank < kEngines; ++rank) {
    slots[rank].tensor = OnEngine(*engines[rank], rank, shape);
    slots[rank].moment = *engines[rank]->MarkMoment();
  }
  for (int round = 0; round < kRounds; ++round) {
    std::vector<Slot> next(kEngines);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kEngines; ++rank) {
      threads.emplace_back([&, rank] {
        CudaEngine& engine = *engines[rank];
        const Slot& from = slots[(rank + 1) % kEngines];
        if ((round + rank) % 3 == 0) KeepBusy(engine);
        ASSERT_TRUE(engine.WaitFor(*from.moment).ok());
        const auto imported = engine.Import(from.tensor);
        ASSERT_TRUE(imported.ok()) << imported.status();
        next[rank].tensor = *engine.Cast(*imported, DType::kBF16, nullptr);
        next[rank].moment = *engine.MarkMoment();
      });
    }
    for (std::thread& thread : threads) thread.join();
    slots = std::move(next);  // Drops the tensors of the round before.
  }
  for (int rank = 0; rank < kEngines; ++rank) {
    const auto origin = static_cast<uint64_t>((rank + kRounds) % kEngines);
    EXPECT_TRUE(
        SameBits(*engines[rank]->ToHost(slots[rank].tensor, nullptr), Expected(origin, shape)))
        << rank;
  }
}

/// An engine that ends first: what it gave is still read by others, what it read is given back.
TEST(CudaExchange, EnginesEndInAnyOrder) {
  const Shape shape = {513, 257};
  auto engines = OpenEngines(3);
  KeepBusy(*engines[0]);
  Tensor source = OnEngine(*engines[0], 5, shape);
  auto moment = *engines[0]->MarkMoment();
  ASSERT_TRUE(engines[1]->WaitFor(*moment).ok());
  ASSERT_TRUE(engines[2]->WaitFor(*moment).ok());
  const Tensor kept = *engines[1]->Import(source), dropped = *engines[2]->Import(source);
  source = Tensor();
  engines[0].reset();
  engines[2].reset();
  moment.reset();
  EXPECT_TRUE(SameBits(*engines[1]->ToHost(kept, nullptr), Expected(5, shape)));
  EXPECT_TRUE(CudaHealth().ok()) << CudaHealth();
}

/// A rank on one device computes what the CPU computes while others of the same device do too.
TEST(CudaExchange, EnginesOfOneDeviceDoNotDisturbEachOther) {
  const auto engines = OpenEngines(kEngines);
  const Shape shape = {96, 320};
  const Quantizer quantizer(
      QuantizerSpec{.format = QuantizerFormat::kNvfp4, .element = DType::kF4E2M1x2});
  const auto gemm_of = [](Engine& engine, const Tensor& a, const char* arithmetic) {
    GemmDesc desc;
    desc.a.data = a;
    desc.b.data = a;
    desc.out_dtype = DType::kF32;
    desc.arithmetic = Arithmetic::Parse(arithmetic).value();
    return engine.Gemm(desc, nullptr);
  };
  const auto cpu = MakeCpuEngine({.threads = 1});
  std::vector<Tensor> expected_codes, expected_products;
  for (int rank = 0; rank < kEngines; ++rank) {
    const Tensor source = Expected(static_cast<uint64_t>(rank), shape);
    expected_codes.push_back(cpu->Quantize(source, quantizer, {}, {}, nullptr)->rowwise->data);
    expected_products.push_back(gemm_of(*cpu, source, "sm90")->d);
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kEngines; ++rank) {
    threads.emplace_back([&, rank] {
      CudaEngine& engine = *engines[rank];
      for (int round = 0; round < 20; ++round) {
        const Tensor source = OnEngine(engine, static_cast<uint64_t>(rank), shape);
        const auto quantized = engine.Quantize(source, quantizer, {}, {}, nullptr);
        ASSERT_TRUE(quantized.ok()) << quantized.status();
        ASSERT_TRUE(
            SameBits(*engine.ToHost(quantized->rowwise->data, nullptr), expected_codes[rank]));
        const auto product = gemm_of(engine, source, "cublaslt");
        ASSERT_TRUE(product.ok()) << product.status();
        ASSERT_TRUE(SameBits(*engine.ToHost(product->d, nullptr), expected_products[rank]));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// What a further engine takes of the device, said and bounded: workspace of GEMMs, nothing else.
TEST(CudaExchange, WhatAnEngineTakes) {
  const auto engines = OpenEngines(2);
  const int64_t bytes = engines[1]->Memory().bytes_in_use;
  RecordProperty("bytes_in_use", std::to_string(bytes));
  EXPECT_LE(bytes, int64_t{64} << 20);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
