// GELU and its derivative in cuBLASLt's epilogues, against the ways to evaluate them that
// gelu_variants.h has.
#include <map>
#include <string>
#include <vector>

#include "tests/hardware/gelu_variants.h"
#include "tests/hardware/rule_findings.h"

namespace quantgate::hardware {
namespace {

using testing::Pattern;

/// Sums of bf16 products, f32 and bf16 outputs, with and without bias.
void Forward(ProbedDevice& device, Findings& findings, const std::string& d_type, bool has_bias,
             bool has_aux) {
  const Family family{"bf16", "bf16", d_type};
  Trial trial = TrialOf(family, {4096, 64, 16}, Pattern::kModel, 3);
  if (has_bias) SetBias(trial, family, 9);
  std::vector<float> z = ModelAccumulator(trial.gemm);
  Probe probe = ProbeOf(trial.gemm);
  if (has_bias) {
    const std::vector<float> bias = Widened(probe.bias, d_type);
    for (size_t i = 0; i < z.size(); ++i) z[i] += bias[i % bias.size()];
  }
  const std::string name = std::string("GELU") + (has_bias ? "_BIAS" : "") + ", bf16 operands, " +
                           d_type + " output" + (has_aux ? ", aux" : "");
  probe.has_aux = has_aux;
  probe.epilogue = has_bias
                       ? (has_aux ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_BIAS)
                       : (has_aux ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_GELU);
  const auto outputs = static_cast<int64_t>(z.size());
  std::map<std::string, std::vector<uint8_t>> expected;
  for (int variant = 0; variant < GeluVariantCount(); ++variant) {
    expected[GeluVariantName(variant)] = Cast(Gelu(variant, z), d_type);
  }
  EveryAlgorithm(
      device, name, probe,
      [&](ProbedGemm& gemm, const ProbedAlgorithm& algorithm, const std::vector<uint8_t>& d) {
        if (has_aux) {
          findings.Count(name, "aux = rnd(the sum)", outputs,
                         Differing(gemm.Aux(), Cast(z, d_type), d_type));
        }
        for (const auto& [variant, bytes] : expected) {
          findings.Count(WithId(name, algorithm), variant, outputs, Differing(d, bytes, d_type));
        }
      });
}

/// dx = gelu'(aux) * dy, dy the sum.
void Gradient(ProbedDevice& device, Findings& findings, const std::string& type,
              const std::string& d_type) {
  const Trial trial = TrialOf({type, type, d_type}, {4096, 64, 16}, Pattern::kModel, 5);
  Probe probe = ProbeOf(trial.gemm);
  probe.aux = Draw(Pattern::kModel, d_type, 1, 11, trial.shape.m, trial.shape.n, false);
  probe.has_aux = true, probe.epilogue = CUBLASLT_EPILOGUE_DGELU;
  const std::vector<float> z = Widened(probe.aux, d_type);
  const std::string name = "DGELU, " + type + " operands, " + d_type + " output";
  const auto outputs = static_cast<int64_t>(z.size());
  const std::vector<float> dy = ModelAccumulator(trial.gemm);
  const std::vector<float> rounded = Widened(Cast(dy, d_type), d_type);
  std::map<std::string, std::vector<uint8_t>> expected;
  for (int variant = 0; variant < GeluGradientVariantCount(); ++variant) {
    const std::string text = GeluGradientVariantName(variant);
    expected[text] = Cast(GeluGradient(variant, z, dy), d_type);
    if (d_type == "f32") continue;
    expected[text + ", of the rounded sum"] = Cast(GeluGradient(variant, z, rounded), d_type);
  }
  EveryAlgorithm(device, name, probe,
                 [&](ProbedGemm&, const ProbedAlgorithm& algorithm, const std::vector<uint8_t>& d) {
                   for (const auto& [variant, bytes] : expected) {
                     findings.Count(WithId(name, algorithm), variant, outputs,
                                    Differing(d, bytes, d_type));
                   }
                 });
}

}  // namespace

void GeluEpilogues(ProbedDevice& device, Findings& findings) {
  for (const std::string d_type : {"f32", "bf16"}) {
    for (const bool has_bias : {false, true}) {
      for (const bool has_aux : {false, true}) Forward(device, findings, d_type, has_bias, has_aux);
    }
    Gradient(device, findings, "bf16", d_type);
  }
  Gradient(device, findings, "f16", "f16");
}

}  // namespace quantgate::hardware
