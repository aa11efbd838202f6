// Questions about cuBLASLt that no arithmetic of the build answers, each put as hypotheses in code:
//   cublaslt_open_rules [SECTION|all]
// For every question it runs small GEMMs through every algorithm that the heuristic returns, counts
// per hypothesis the outputs that differ, and prints the hypotheses best first. Takes about a
// minute.
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/base/execution.h"
#include "kernels/tensor/convert.h"
#include "tests/hardware/cublaslt_runs.h"
#include "tests/hardware/rule_findings.h"
#include "tests/hardware/slice_hypotheses.h"

namespace quantgate::hardware {
namespace {

using testing::Pattern;

// --- Batches -------------------------------------------------------------------------------------

void Batches(ProbedDevice& device, Findings& findings) {
  const Family families[] = {{"bf16", "bf16", "bf16"},
                             {"f16", "f16", "f32", GemmLayout::kNT},
                             {"f8_e4m3", "f8_e4m3", "bf16", GemmLayout::kTN, false, 8, 16},
                             {"f8_e5m2", "f8_e4m3", "f32", GemmLayout::kTN, true, 8, 16}};
  for (const Family& family : families) {
    constexpr int kBatch = 3;
    Probe joined;
    std::vector<uint8_t> expected;
    for (uint64_t i = 0; i < kBatch; ++i) {
      const Trial one = TrialOf(family, {72, 64, 272}, Pattern::kModel, 40 + i);
      const Probe probe = ProbeOf(one.gemm);
      if (i == 0) joined = probe, joined.a.clear(), joined.b.clear();
      joined.a.insert(joined.a.end(), probe.a.begin(), probe.a.end());
      joined.b.insert(joined.b.end(), probe.b.begin(), probe.b.end());
      const std::vector<uint8_t> d = ModelOutput(one.gemm);
      expected.insert(expected.end(), d.begin(), d.end());
    }
    joined.batch = kBatch;
    EveryAlgorithm(
        device, "batch of 3, " + family.Name(), joined,
        [&](ProbedGemm&, const ProbedAlgorithm& algorithm, const std::vector<uint8_t>& d) {
          findings.Count(WithId("batch strides", algorithm), "each GEMM as if alone",
                         static_cast<int64_t>(d.size()) / BytesOf(family.d_type),
                         Differing(d, expected, family.d_type));
        });
  }
}

// --- fp16 accumulation
// -----------------------------------------------------------------------------

struct HalfRule {
  int chunk, fraction_bits;
  bool rounds_each_chunk;  // To fp16 after every chunk; else fp32 (toward zero) until the end.
  std::string Name() const {
    return "chunks of " + std::to_string(chunk) + ", F = " + std::to_string(fraction_bits) +
           (rounds_each_chunk ? ", fp16 after each" : ", fp32, fp16 at the end");
  }
};

std::vector<uint8_t> HalfOutput(const Probe& g, const HalfRule& rule) {
  const auto [rows, columns, depth] = g.shape;
  const std::vector<float> a = Widened(g.a, "f16"), b = Widened(g.b, "f16");
  const auto to_half = [](double value) {
    return Widened(Cast({TowardZero(value)}, "f16"), "f16")[0];
  };
  std::vector<float> d(static_cast<size_t>(rows * columns));
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t n = 0; n < columns; ++n) {
      double accumulator = 0;
      for (int64_t k = 0; k < depth; k += rule.chunk) {
        const int count = static_cast<int>(std::min<int64_t>(rule.chunk, depth - k));
        const double sum = FusedStep(&a[static_cast<size_t>(m * depth + k)],
                                     &b[static_cast<size_t>(n * depth + k)], count, accumulator,
                                     rule.fraction_bits);
        accumulator = rule.rounds_each_chunk ? to_half(sum) : TowardZero(sum);
      }
      d[static_cast<size_t>(m * columns + n)] = static_cast<float>(accumulator);
    }
  }
  return Cast(d, "f16");
}

void HalfAccumulation(ProbedDevice& device, Findings& findings) {
  std::vector<HalfRule> rules;
  for (const int chunk : {4, 8, 16, 32, 64}) {
    for (const int fraction_bits : {23, 24, 25}) {
      for (const bool each : {false, true}) rules.push_back({chunk, fraction_bits, each});
    }
  }
  for (const int64_t k : {16, 32, 48, 136, 272}) {
    Probe g = ProbeOf(
        TrialOf({"f16", "f16", "f16"}, {16, 32, k}, Pattern::kModel, static_cast<uint64_t>(k))
            .gemm);
    g.compute = CUBLAS_COMPUTE_16F;
    std::map<std::string, std::vector<uint8_t>> expected;
    for (const HalfRule& rule : rules) expected[rule.Name()] = HalfOutput(g, rule);
    EveryAlgorithm(
        device, "COMPUTE_16F k=" + std::to_string(k), g,
        [&](ProbedGemm&, const ProbedAlgorithm& algorithm, const std::vector<uint8_t>& d) {
          for (const auto& [name, bytes] : expected) {
            findings.Count(WithId("fp16 accumulation (COMPUTE_16F)", algorithm), name,
                           g.shape.m * g.shape.n, Differing(d, bytes, "f16"));
          }
        });
  }
}

// --- f32 operands
// ----------------------------------------------------------------------------------

void Fp32Computes(ProbedDevice& device, Findings& findings) {
  const std::pair<cublasComputeType_t, const char*> computes[] = {
      {CUBLAS_COMPUTE_32F, "32F"},
      {CUBLAS_COMPUTE_32F_PEDANTIC, "32F_PEDANTIC"},
      {CUBLAS_COMPUTE_32F_FAST_16BF, "32F_FAST_16BF"},
      {CUBLAS_COMPUTE_32F_FAST_16F, "32F_FAST_16F"}};
  for (const auto& [compute, name] : computes) {
    for (const int64_t k : {64, 272, 1024}) {
      const Trial trial = TrialOf({"f32", "f32", "f32"}, {64, 64, k}, Pattern::kModel, 7);
      std::map<std::string, std::vector<uint8_t>> expected;
      expected["tf32"] = ModelOutput(trial.gemm);
      for (const char* type : {"bf16", "f16"}) {
        GemmDesc desc = trial.gemm;
        desc.a.data = *CastTensor(desc.a.data, DTypeOf(type), ExecutionContext{});
        desc.b.data = *CastTensor(desc.b.data, DTypeOf(type), ExecutionContext{});
        expected[std::string("operands RNE to ") + type] = ModelOutput(desc);
      }
      GemmDesc sequential = trial.gemm;
      sequential.arithmetic.family = ArithmeticFamily::kFp32;
      expected["sequential fp32 FMA"] = ModelOutput(sequential);
      Probe probe = ProbeOf(trial.gemm);
      probe.compute = compute;
      EveryAlgorithm(
          device, std::string("f32 operands, COMPUTE_") + name, probe,
          [&](ProbedGemm&, const ProbedAlgorithm& algorithm, const std::vector<uint8_t>& d) {
            for (const auto& [rule, bytes] : expected) {
              findings.Count(WithId(std::string("f32, COMPUTE_") + name, algorithm), rule,
                             probe.shape.m * probe.shape.n, Differing(d, bytes, "f32"));
            }
          });
    }
  }
}

void ReluEpilogue(ProbedDevice& device, Findings& findings, const Family& family, bool has_bias) {
  Trial trial = TrialOf(family, {64, 64, 272}, Pattern::kSpecials, 6);
  if (has_bias) SetBias(trial, family, 9);
  Probe probe = ProbeOf(trial.gemm);
  probe.epilogue = has_bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
  std::vector<float> z = Widened(ModelOutput(trial.gemm), family.d_type), zero_nan = z, kept = z;
  for (size_t i = 0; i < z.size(); ++i) {
    zero_nan[i] = z[i] > 0.0f ? z[i] : 0.0f;
    kept[i] = z[i] <= 0.0f ? 0.0f : z[i];
  }
  const std::string name = "RELU of " + family.Name() + (has_bias ? ", bias" : "");
  EveryAlgorithm(
      device, name, probe,
      [&](ProbedGemm&, const ProbedAlgorithm& algorithm, const std::vector<uint8_t>& d) {
        const std::string& type = family.d_type;
        const std::string question = WithId("RELU", algorithm);
        findings.Count(question, "rnd(v) > 0 ? rnd(v) : +0 (NaN to 0)",
                       probe.shape.m * probe.shape.n, Differing(d, Cast(zero_nan, type), type));
        findings.Count(question, "rnd(v) <= 0 ? +0 : rnd(v) (NaN kept)",
                       probe.shape.m * probe.shape.n, Differing(d, Cast(kept, type), type));
      });
}

constexpr int kAlgorithmsMax = 16;

// --- Block scaling
// ---------------------------------------------------------------------------------

Family BlockFamily(ScaleMode a_block, ScaleMode b_block, const std::string& d_type) {
  Family family{"f8_e4m3", "f8_e4m3", d_type, GemmLayout::kTN, true, 8, 16};
  family.a_block = a_block, family.b_block = b_block;
  return family;
}

/// Which pairs of scale modes, outputs and accumulation modes cuBLASLt takes.
void BlockSupport(ProbedDevice& device) {
  static const char* const kNames[] = {"none", "tensor", "outer", "1x128", "128x128"};
  for (int a = 0; a < 5; ++a) {
    for (int b = 0; b < 5; ++b) {
      for (const std::string d_type : {"f32", "bf16", "f8_e4m3"}) {
        for (const int fast : {0, 1}) {
          const Trial trial = TrialOf({"f8_e4m3", "f8_e4m3", d_type, GemmLayout::kTN, true, 16, 16},
                                      {256, 256, 512}, Pattern::kModel, 1);
          const auto [m, n, k] = trial.shape;
          Probe g = ProbeOf(trial.gemm);
          g.a_scaling = static_cast<ScaleMode>(a), g.b_scaling = static_cast<ScaleMode>(b);
          g.a_scale = DrawScales(ScaleValues::kPowers, 1, ScaleCount(g.a_scaling, m, k));
          g.b_scale = DrawScales(ScaleValues::kPowers, 2, ScaleCount(g.b_scaling, n, k));
          g.fast_accumulation = fast != 0;
          ProbedGemm gemm(device, g);
          const size_t count = gemm.Algorithms(kAlgorithmsMax).size();
          std::printf("scales %s x %s -> %s, FAST_ACCUM %d: %zu algorithms, status %d\n", kNames[a],
                      kNames[b], d_type.c_str(), fast, count, gemm.heuristic_status());
        }
      }
    }
  }
}

void BlockShapes(ProbedDevice& device, Findings& findings, ScaleMode a_block, ScaleMode b_block) {
  for (const auto& [m, n, k] :
       {std::tuple{130, 136, 384}, std::tuple{129, 72, 256}, std::tuple{131, 264, 400},
        std::tuple{64, 64, 16}, std::tuple{16, 16, 1040}, std::tuple{1, 128, 512}}) {
    const Family family = BlockFamily(a_block, b_block, "f32");
    const Trial trial = TrialOf(family, {m, n, k}, Pattern::kModel, 12);
    const std::vector<uint8_t> expected = ModelOutput(trial.gemm);
    for (const int64_t multiple : {1, 4}) {
      Probe g = ProbeOf(trial.gemm);
      g.scale_row_multiple = multiple;
      const std::string what = family.Name() + " m=" + std::to_string(m) +
                               " n=" + std::to_string(n) + " k=" + std::to_string(k);
      EveryAlgorithm(device, what, g,
                     [&](ProbedGemm&, const ProbedAlgorithm&, const std::vector<uint8_t>& d) {
                       findings.Count("1x128 scale rows, " + what,
                                      "stride is rows rounded up to " + std::to_string(multiple),
                                      g.shape.m * g.shape.n, Differing(d, expected, "f32"));
                     });
    }
  }
}

void BlockSplitK(CublasLtRuns& cublaslt, Findings& findings, ScaleMode a_block, ScaleMode b_block) {
  for (const std::string d_type : {"f32", "bf16"}) {
    for (const int64_t k : {640, 1024, 4096}) {
      const Family family = BlockFamily(a_block, b_block, d_type);
      Trial trial = TrialOf(family, {64, 64, k}, Pattern::kModel, 13);
      SetSums(trial, 0.7f, 0.3f, false);
      SetC(trial, 14);
      GemmDesc placed = cublaslt.Placed(trial.gemm);
      int ran = 0;
      for (const int slices : {2, 3, 4}) {
        placed.arithmetic.split_k = slices;
        for (const CublasLtAlgorithm& algorithm : cublaslt.Algorithms(placed, kAlgorithmsMax)) {
          const absl::StatusOr<GemmResult> result = cublaslt.Run(placed, algorithm);
          if (!result.ok()) continue;
          ++ran;
          const std::vector<uint8_t> d = BytesOfTensor(Need(cublaslt.device().ToHost(result->d)));
          const std::string question = "split-K of " + family.Name() + " (" +
                                       std::to_string(slices) + " of k=" + std::to_string(k) + ")";
          const int64_t outputs = trial.shape.m * trial.shape.n;
          for (const int modelled : {1, slices}) {
            findings.Count(question, modelled == 1 ? "as without slices" : "the model's slices",
                           outputs, Differing(d, ModelOutput(trial.gemm, modelled), d_type));
          }
          if (d_type != "f32") continue;
          for (const auto& [name, ends] : SliceHypotheses(k, slices)) {
            findings.Count(question, name, outputs,
                           Differing(d, SlicedOutput(trial.gemm, ends), d_type));
          }
        }
      }
      std::printf("%s k=%ld: %d runs with 2 to 4 slices\n", family.Name().c_str(),
                  static_cast<long>(k), ran);
    }
  }
}

constexpr std::pair<ScaleMode, ScaleMode> kBlockPairs[] = {{ScaleMode::k1x128, ScaleMode::k128x128},
                                                           {ScaleMode::k128x128, ScaleMode::k1x128},
                                                           {ScaleMode::k1x128, ScaleMode::k1x128}};

void EveryRelu(ProbedDevice& device, Findings& findings) {
  for (const bool has_bias : {false, true}) {
    ReluEpilogue(device, findings, {"bf16", "bf16", "bf16"}, has_bias);
    ReluEpilogue(device, findings, {"f8_e4m3", "f8_e4m3", "bf16", GemmLayout::kTN, false, 8, 16},
                 has_bias);
  }
}

int Main(int argc, char** argv) {
  const std::string section = argc > 1 ? argv[1] : "all";
  ProbedDevice device;
  CublasLtRuns cublaslt;
  std::printf("%s\n", DeviceText().c_str());
  const std::pair<const char*, std::function<void(Findings&)>> sections[] = {
      {"batches", [&](Findings& f) { Batches(device, f); }},
      {"half", [&](Findings& f) { HalfAccumulation(device, f); }},
      {"f32", [&](Findings& f) { Fp32Computes(device, f); }},
      {"gelu", [&](Findings& f) { GeluEpilogues(device, f); }},
      {"relu", [&](Findings& f) { EveryRelu(device, f); }},
      {"bias_gradients", [&](Findings& f) { BiasGradients(device, f); }},
      {"block_support", [&](Findings&) { BlockSupport(device); }},
      {"block_shapes",
       [&](Findings& f) {
         for (const auto& [a, b] : kBlockPairs) BlockShapes(device, f, a, b);
       }},
      {"block_splitk", [&](Findings& f) {
         for (const auto& [a, b] : kBlockPairs) BlockSplitK(cublaslt, f, a, b);
       }}};
  for (const auto& [name, run] : sections) {
    if (section != "all" && section != name) continue;
    std::printf("\n== %s\n", name);
    Findings findings;
    run(findings);
    findings.Print();
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace quantgate::hardware

int main(int argc, char** argv) { return quantgate::hardware::Main(argc, argv); }
