// The CPU engine hands each operation on with its arguments, code path, threads and cancellation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/engine/engine.h"
#include "kernels/tensor/column_sums.h"
#include "tests/engine/engine_ops.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

struct Inputs {
  Tensor a = Generated(Distribution::kNormal, 1, DType::kBF16, {24, 64});
  Tensor b = Generated(Distribution::kNormal, 2, DType::kBF16, {40, 64});
  QuantizerSpec quantizer{.format = QuantizerFormat::kFp8Tensor, .element = DType::kF8E5M2};

  GemmDesc Desc() const {
    GemmDesc desc;
    desc.a.data = a;
    desc.b.data = b;
    desc.out_dtype = DType::kBF16;
    return desc;
  }
};

TEST(CpuEngine, DescribesProcessorCodePathAndThreads) {
  const DeviceDescription device = MakeCpuEngine({Isa::kAvx2, 3})->Describe();
  EXPECT_EQ(device.id, "cpu");
  EXPECT_TRUE(device.name.ends_with(", 3 threads")) << device.name;
  EXPECT_GT(device.name.size(), std::string(", 3 threads").size());
  EXPECT_EQ(device.architecture, "x86-64 avx2");
  EXPECT_TRUE(device.driver.empty());
}

TEST(CpuEngine, GivesWhatTheOperationsGive) {
  const Inputs in;
  const ExecutionContext context;
  const auto engine = MakeCpuEngine({});

  GeneratorSpec spec;
  spec.seed = 7;
  spec.shape = {5, 3};
  EXPECT_TRUE(SameBits(*engine->Generate(spec, nullptr), *Generate(spec, context)));
  const Tensor wide = *engine->Cast(in.a, DType::kF32, nullptr);
  EXPECT_TRUE(SameBits(wide, *CastTensor(in.a, DType::kF32, context)));

  const Usages both{true, true};
  const QuantizedTensor q = *engine->Quantize(in.a, in.quantizer, both, {}, nullptr);
  const QuantizedTensor direct = *QuantizeCpu(in.a, in.quantizer, both, {}, context);
  EXPECT_TRUE(SameBits(q.rowwise->data, direct.rowwise->data));
  EXPECT_TRUE(SameBits(q.columnwise->data, direct.columnwise->data));
  EXPECT_TRUE(SameBits(q.rowwise->scale, direct.rowwise->scale));
  for (Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    EXPECT_TRUE(SameBits(*engine->Dequantize(q, usage, DType::kF16, nullptr),
                         *DequantizeCpu(direct, usage, DType::kF16, context)));
  }

  const GemmResult gemm = *engine->Gemm(in.Desc(), nullptr);
  EXPECT_TRUE(SameBits(gemm.d, GemmCpu(in.Desc(), context)->d));
  EXPECT_TRUE(SameBits(*engine->ColumnSums(in.a, DType::kF32, nullptr),
                       *ColumnSums(in.a, DType::kF32, context)));
  const ActivationOptions swiglu = {.kind = ActivationKind::kSwiglu};
  const Tensor y = *engine->ActivationForward(in.a, swiglu, DType::kF16, nullptr);
  EXPECT_TRUE(SameBits(y, *ActivationForwardCpu(in.a, swiglu, DType::kF16, context)));
  EXPECT_TRUE(SameBits(*engine->ActivationBackward(y, in.a, swiglu, DType::kBF16, nullptr),
                       *ActivationBackwardCpu(y, in.a, swiglu, DType::kBF16, context)));
  EXPECT_EQ(*engine->FingerprintOf(in.a, nullptr), FingerprintOf(in.a, context));
}

TEST(CpuEngine, ComparesSubjectWithReference) {
  const auto engine = MakeCpuEngine({});
  const Tensor subject = FromValues(DType::kBF16, {1, 3}, {1, 2, 5});
  const Tensor reference = FromValues(DType::kBF16, {1, 3}, {1, 2, 4});
  const Tensor truth = FromValues(DType::kF32, {1, 3}, {1, 2, 4.25});
  const ParityReport parity = *engine->CompareBits(subject, reference, nullptr);
  EXPECT_EQ(parity.mismatch_count, 1);
  EXPECT_EQ(parity.first.subject, 5);
  EXPECT_EQ(parity.first.reference, 4);
  EXPECT_EQ(engine->MeasureError(subject, reference, nullptr)->max_abs, 1);
  const NearerReport nearer = *engine->MeasureNearer(subject, reference, truth, nullptr);
  EXPECT_EQ(nearer.subject_nearer, 0);
  EXPECT_EQ(nearer.reference_nearer, 1);
}

TEST(CpuEngine, ChecksTheBoundOfADesc) {
  const Inputs in;
  const auto engine = MakeCpuEngine({});
  GemmDesc exact = in.Desc();
  exact.arithmetic.family = ArithmeticFamily::kExact;
  exact.out_dtype = DType::kF32;
  const Tensor truth = engine->Gemm(exact, nullptr)->d;
  const Tensor d = engine->Gemm(in.Desc(), nullptr)->d;
  EXPECT_TRUE(engine->CheckBound(in.Desc(), d, truth, nullptr)->pass);
  const Tensor zeros = FromValues(DType::kBF16, d.shape(), std::vector<float>(24 * 40, 0.0f));
  EXPECT_FALSE(engine->CheckBound(in.Desc(), zeros, truth, nullptr)->pass);
}

class StrangeMoment final : public Moment {};

TEST(CpuEngine, ReadsTensorsOfAnother) {
  const auto engine = MakeCpuEngine({}), other = MakeCpuEngine({});
  const Tensor theirs = FromValues(DType::kF32, {2}, {5, 6});
  const auto moment = other->MarkMoment();
  ASSERT_TRUE(moment.ok());
  EXPECT_TRUE(engine->WaitFor(**moment).ok());
  EXPECT_EQ(engine->WaitFor(StrangeMoment()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(engine->Import(theirs)->data(), theirs.data());
  const Tensor to = FromValues(DType::kF32, {2, 2}, {1, 2, 3, 4});
  EXPECT_TRUE(engine->Copy(theirs, to, 4).ok());
  EXPECT_EQ(ToValues(to), (std::vector<float>{1, 5, 6, 4}));
  EXPECT_TRUE(engine->Copy(FromValues(DType::kF32, {0}, {}), to, 16).ok());
  for (const int64_t offset : {-1, 9, 16, 1000}) {
    const absl::Status status = engine->Copy(theirs, to, offset);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
  EXPECT_EQ(engine->Copy(Tensor(), to, 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(engine->Copy(theirs, Tensor(), 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ToValues(to), (std::vector<float>{1, 5, 6, 4}));
}

TEST(CpuEngine, CopiesLargeTensorsInPieces) {
  const auto engine = MakeCpuEngine({});
  GeneratorSpec spec;
  spec.dtype = DType::kF32;
  spec.shape = {(5 << 18) + 3};  // Five pieces of 1 MiB, and three elements.
  const Tensor source = *engine->Generate(spec, nullptr);
  const Tensor to = FromValues(DType::kF32, {(5 << 18) + 5}, std::vector<float>((5 << 18) + 5, 7));
  ASSERT_TRUE(engine->Copy(source, to, 4).ok());
  std::vector<float> expected = ToValues(source);
  expected.insert(expected.begin(), 7);
  expected.push_back(7);
  EXPECT_TRUE(ToValues(to) == expected);
}

TEST(CpuEngine, IsDoneWhenAnOperationReturns) {
  const auto engine = MakeCpuEngine({});
  EXPECT_EQ(engine->StreamHandle(), 0u);
  EXPECT_TRUE(engine->Finish().ok());
}

TEST(CpuEngine, WritesCodesToMemoryThatIsGiven) {
  const auto engine = MakeCpuEngine({});
  GeneratorSpec spec;
  spec.shape = {64, 128};
  const Tensor source = *engine->Generate(spec, nullptr);
  QuantizerSpec rule;
  rule.format = QuantizerFormat::kMxfp8;
  const QuantizedTensor expected = *engine->Quantize(source, rule, {true, true}, {}, nullptr);
  QuantizeArguments arguments;
  arguments.rowwise_codes = *Tensor::Allocate(DType::kF8E4M3, {64, 128});
  arguments.columnwise_codes = *Tensor::Allocate(DType::kF8E4M3, {64, 64});  // Of another shape.
  const QuantizedTensor made = *engine->Quantize(source, rule, {true, true}, arguments, nullptr);
  EXPECT_EQ(std::as_const(made.rowwise->data).data(),
            std::as_const(arguments.rowwise_codes).data());
  EXPECT_NE(std::as_const(made.columnwise->data).data(),
            std::as_const(arguments.columnwise_codes).data());
  for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
    EXPECT_TRUE(
        std::ranges::equal(made.copy(usage)->data.bytes(), expected.copy(usage)->data.bytes()));
  }
}

TEST(CpuEngine, EveryOperationStopsWhenCancelled) {
  const Inputs in;
  const auto engine = MakeCpuEngine({});
  const QuantizedTensor q = *engine->Quantize(in.a, in.quantizer, {}, {}, nullptr);
  const Tensor d = engine->Gemm(in.Desc(), nullptr)->d;
  const Tensor wide = *engine->Cast(d, DType::kF32, nullptr);
  GeneratorSpec spec;
  spec.shape = {64, 64};
  Cancellation cancellation;
  cancellation.Cancel();
  const std::vector<absl::Status> statuses = {
      engine->Generate(spec, &cancellation).status(),
      engine->Cast(in.a, DType::kF32, &cancellation).status(),
      engine->Quantize(in.a, in.quantizer, {}, {}, &cancellation).status(),
      engine->Dequantize(q, Usage::kRowwise, DType::kF32, &cancellation).status(),
      engine->Gemm(in.Desc(), &cancellation).status(),
      engine->ActivationForward(in.a, {}, DType::kF32, &cancellation).status(),
      engine->ActivationBackward(in.a, in.a, {}, DType::kF32, &cancellation).status(),
      engine->ColumnSums(in.a, DType::kF32, &cancellation).status(),
      engine->FingerprintOf(in.a, &cancellation).status(),
      engine->CompareBits(d, d, &cancellation).status(),
      engine->MeasureError(d, wide, &cancellation).status(),
      engine->MeasureNearer(d, d, wide, &cancellation).status(),
      engine->CheckBound(in.Desc(), d, wide, &cancellation).status(),
  };
  for (size_t i = 0; i < statuses.size(); ++i) {
    EXPECT_EQ(statuses[i].code(), absl::StatusCode::kCancelled) << "operation " << i;
  }
}

TEST(CpuEngine, CallsFromSeveralThreadsDoNotDisturbEachOther) {
  const Inputs in;
  const auto engine = MakeCpuEngine({BestIsa(), 2});
  const Tensor expected = engine->Gemm(in.Desc(), nullptr)->d;
  std::vector<std::thread> threads;
  std::vector<int> differing(4, 0);
  for (int& count : differing) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        if (!SameBits(engine->Gemm(in.Desc(), nullptr)->d, expected)) ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(differing, std::vector<int>(4, 0));
}

TEST(CpuEngine, ReadsATensorIntoAllItsBytes) {
  const Inputs in;
  const auto engine = MakeCpuEngine({BestIsa(), 1});
  const Engine::HostRead read = engine->StartToHost(in.a).value();
  std::vector<std::byte> bytes(in.a.byte_size());
  ASSERT_TRUE(read(bytes).ok());
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), in.a.bytes().begin()));
  bytes.pop_back();
  EXPECT_TRUE(absl::IsInvalidArgument(read(bytes)));
}

TEST(CpuEngine, OperationsGiveWhatTheFunctionsGiveAndStopWhenCancelled) {
  ExpectEngineOps(*MakeCpuEngine({}));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
