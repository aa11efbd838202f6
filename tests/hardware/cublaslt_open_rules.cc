// Questions about cuBLASLt that no model answers yet, each put as hypotheses in code:
//   cublaslt_open_rules [SECTION|all] [FOLDER]
// For every question it runs small GEMMs through every algorithm that the heuristic returns, counts
// per hypothesis the outputs that differ, and prints the hypotheses best first. FOLDER, where
// given, receives the tables that a later model can be fitted to. Takes about a minute.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/base/execution.h"
#include "kernels/tensor/convert.h"
#include "tests/hardware/gelu_variants.h"
#include "tests/hardware/gemm_family.h"
#include "tests/hardware/slice_hypotheses.h"

namespace quantgate::hardware {
namespace {

using testing::Pattern;

constexpr int kAlgorithmsMax = 16;
std::string folder;

/// Outputs that differ, by question and hypothesis.
class Findings {
 public:
  void Count(const std::string& question, const std::string& hypothesis, int64_t outputs,
             int64_t differ) {
    Entry& entry = table_[question][hypothesis];
    entry.outputs += outputs, entry.differ += differ;
  }

  void Print() const {
    for (const auto& [question, hypotheses] : table_) {
      std::vector<std::pair<std::string, Entry>> order(hypotheses.begin(), hypotheses.end());
      std::stable_sort(order.begin(), order.end(), [](const auto& x, const auto& y) {
        return static_cast<double>(x.second.differ) * static_cast<double>(y.second.outputs) <
               static_cast<double>(y.second.differ) * static_cast<double>(x.second.outputs);
      });
      std::printf("\n%s\n", question.c_str());
      const size_t shown = std::min<size_t>(order.size(), kShownMax);
      for (size_t i = 0; i < shown; ++i) {
        std::printf("  %10ld of %ld differ: %s\n", static_cast<long>(order[i].second.differ),
                    static_cast<long>(order[i].second.outputs), order[i].first.c_str());
      }
    }
  }

 private:
  static constexpr size_t kShownMax = 8;
  struct Entry {
    int64_t outputs = 0, differ = 0;
  };
  std::map<std::string, std::map<std::string, Entry>> table_;
};

template <class T>
std::vector<T> As(const std::vector<uint8_t>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::vector<uint8_t> BytesOfTensor(const Tensor& tensor) {
  const auto* first = reinterpret_cast<const uint8_t*>(tensor.data());
  return {first, first + tensor.bytes().size()};
}

/// f32 values in another type, RNE, and back.
std::vector<uint8_t> Cast(const std::vector<float>& values, const std::string& type) {
  const auto* first = reinterpret_cast<const uint8_t*>(values.data());
  const Tensor wide = TensorOf("f32", {static_cast<int64_t>(values.size())},
                               {first, first + values.size() * sizeof(float)});
  return BytesOfTensor(*CastTensor(wide, DTypeOf(type), ExecutionContext{}));
}

std::vector<float> Widened(const std::vector<uint8_t>& bytes, const std::string& type) {
  const auto count = static_cast<int64_t>(bytes.size()) / BytesOf(type);
  return As<float>(
      BytesOfTensor(*CastTensor(TensorOf(type, {count}, bytes), DType::kF32, ExecutionContext{})));
}

/// Elements that differ; NaNs of any payload are alike.
int64_t Differing(const std::vector<uint8_t>& x, const std::vector<uint8_t>& y,
                  const std::string& type) {
  if (x == y) return 0;
  const std::vector<float> wide_x = Widened(x, type), wide_y = Widened(y, type);
  int64_t count = 0;
  for (size_t i = 0; i < wide_x.size(); ++i) {
    if (std::isnan(wide_x[i]) && std::isnan(wide_y[i])) continue;
    count += std::bit_cast<uint32_t>(wide_x[i]) != std::bit_cast<uint32_t>(wide_y[i]);
  }
  return count;
}

Trial TrialOf(const Family& family, int64_t m, int64_t n, int64_t k, Pattern pattern,
              uint64_t seed) {
  Trial trial;
  trial.hardware.m = m, trial.hardware.n = n, trial.hardware.k = k;
  SetOperands(trial, family, pattern, seed * 2, pattern, seed * 2 + 1);
  SetBlockScales(trial, family, ScaleValues::kFractions, seed);
  return trial;
}

std::vector<uint8_t> ModelOutput(GemmDesc desc, int split_k = 1) {
  desc.arithmetic.split_k = split_k;
  absl::StatusOr<GemmResult> result = GemmCpu(desc, ExecutionContext{});
  if (!result.ok()) {
    std::printf("the model refuses: %s\n", result.status().ToString().c_str());
    return {};
  }
  return BytesOfTensor(result->d);
}

/// The accumulator before an epilogue: f32 output, nothing added.
std::vector<float> ModelAccumulator(GemmDesc desc) {
  desc.out_dtype = DType::kF32;
  desc.bias = Tensor();
  return As<float>(ModelOutput(desc));
}

/// Runs `gemm` by every algorithm; `judge` sees each output. Says so where there is none.
using Judge = std::function<void(LoadedGemm&, const Algorithm&, const std::vector<uint8_t>& d)>;
void EveryAlgorithm(Device& device, const std::string& what, const GemmCase& gemm,
                    const Judge& judge) {
  LoadedGemm loaded(device, gemm);
  const std::vector<Algorithm> algorithms =
      loaded.Algorithms(kAlgorithmsMax, CUBLASLT_REDUCTION_SCHEME_NONE);
  std::string ids;
  std::vector<uint8_t> d;
  for (const Algorithm& algorithm : algorithms) {
    if (!loaded.Run(algorithm, &d)) continue;
    ids += " " + std::to_string(algorithm.id);
    judge(loaded, algorithm, d);
  }
  std::printf("%s: %s, ids%s\n", what.c_str(),
              algorithms.empty()
                  ? ("heuristic status " + std::to_string(loaded.heuristic_status())).c_str()
                  : (std::to_string(algorithms.size()) + " algorithms").c_str(),
              ids.c_str());
}

std::string WithId(const std::string& question, const Algorithm& algorithm) {
  return question + ", algorithm id " + std::to_string(algorithm.id);
}

// --- Batches -------------------------------------------------------------------------------------

void Batches(Device& device, Findings& findings) {
  const Family families[] = {{"bf16", "bf16", "bf16"},
                             {"f16", "f16", "f32", Layout::kNT},
                             {"f8_e4m3", "f8_e4m3", "bf16", Layout::kTN, false, 8, 16},
                             {"f8_e5m2", "f8_e4m3", "f32", Layout::kTN, true, 8, 16}};
  for (const Family& family : families) {
    constexpr int kBatch = 3;
    GemmCase joined;
    std::vector<uint8_t> expected;
    for (uint64_t i = 0; i < kBatch; ++i) {
      const Trial one = TrialOf(family, 72, 64, 272, Pattern::kModel, 40 + i);
      if (i == 0) joined = one.hardware, joined.a.clear(), joined.b.clear();
      joined.a.insert(joined.a.end(), one.hardware.a.begin(), one.hardware.a.end());
      joined.b.insert(joined.b.end(), one.hardware.b.begin(), one.hardware.b.end());
      const std::vector<uint8_t> d = ModelOutput(one.model);
      expected.insert(expected.end(), d.begin(), d.end());
    }
    joined.batch = kBatch;
    EveryAlgorithm(device, "batch of 3, " + family.Name(), joined,
                   [&](LoadedGemm&, const Algorithm& algorithm, const std::vector<uint8_t>& d) {
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

/// The exact value of a fused step: products aligned to the largest exponent, truncated, summed.
double FusedStep(const float* a, const float* b, int count, double c, int fraction_bits) {
  const auto exponent_of = [](double x) { return x == 0.0 ? -1000 : std::ilogb(x); };
  int largest = exponent_of(c);
  for (int i = 0; i < count; ++i) {
    if (a[i] == 0.0f || b[i] == 0.0f) continue;
    largest =
        std::max(largest, std::max(exponent_of(a[i]), -14) + std::max(exponent_of(b[i]), -14));
  }
  if (largest == -1000) return 0.0;
  const double unit = std::ldexp(1.0, largest - fraction_bits);
  double sum = std::trunc(c / unit);
  for (int i = 0; i < count; ++i) {
    sum += std::trunc(static_cast<double>(a[i]) * static_cast<double>(b[i]) / unit);
  }
  return sum * unit;
}

float TowardZero(double value) {
  float rounded = static_cast<float>(value);
  if (std::fabs(static_cast<double>(rounded)) > std::fabs(value)) {
    rounded = std::nextafterf(rounded, 0.0f);
  }
  return rounded;
}

std::vector<uint8_t> HalfOutput(const GemmCase& g, const HalfRule& rule) {
  const std::vector<float> a = Widened(g.a, "f16"), b = Widened(g.b, "f16");
  const auto to_half = [](double value) {
    return Widened(Cast({TowardZero(value)}, "f16"), "f16")[0];
  };
  std::vector<float> d(static_cast<size_t>(g.m * g.n));
  for (int64_t m = 0; m < g.m; ++m) {
    for (int64_t n = 0; n < g.n; ++n) {
      double accumulator = 0;
      for (int64_t k = 0; k < g.k; k += rule.chunk) {
        const int count = static_cast<int>(std::min<int64_t>(rule.chunk, g.k - k));
        const double sum =
            FusedStep(&a[static_cast<size_t>(m * g.k + k)], &b[static_cast<size_t>(n * g.k + k)],
                      count, accumulator, rule.fraction_bits);
        accumulator = rule.rounds_each_chunk ? to_half(sum) : TowardZero(sum);
      }
      d[static_cast<size_t>(m * g.n + n)] = static_cast<float>(accumulator);
    }
  }
  return Cast(d, "f16");
}

void HalfAccumulation(Device& device, Findings& findings) {
  std::vector<HalfRule> rules;
  for (const int chunk : {4, 8, 16, 32, 64}) {
    for (const int fraction_bits : {23, 24, 25}) {
      for (const bool each : {false, true}) rules.push_back({chunk, fraction_bits, each});
    }
  }
  for (const int64_t k : {16, 32, 48, 136, 272}) {
    GemmCase g =
        TrialOf({"f16", "f16", "f16"}, 16, 32, k, Pattern::kModel, static_cast<uint64_t>(k))
            .hardware;
    g.compute = CUBLAS_COMPUTE_16F;
    std::map<std::string, std::vector<uint8_t>> expected;
    for (const HalfRule& rule : rules) expected[rule.Name()] = HalfOutput(g, rule);
    EveryAlgorithm(device, "COMPUTE_16F k=" + std::to_string(k), g,
                   [&](LoadedGemm&, const Algorithm& algorithm, const std::vector<uint8_t>& d) {
                     for (const auto& [name, bytes] : expected) {
                       findings.Count(WithId("fp16 accumulation (COMPUTE_16F)", algorithm), name,
                                      g.m * g.n, Differing(d, bytes, "f16"));
                     }
                   });
  }
}

// --- f32 operands
// ----------------------------------------------------------------------------------

void Fp32Computes(Device& device, Findings& findings) {
  const std::pair<cublasComputeType_t, const char*> computes[] = {
      {CUBLAS_COMPUTE_32F, "32F"},
      {CUBLAS_COMPUTE_32F_PEDANTIC, "32F_PEDANTIC"},
      {CUBLAS_COMPUTE_32F_FAST_16BF, "32F_FAST_16BF"},
      {CUBLAS_COMPUTE_32F_FAST_16F, "32F_FAST_16F"}};
  for (const auto& [compute, name] : computes) {
    for (const int64_t k : {64, 272, 1024}) {
      Trial trial = TrialOf({"f32", "f32", "f32"}, 64, 64, k, Pattern::kModel, 7);
      std::map<std::string, std::vector<uint8_t>> expected;
      expected["tf32"] = ModelOutput(trial.model);
      for (const char* type : {"bf16", "f16"}) {
        GemmDesc desc = trial.model;
        desc.a.data = *CastTensor(desc.a.data, DTypeOf(type), ExecutionContext{});
        desc.b.data = *CastTensor(desc.b.data, DTypeOf(type), ExecutionContext{});
        expected[std::string("operands RNE to ") + type] = ModelOutput(desc);
      }
      GemmDesc sequential = trial.model;
      sequential.arithmetic.family = ArithmeticFamily::kFp32;
      expected["sequential fp32 FMA"] = ModelOutput(sequential);
      trial.hardware.compute = compute;
      trial.hardware.is_fp32_compute_given = true;
      EveryAlgorithm(device, std::string("f32 operands, COMPUTE_") + name, trial.hardware,
                     [&](LoadedGemm&, const Algorithm& algorithm, const std::vector<uint8_t>& d) {
                       for (const auto& [rule, bytes] : expected) {
                         findings.Count(WithId(std::string("f32, COMPUTE_") + name, algorithm),
                                        rule, trial.hardware.m * trial.hardware.n,
                                        Differing(d, bytes, "f32"));
                       }
                     });
    }
  }
}

// --- Activations in the epilogue
// -------------------------------------------------------------------

/// GELU of every bf16 number and of sums of two of them, f32 and bf16 outputs, with and without
/// bias.
void GeluEpilogue(Device& device, Findings& findings, const std::string& d_type, bool has_bias) {
  const Family family{"bf16", "bf16", d_type};
  Trial trial = TrialOf(family, 4096, 64, 16, Pattern::kModel, 3);
  if (has_bias) SetBias(trial, family, 9);
  std::vector<float> z = ModelAccumulator(trial.model);
  if (has_bias) {
    const std::vector<float> bias = Widened(trial.hardware.bias, trial.hardware.bias_type);
    for (size_t i = 0; i < z.size(); ++i) z[i] += bias[i % bias.size()];
  }
  const std::vector<float> rounded = Widened(Cast(z, d_type), d_type);
  const std::string name =
      std::string("GELU") + (has_bias ? "_BIAS" : "") + ", bf16 operands, " + d_type + " output";
  for (const bool has_aux : {false, true}) {
    GemmCase gemm = trial.hardware;
    gemm.has_aux = has_aux;
    gemm.epilogue = has_bias
                        ? (has_aux ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_BIAS)
                        : (has_aux ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_GELU);
    bool is_first = true;
    EveryAlgorithm(
        device, name + (has_aux ? ", aux" : ""), gemm,
        [&](LoadedGemm& loaded, const Algorithm& algorithm, const std::vector<uint8_t>& d) {
          const auto outputs = static_cast<int64_t>(z.size());
          if (has_aux) {
            findings.Count(name + ", aux", "aux = rnd(the sum)", outputs,
                           Differing(loaded.Aux(), Cast(z, d_type), d_type));
          }
          if (!is_first) return;  // The variants are many; one algorithm decides.
          is_first = false;
          for (int variant = 0; variant < GeluVariantCount(); ++variant) {
            const std::string question = WithId(name + (has_aux ? ", aux" : ""), algorithm);
            findings.Count(question, GeluVariantName(variant), outputs,
                           Differing(d, Cast(Gelu(variant, z), d_type), d_type));
            if (d_type == "f32") continue;
            findings.Count(question, GeluVariantName(variant) + ", of the rounded sum", outputs,
                           Differing(d, Cast(Gelu(variant, rounded), d_type), d_type));
          }
          if (folder.empty() || d_type != "f32" || has_aux) return;
          std::ofstream file(folder + "/gelu" + (has_bias ? "_bias" : "") + ".f32pairs",
                             std::ios::binary);
          constexpr size_t kPairs = 1 << 18;
          file.write(reinterpret_cast<const char*>(z.data()), kPairs * sizeof(float));
          file.write(reinterpret_cast<const char*>(d.data()), kPairs * sizeof(float));
        });
  }
}

void GeluGradientEpilogue(Device& device, Findings& findings, const std::string& d_type) {
  const Family family{"bf16", "bf16", d_type};
  const Trial trial = TrialOf(family, 1024, 64, 16, Pattern::kModel, 5);
  const std::vector<float> dy = ModelAccumulator(trial.model);
  GemmCase gemm = trial.hardware;
  gemm.aux = Draw(Pattern::kModel, d_type, 1, 11, gemm.m, gemm.n, false);
  gemm.has_aux = true, gemm.epilogue = CUBLASLT_EPILOGUE_DGELU;
  const std::vector<float> z = Widened(gemm.aux, d_type);
  const std::string name = "DGELU, bf16 operands, " + d_type + " output";
  EveryAlgorithm(device, name, gemm,
                 [&](LoadedGemm&, const Algorithm& algorithm, const std::vector<uint8_t>& d) {
                   for (int variant = 0; variant < GeluGradientVariantCount(); ++variant) {
                     findings.Count(
                         WithId(name, algorithm), GeluGradientVariantName(variant), gemm.m * gemm.n,
                         Differing(d, Cast(GeluGradient(variant, z, dy), d_type), d_type));
                   }
                 });
}

void ReluEpilogue(Device& device, Findings& findings, const Family& family, bool has_bias) {
  Trial trial = TrialOf(family, 64, 64, 272, Pattern::kSpecials, 6);
  if (has_bias) SetBias(trial, family, 9);
  trial.hardware.epilogue = has_bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
  std::vector<float> z = Widened(ModelOutput(trial.model), family.d_type), zero_nan = z, kept = z;
  for (size_t i = 0; i < z.size(); ++i) {
    zero_nan[i] = z[i] > 0.0f ? z[i] : 0.0f;
    kept[i] = z[i] <= 0.0f ? 0.0f : z[i];
  }
  const std::string name = "RELU of " + family.Name() + (has_bias ? ", bias" : "");
  EveryAlgorithm(device, name, trial.hardware,
                 [&](LoadedGemm&, const Algorithm& algorithm, const std::vector<uint8_t>& d) {
                   const std::string& type = family.d_type;
                   const std::string question = WithId("RELU", algorithm);
                   findings.Count(question, "rnd(v) > 0 ? rnd(v) : +0 (NaN to 0)",
                                  trial.hardware.m * trial.hardware.n,
                                  Differing(d, Cast(zero_nan, type), type));
                   findings.Count(question, "rnd(v) <= 0 ? +0 : rnd(v) (NaN kept)",
                                  trial.hardware.m * trial.hardware.n,
                                  Differing(d, Cast(kept, type), type));
                 });
}

// --- Bias gradients
// --------------------------------------------------------------------------------

/// Sums of one operand over k, by several orders.
std::map<std::string, std::vector<float>> SumsOverK(const std::vector<float>& values, int64_t rows,
                                                    int64_t k) {
  std::map<std::string, std::vector<float>> sums;
  for (int64_t row = 0; row < rows; ++row) {
    const float* x = &values[static_cast<size_t>(row * k)];
    double exact = 0;
    float sequential = 0;
    std::vector<float> tree(x, x + k), ones(static_cast<size_t>(k), 1.0f);
    for (int64_t i = 0; i < k; ++i) exact += static_cast<double>(x[i]), sequential += x[i];
    while (tree.size() > 1) {
      if (tree.size() % 2 != 0) tree.push_back(-0.0f);
      for (size_t i = 0; i < tree.size() / 2; ++i) tree[i] = tree[2 * i] + tree[2 * i + 1];
      tree.resize(tree.size() / 2);
    }
    sums["exact, rounded once"].push_back(static_cast<float>(exact));
    sums["sequential fp32"].push_back(sequential);
    sums["pairwise fp32"].push_back(tree[0]);
    for (const int chunk : {8, 16}) {
      double accumulator = 0;
      for (int64_t i = 0; i < k; i += chunk) {
        const int count = static_cast<int>(std::min<int64_t>(chunk, k - i));
        accumulator = TowardZero(FusedStep(x + i, ones.data(), count, accumulator, 25));
      }
      sums["a product with ones, fused steps of " + std::to_string(chunk)].push_back(
          static_cast<float>(accumulator));
    }
    for (const int lanes : {2, 4, 8, 32}) {
      std::vector<float> lane(static_cast<size_t>(lanes), 0.0f);
      for (int64_t i = 0; i < k; ++i) lane[static_cast<size_t>(i % lanes)] += x[i];
      for (size_t width = lane.size() / 2; width > 0; width /= 2) {
        for (size_t i = 0; i < width; ++i) lane[i] += lane[i + width];
      }
      sums[std::to_string(lanes) + " interleaved fp32 sums"].push_back(lane[0]);
    }
  }
  return sums;
}

void BiasGradients(Device& device, Findings& findings) {
  for (const auto& [epilogue, side] : {std::pair{CUBLASLT_EPILOGUE_BGRADA, "A (n)"},
                                       std::pair{CUBLASLT_EPILOGUE_BGRADB, "B (m)"}}) {
    for (const Layout layout : {Layout::kTN, Layout::kNN, Layout::kNT}) {
      for (const std::string type : {"bf16", "f32"}) {
        const bool of_a = epilogue == CUBLASLT_EPILOGUE_BGRADA;
        const Family family{"bf16", "bf16", "bf16", layout};
        Trial trial = TrialOf(family, 64, 96, 272, Pattern::kWide, 8);
        GemmCase& g = trial.hardware;
        g.epilogue = epilogue, g.bias_gradient_type = type, g.gradient_length = of_a ? g.n : g.m;
        const std::vector<uint8_t> operand = Draw(Pattern::kWide, "bf16", family.chunk(),
                                                  of_a ? 17 : 16, g.gradient_length, g.k, false);
        const auto sums = SumsOverK(Widened(operand, "bf16"), g.gradient_length, g.k);
        const std::vector<uint8_t> expected = ModelOutput(trial.model);
        const std::string name = std::string("BGRAD") + side + ", " + type + " gradient";
        EveryAlgorithm(
            device, name + ", " + family.Name(), g,
            [&](LoadedGemm& loaded, const Algorithm& algorithm, const std::vector<uint8_t>& d) {
              findings.Count(name, "D as without the epilogue", g.m * g.n,
                             Differing(d, expected, "bf16"));
              const std::vector<uint8_t> gradient = loaded.BiasGradient();
              for (const auto& [rule, values] : sums) {
                findings.Count(WithId(name, algorithm), rule, g.gradient_length,
                               Differing(gradient, Cast(values, type), type));
              }
            });
      }
    }
  }
}

// --- Block scaling
// ---------------------------------------------------------------------------------

Family BlockFamily(Scaling a_block, Scaling b_block, const std::string& d_type) {
  Family family{"f8_e4m3", "f8_e4m3", d_type, Layout::kTN, true, 8, 16};
  family.a_block = a_block, family.b_block = b_block;
  return family;
}

/// Which pairs of scale modes, outputs and accumulation modes cuBLASLt takes.
void BlockSupport(Device& device) {
  static const char* const kNames[] = {"none", "tensor", "outer", "1x128", "128x128"};
  for (int a = 0; a < 5; ++a) {
    for (int b = 0; b < 5; ++b) {
      for (const std::string d_type : {"f32", "bf16", "f8_e4m3"}) {
        for (const int fast : {0, 1}) {
          Trial trial = TrialOf({"f8_e4m3", "f8_e4m3", d_type, Layout::kTN, true, 16, 16}, 256, 256,
                                512, Pattern::kModel, 1);
          GemmCase& g = trial.hardware;
          g.a_scaling = static_cast<Scaling>(a), g.b_scaling = static_cast<Scaling>(b);
          g.a_scale = DrawScales(ScaleValues::kPowers, 1, ScaleCount(g.a_scaling, g.m, g.k));
          g.b_scale = DrawScales(ScaleValues::kPowers, 2, ScaleCount(g.b_scaling, g.n, g.k));
          g.fast_accumulation = fast;
          LoadedGemm loaded(device, g);
          const size_t count =
              loaded.Algorithms(kAlgorithmsMax, CUBLASLT_REDUCTION_SCHEME_NONE).size();
          std::printf("scales %s x %s -> %s, FAST_ACCUM %d: %zu algorithms, status %d\n", kNames[a],
                      kNames[b], d_type.c_str(), fast, count, loaded.heuristic_status());
        }
      }
    }
  }
}

void BlockShapes(Device& device, Findings& findings, Scaling a_block, Scaling b_block) {
  for (const auto& [m, n, k] :
       {std::tuple{130, 136, 384}, std::tuple{129, 72, 256}, std::tuple{131, 264, 400},
        std::tuple{64, 64, 16}, std::tuple{16, 16, 1040}, std::tuple{1, 128, 512}}) {
    const Family family = BlockFamily(a_block, b_block, "f32");
    const Trial trial = TrialOf(family, m, n, k, Pattern::kModel, 12);
    const std::vector<uint8_t> expected = ModelOutput(trial.model);
    for (const int64_t multiple : {1, 4}) {
      GemmCase g = trial.hardware;
      g.scale_row_multiple = multiple;
      const std::string what = family.Name() + " m=" + std::to_string(m) +
                               " n=" + std::to_string(n) + " k=" + std::to_string(k);
      EveryAlgorithm(device, what, g,
                     [&](LoadedGemm&, const Algorithm&, const std::vector<uint8_t>& d) {
                       findings.Count("1x128 scale rows, " + what,
                                      "stride is rows rounded up to " + std::to_string(multiple),
                                      g.m * g.n, Differing(d, expected, "f32"));
                     });
    }
  }
}

void BlockSplitK(Device& device, Findings& findings, Scaling a_block, Scaling b_block) {
  for (const std::string d_type : {"f32", "bf16"}) {
    for (const int64_t k : {640, 1024, 4096}) {
      const Family family = BlockFamily(a_block, b_block, d_type);
      Trial trial = TrialOf(family, 64, 64, k, Pattern::kModel, 13);
      SetSums(trial, 0.7f, 0.3f, false);
      SetC(trial, 14);
      LoadedGemm loaded(device, trial.hardware);
      int offered = 0;
      std::vector<uint8_t> d;
      for (const Algorithm& base : loaded.Algorithms(8, CUBLASLT_REDUCTION_SCHEME_NONE)) {
        for (const int slices : {2, 3, 4}) {
          for (const Algorithm& algorithm :
               loaded.WithSplitK(base, slices, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)) {
            if (!loaded.Run(algorithm, &d)) continue;
            ++offered;
            const std::string question = "split-K of " + family.Name();
            const std::string at =
                " (" + std::to_string(slices) + " of k=" + std::to_string(k) + ")";
            for (const int modelled : {1, slices}) {
              findings.Count(question + at,
                             modelled == 1 ? "as without slices" : "the model's slices",
                             trial.hardware.m * trial.hardware.n,
                             Differing(d, ModelOutput(trial.model, modelled), d_type));
            }
            if (d_type != "f32") continue;
            for (const auto& [name, ends] : SliceHypotheses(k, slices)) {
              findings.Count(question + at, name, trial.hardware.m * trial.hardware.n,
                             Differing(d, SlicedOutput(trial.model, ends), d_type));
            }
          }
        }
      }
      size_t chosen = 0;
      for (const Algorithm& algorithm : loaded.Algorithms(8, CUBLASLT_REDUCTION_SCHEME_MASK)) {
        chosen += algorithm.split_k > 1;
      }
      std::printf("%s k=%ld: %d forced split-K runs, %zu of the heuristic's choices are split\n",
                  family.Name().c_str(), static_cast<long>(k), offered, chosen);
    }
  }
}

constexpr std::pair<Scaling, Scaling> kBlockPairs[] = {{Scaling::k1x128, Scaling::k128x128},
                                                       {Scaling::k128x128, Scaling::k1x128},
                                                       {Scaling::k1x128, Scaling::k1x128}};

void EveryGelu(Device& device, Findings& findings) {
  for (const std::string d_type : {"f32", "bf16"}) {
    for (const bool has_bias : {false, true}) GeluEpilogue(device, findings, d_type, has_bias);
    GeluGradientEpilogue(device, findings, d_type);
  }
}

void EveryRelu(Device& device, Findings& findings) {
  for (const bool has_bias : {false, true}) {
    ReluEpilogue(device, findings, {"bf16", "bf16", "bf16"}, has_bias);
    ReluEpilogue(device, findings, {"f8_e4m3", "f8_e4m3", "bf16", Layout::kTN, false, 8, 16},
                 has_bias);
  }
}

int Main(int argc, char** argv) {
  const std::string section = argc > 1 ? argv[1] : "all";
  folder = argc > 2 ? argv[2] : "";
  Device device;
  std::printf("%s\n", device.Origin().c_str());
  const std::pair<const char*, std::function<void(Findings&)>> sections[] = {
      {"batches", [&](Findings& f) { Batches(device, f); }},
      {"half", [&](Findings& f) { HalfAccumulation(device, f); }},
      {"f32", [&](Findings& f) { Fp32Computes(device, f); }},
      {"gelu", [&](Findings& f) { EveryGelu(device, f); }},
      {"relu", [&](Findings& f) { EveryRelu(device, f); }},
      {"bias_gradients", [&](Findings& f) { BiasGradients(device, f); }},
      {"block_support", [&](Findings&) { BlockSupport(device); }},
      {"block_shapes",
       [&](Findings& f) {
         for (const auto& [a, b] : kBlockPairs) BlockShapes(device, f, a, b);
       }},
      {"block_splitk", [&](Findings& f) {
         for (const auto& [a, b] : kBlockPairs) BlockSplitK(device, f, a, b);
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
