#include "tests/hardware/rule_findings.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>

#include "kernels/base/execution.h"
#include "kernels/tensor/convert.h"

namespace quantgate::hardware {
namespace {

constexpr int kAlgorithmsMax = 16;
constexpr size_t kShownMax = 8;  // Hypotheses of a question.

/// Tensors here are small: threads would cost more than they save.
ExecutionContext OneThread() {
  ExecutionContext context;
  context.threads = 1;
  return context;
}

}  // namespace

void Findings::Print() const {
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

std::vector<uint8_t> BytesOfTensor(const Tensor& tensor) {
  const auto* first = reinterpret_cast<const uint8_t*>(tensor.data());
  return {first, first + tensor.bytes().size()};
}

std::vector<uint8_t> Cast(const std::vector<float>& values, const std::string& type) {
  const auto* first = reinterpret_cast<const uint8_t*>(values.data());
  const Tensor wide = TensorOf("f32", {static_cast<int64_t>(values.size())},
                               {first, first + values.size() * sizeof(float)});
  return BytesOfTensor(*CastTensor(wide, DTypeOf(type), OneThread()));
}

std::vector<float> Widened(const std::vector<uint8_t>& bytes, const std::string& type) {
  const auto count = static_cast<int64_t>(bytes.size()) / BytesOf(type);
  return As<float>(
      BytesOfTensor(*CastTensor(TensorOf(type, {count}, bytes), DType::kF32, OneThread())));
}

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

Trial TrialOf(const Family& family, const GemmShape& shape, testing::Pattern pattern,
              uint64_t seed) {
  Trial trial;
  trial.shape = shape;
  SetOperands(trial, family, pattern, seed * 2, pattern, seed * 2 + 1);
  SetBlockScales(trial, family, ScaleValues::kFractions, seed);
  return trial;
}

std::vector<uint8_t> ModelOutput(GemmDesc desc, int split_k) {
  desc.arithmetic.split_k = split_k;
  absl::StatusOr<GemmResult> result = GemmCpu(desc, ExecutionContext{});
  if (!result.ok()) {
    std::printf("the model refuses: %s\n", result.status().ToString().c_str());
    return {};
  }
  return BytesOfTensor(result->d);
}

std::vector<float> ModelAccumulator(GemmDesc desc) {
  desc.out_dtype = DType::kF32;
  desc.bias = Tensor();
  return As<float>(ModelOutput(desc));
}

void EveryAlgorithm(ProbedDevice& device, const std::string& what, const Probe& probe,
                    const Judge& judge) {
  ProbedGemm gemm(device, probe);
  const std::vector<ProbedAlgorithm> algorithms = gemm.Algorithms(kAlgorithmsMax);
  std::string ids;
  std::vector<uint8_t> d;
  for (const ProbedAlgorithm& algorithm : algorithms) {
    if (!gemm.Run(algorithm, &d)) continue;
    ids += " " + std::to_string(algorithm.id);
    judge(gemm, algorithm, d);
  }
  std::printf("%s: %s, ids%s\n", what.c_str(),
              algorithms.empty()
                  ? ("heuristic status " + std::to_string(gemm.heuristic_status())).c_str()
                  : (std::to_string(algorithms.size()) + " algorithms").c_str(),
              ids.c_str());
}

std::string WithId(const std::string& question, const ProbedAlgorithm& algorithm) {
  return question + ", algorithm id " + std::to_string(algorithm.id);
}

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

}  // namespace quantgate::hardware
