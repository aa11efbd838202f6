#include "client/cli/commands/bench_engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/cli/exit.h"
#include "kernels/base/status_macros.h"
#include "kernels/engine/engine.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quantgate {
namespace {

constexpr int64_t kQuantizeElements = 32 << 20;  // 64 MiB of bf16.
constexpr int64_t kGemmSide = 1024;

std::string OnText(int threads) {
  return absl::StrCat(threads, threads == 1 ? " thread" : " threads");
}

/// Runs `work` on `threads` threads at once.
void OnThreads(int threads, const std::function<void(int)>& work) {
  std::vector<std::thread> workers;
  for (int i = 1; i < threads; ++i) workers.emplace_back(work, i);
  work(0);
  for (std::thread& worker : workers) worker.join();
}

/// Bytes read and written per second by memcpy of 64 MiB, cut between the threads.
absl::StatusOr<double> CopyCeiling(int threads, double seconds) {
  const size_t bytes = kQuantizeElements * 2;
  QG_ASSIGN_OR_RETURN(const auto source, Buffer::Allocate(bytes));
  QG_ASSIGN_OR_RETURN(const auto target, Buffer::Allocate(bytes));
  std::memset(source->data(), 1, bytes);
  std::memset(target->data(), 2, bytes);
  return BestRate(2.0 * static_cast<double>(bytes), seconds, [&] {
    OnThreads(threads, [&](int thread) {
      const size_t begin = bytes / threads * thread;
      std::memcpy(target->data() + begin, source->data() + begin, bytes / threads);
    });
  });
}

constexpr int kFmaRounds = 1 << 22;
constexpr int kChains = 12;  // More than latency times throughput of any fused multiply-add unit.

#if defined(__x86_64__)
__attribute__((target("avx512f"))) float FmaAvx512() {
  __m512 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_ps(1.0f + static_cast<float>(i));
  const __m512 factor = _mm512_set1_ps(0.999f), addend = _mm512_set1_ps(0.001f);
  for (int round = 0; round < kFmaRounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sums[i] = _mm512_fmadd_ps(sums[i], factor, addend);
  }
  for (int i = 1; i < kChains; ++i) sums[0] = _mm512_add_ps(sums[0], sums[i]);
  float lanes[16];
  _mm512_storeu_ps(lanes, sums[0]);
  return lanes[0];
}

__attribute__((target("avx2,fma"))) float FmaAvx2() {
  __m256 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm256_set1_ps(1.0f + static_cast<float>(i));
  const __m256 factor = _mm256_set1_ps(0.999f), addend = _mm256_set1_ps(0.001f);
  for (int round = 0; round < kFmaRounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sums[i] = _mm256_fmadd_ps(sums[i], factor, addend);
  }
  for (int i = 1; i < kChains; ++i) sums[0] = _mm256_add_ps(sums[0], sums[i]);
  return _mm256_cvtss_f32(sums[0]);
}
#endif

float FmaScalar() {
  float sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = 1.0f + static_cast<float>(i);
  for (int round = 0; round < kFmaRounds; ++round) {
    for (int i = 0; i < kChains; ++i) sums[i] = std::fma(sums[i], 0.999f, 0.001f);
  }
  float sum = 0;
  for (const float part : sums) sum += part;
  return sum;
}

/// fp32 fused multiply-adds per second of this processor's widest vectors: what SGEMM aims at.
double FmaCeiling(int threads, double seconds) {
  float (*work)() = FmaScalar;
  double lanes = 1;
#if defined(__x86_64__)
  if (BestIsa() == Isa::kAvx512) {
    work = FmaAvx512;
    lanes = 16;
  } else if (BestIsa() == Isa::kAvx2) {
    work = FmaAvx2;
    lanes = 8;
  }
#endif
  return BestRate(lanes * kChains * kFmaRounds * threads, seconds, [&] {
    OnThreads(threads, [&](int) {
      volatile float keep = work();
      static_cast<void>(keep);
    });
  });
}

struct GemmCase {
  const char* name;
  const char* arithmetic;
  bool is_fp8;
};
constexpr GemmCase kGemms[] = {
    {"sm90 FP8 fast", "sm90:fast", true}, {"sm90 FP8 split", "sm90:split", true},
    {"sm90 bf16", "sm90", false},         {"fp32 bf16", "fp32", false},
    {"exact FP8", "exact", true},         {"exact bf16", "exact", false}};

absl::StatusOr<BenchLine> BenchQuantize(Engine& engine, int threads, double seconds, double copy) {
  GeneratorSpec spec{Distribution::kNormal, 1, DType::kBF16, {kQuantizeElements / 4096, 4096}, 1.f};
  QG_ASSIGN_OR_RETURN(const Tensor source, engine.Generate(spec, nullptr));
  QuantizerSpec fp8;
  fp8.format = QuantizerFormat::kFp8Tensor;
  absl::Status status;
  // The amax reads the tensor once, the cast reads it again and writes one byte an element.
  const double bytes = static_cast<double>(kQuantizeElements) * (2 + 2 + 1);
  const double rate = BestRate(bytes, seconds, [&] {
    status.Update(engine.Quantize(source, fp8, {true, false}, {}, nullptr).status());
  });
  QG_RETURN_IF_ERROR(status);
  return BenchLine{absl::StrCat("fp8_current quantize, ", OnText(threads)), rate / 1e9, "GB/s",
                   absl::StrCat("memcpy, ", OnText(threads)), rate / copy};
}

absl::StatusOr<BenchLine> BenchGemm(Engine& engine, const GemmCase& gemm, int threads,
                                    double seconds, double fma) {
  GeneratorSpec x{Distribution::kNormal, 1, DType::kBF16, {kGemmSide, kGemmSide}, 1.0f};
  GeneratorSpec w{Distribution::kNormal, 2, DType::kBF16, {kGemmSide, kGemmSide}, 1.0f};
  if (gemm.is_fp8) x.dtype = w.dtype = DType::kF8E4M3;
  GemmDesc desc;
  QG_ASSIGN_OR_RETURN(desc.a.data, engine.Generate(x, nullptr));
  QG_ASSIGN_OR_RETURN(desc.b.data, engine.Generate(w, nullptr));
  QG_ASSIGN_OR_RETURN(desc.arithmetic, Arithmetic::Parse(gemm.arithmetic));
  absl::Status status;
  const double multiply_adds = std::pow(static_cast<double>(kGemmSide), 3);
  const double rate =
      BestRate(multiply_adds, seconds, [&] { status.Update(engine.Gemm(desc, nullptr).status()); });
  QG_RETURN_IF_ERROR(status);
  return BenchLine{absl::StrCat(gemm.name, " GEMM 1024^3, ", OnText(threads)), rate / 1e9,
                   "G multiply-adds/s", absl::StrCat("fp32 FMA, ", OnText(threads)), rate / fma};
}

}  // namespace

double BestRate(double units, double seconds, const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  double best = 0, spent = 0;
  for (int repetition = 0; repetition < 3 || spent < seconds; ++repetition) {
    if (WasInterrupted()) break;  // The next progress says so.
    const Clock::time_point start = Clock::now();
    work();
    const double took = std::chrono::duration<double>(Clock::now() - start).count();
    spent += took;
    best = std::max(best, units / took);
  }
  return best;
}

absl::StatusOr<std::vector<BenchLine>> BenchEngine(double seconds, const BenchProgress& progress) {
  std::vector<BenchLine> lines;
  std::vector<int> thread_counts = {1};
  if (AvailableCpus() > 1) thread_counts.push_back(AvailableCpus());
  for (const int threads : thread_counts) {
    const std::unique_ptr<Engine> engine = MakeCpuEngine({.threads = threads});
    QG_RETURN_IF_ERROR(progress("memcpy"));
    QG_ASSIGN_OR_RETURN(const double copy, CopyCeiling(threads, seconds));
    lines.push_back({absl::StrCat("memcpy, ", OnText(threads)), copy / 1e9, "GB/s", "", {}});
    QG_RETURN_IF_ERROR(progress("quantize"));
    QG_ASSIGN_OR_RETURN(lines.emplace_back(), BenchQuantize(*engine, threads, seconds, copy));
    QG_RETURN_IF_ERROR(progress("fused multiply-adds"));
    const double fma = FmaCeiling(threads, seconds);
    lines.push_back(
        {absl::StrCat("fp32 FMA, ", OnText(threads)), fma / 1e9, "G multiply-adds/s", "", {}});
    for (const GemmCase& gemm : kGemms) {
      QG_RETURN_IF_ERROR(progress(gemm.name));
      QG_ASSIGN_OR_RETURN(lines.emplace_back(), BenchGemm(*engine, gemm, threads, seconds, fma));
    }
  }
  return lines;
}

}  // namespace quantgate
