// In which order the BGRADA and BGRADB epilogues add an operand up over k. Rows that cancel
// exactly, of magnitudes far apart, leave nothing but the rounding errors, which tell orders apart.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/hardware/rule_findings.h"

namespace quantgate::hardware {
namespace {

using testing::Mix;

constexpr int64_t kComparedRows = 64;  // At both ends.

/// k values of which each has its negative somewhere, 24 or 30 octaves apart.
std::vector<float> CancellingRow(uint64_t seed, int64_t k, bool is_half) {
  std::vector<float> row(static_cast<size_t>(k), 0.0f);
  std::vector<std::pair<uint64_t, size_t>> order;
  for (size_t i = 0; i < row.size(); ++i) order.emplace_back(Mix(seed, 2 * i), i);
  std::sort(order.begin(), order.end());
  for (size_t i = 0; i + 1 < order.size(); i += 2) {
    const uint64_t bits = Mix(seed, 2 * i + 1);
    const auto fraction = static_cast<float>(bits >> 8 & 0x7F) / 128.0f;
    const int exponent =
        static_cast<int>(bits >> 32 & 0xFFFF) % (is_half ? 30 : 24) - (is_half ? 14 : 0);
    const float value = std::ldexp(1.0f + fraction, exponent);
    row[order[i].second] = value;
    row[order[i + 1].second] = -value;
  }
  return row;
}

/// `lanes` sums over every lanes-th value, then folded in halves.
float Interleaved(const float* x, int64_t k, int64_t lanes) {
  std::vector<float> sums(static_cast<size_t>(lanes), 0.0f);
  for (int64_t i = 0; i < k; ++i) sums[static_cast<size_t>(i % lanes)] += x[i];
  for (size_t width = sums.size() / 2; width > 0; width /= 2) {
    for (size_t i = 0; i < width; ++i) sums[i] += sums[i + width];
  }
  return sums[0];
}

/// What four threads that hold mma.sync fragments add: each the pairs of its place in every 8, then
/// neighbours, then both halves.
float FragmentThreads(const float* x, int64_t k) {
  float sums[4] = {};
  for (int64_t i = 0; i < k; ++i) sums[i % 8 / 2] += x[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

float TimesOnes(const float* x, int64_t k) {
  const std::vector<float> ones(16, 1.0f);
  double accumulator = 0;
  for (int64_t i = 0; i < k; i += 16) {
    const int count = static_cast<int>(std::min<int64_t>(16, k - i));
    accumulator = TowardZero(FusedStep(x + i, ones.data(), count, accumulator, 25));
  }
  return static_cast<float>(accumulator);
}

float Pairwise(std::vector<float> tree) {
  while (tree.size() > 1) {
    if (tree.size() % 2 != 0) tree.push_back(-0.0f);
    for (size_t i = 0; i < tree.size() / 2; ++i) tree[i] = tree[2 * i] + tree[2 * i + 1];
    tree.resize(tree.size() / 2);
  }
  return tree[0];
}

/// The f32 sum of a row by every order that is tried.
std::map<std::string, float> Sums(const std::vector<float>& row) {
  const auto k = static_cast<int64_t>(row.size());
  std::map<std::string, float> sums;
  for (const int64_t lanes : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
    sums[std::to_string(lanes) + " interleaved"] = Interleaved(row.data(), k, lanes);
  }
  sums["four threads of fragments"] = FragmentThreads(row.data(), k);
  sums["times ones, chunks of 16"] = TimesOnes(row.data(), k);
  sums["pairwise"] = Pairwise(row);
  return sums;
}

struct Question {
  std::string type = "bf16";
  bool of_a = true;  ///< BGRADA: of our b, n values; else BGRADB: of our a, m values.
  GemmLayout layout = GemmLayout::kNN;
  int64_t rows = 0, others = 0, k = 0;

  std::string Text() const {
    static const char* const kLayouts[] = {"TN", "NN", "NT"};
    return std::string("BGRAD") + (of_a ? "A " : "B ") + type + " " +
           kLayouts[static_cast<int>(layout)] + " rows=" + std::to_string(rows) +
           " others=" + std::to_string(others) + " k=" + std::to_string(k);
  }
};

/// The probe, and the rows that are compared; others are zero.
struct Asked {
  Probe probe;
  std::vector<int64_t> rows;
  std::vector<std::vector<float>> values;  ///< Of these rows.
};

Asked Ask(const Question& q) {
  Asked asked;
  Probe& probe = asked.probe;
  probe.shape = {q.of_a ? q.others : q.rows, q.of_a ? q.rows : q.others, q.k};
  probe.layout = q.layout;
  probe.a_type = probe.b_type = probe.d_type = probe.gradient_type = DTypeOf(q.type);
  probe.epilogue = q.of_a ? CUBLASLT_EPILOGUE_BGRADA : CUBLASLT_EPILOGUE_BGRADB;
  probe.gradient_length = q.rows;
  const bool is_k_major = q.of_a ? q.layout == GemmLayout::kTN : q.layout != GemmLayout::kNT;
  const auto width = static_cast<int64_t>(DTypeBytes(probe.a_type));
  std::vector<uint8_t>& operand = q.of_a ? probe.b : probe.a;
  operand.resize(static_cast<size_t>(q.rows * q.k * width));
  (q.of_a ? probe.a : probe.b).resize(static_cast<size_t>(q.others * q.k * width));
  for (int64_t row = 0; row < q.rows; ++row) {
    if (row >= kComparedRows && row < q.rows - kComparedRows) continue;
    const uint64_t seed = Mix(static_cast<uint64_t>(q.k), static_cast<uint64_t>(row));
    asked.rows.push_back(row);
    asked.values.push_back(CancellingRow(seed, q.k, q.type == "f16"));
    const std::vector<uint8_t> codes = Cast(asked.values.back(), q.type);
    for (int64_t i = 0; i < q.k; ++i) {
      const int64_t at = is_k_major ? row * q.k + i : i * q.rows + row;
      std::memcpy(&operand[static_cast<size_t>(at * width)], &codes[static_cast<size_t>(i * width)],
                  static_cast<size_t>(width));
    }
  }
  return asked;
}

using Gradients = std::map<std::string, std::vector<uint8_t>>;  ///< By order of summation.

Gradients EveryOrder(const Question& q, const Asked& asked) {
  std::map<std::string, std::vector<float>> sums;
  for (const std::vector<float>& row : asked.values) {
    for (const auto& [order, sum] : Sums(row)) sums[order].push_back(sum);
  }
  Gradients gradients;
  for (const auto& [order, values] : sums) gradients[order] = Cast(values, q.type);
  return gradients;
}

/// Orders for slices of k, each added by the threads of fragments.
Gradients SlicedOrders(const Question& q, const Asked& asked, int slices) {
  Gradients gradients;
  for (const int64_t tile : {16, 32, 64}) {
    const int64_t length = (q.k / slices + tile - 1) / tile * tile;
    std::vector<float> sums;
    for (const std::vector<float>& row : asked.values) {
      float sum = 0;
      for (int64_t begin = 0; begin < q.k; begin += length) {
        sum += FragmentThreads(&row[static_cast<size_t>(begin)], std::min(length, q.k - begin));
      }
      sums.push_back(sum);
    }
    gradients["fragments, in slices of tiles of " + std::to_string(tile)] = Cast(sums, q.type);
  }
  return gradients;
}

/// Of the rows that are compared.
std::vector<uint8_t> ComparedGradient(ProbedGemm& gemm, const Asked& asked) {
  const std::vector<uint8_t> all = gemm.BiasGradient();
  const auto width = static_cast<int64_t>(DTypeBytes(asked.probe.gradient_type));
  std::vector<uint8_t> compared;
  for (const int64_t row : asked.rows) {
    const auto first = all.begin() + row * width;
    compared.insert(compared.end(), first, first + width);
  }
  return compared;
}

void AskOne(ProbedDevice& device, Findings& findings, const Question& q) {
  const Asked asked = Ask(q);
  const Gradients expected = EveryOrder(q, asked);
  ProbedGemm gemm(device, asked.probe);
  std::map<std::string, int> fits;
  for (const uint32_t mask :
       {uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE}, uint32_t{CUBLASLT_REDUCTION_SCHEME_MASK}}) {
    for (const ProbedAlgorithm& algorithm : gemm.Algorithms(16, mask)) {
      const bool is_split = algorithm.split_k > 1;
      std::vector<uint8_t> d;
      if (is_split != (mask != 0) || !gemm.Run(algorithm, &d)) continue;
      Gradients orders = expected;
      if (is_split) orders.merge(SlicedOrders(q, asked, algorithm.split_k));
      const std::vector<uint8_t> got = ComparedGradient(gemm, asked);
      const std::string kernel =
          "id " + std::to_string(algorithm.id) + (is_split ? ", split-K" : "");
      std::string fit = "none";
      for (const auto& [order, bytes] : orders) {
        const int64_t differ = Differing(got, bytes, q.type);
        findings.Count("bias gradients of " + q.type + ", " + kernel, order,
                       static_cast<int64_t>(asked.rows.size()), differ);
        if (differ == 0) fit = fit == "none" ? order : fit + " = " + order;
      }
      ++fits[kernel + ": " + fit];
    }
  }
  std::printf("%s:", q.Text().c_str());
  for (const auto& [text, count] : fits) std::printf(" [%d x %s]", count, text.c_str());
  std::printf("%s\n", fits.empty() ? " no algorithm" : "");
}

}  // namespace

void BiasGradients(ProbedDevice& device, Findings& findings) {
  using enum GemmLayout;
  for (const std::string type : {"bf16", "f16"}) {
    for (const int64_t rows : {64, 1032, 1280, 1536, 4096}) {
      for (const int64_t k : {128, 136, 192, 1000, 2560, 3072, 8192}) {
        AskOne(device, findings, {type, true, kNN, rows, 64, k});
      }
    }
    for (const int64_t rows : {256, 2048}) {
      for (const int64_t k : {1000, 4096}) {
        AskOne(device, findings, {type, true, kNN, rows, 1024, k});
        AskOne(device, findings, {type, true, kNT, rows, 1024, k});
        AskOne(device, findings, {type, true, kTN, rows, 1024, k});
        for (const GemmLayout layout : {kNN, kNT, kTN}) {
          AskOne(device, findings, {type, false, layout, rows, 1024, k});
        }
      }
    }
  }
}

}  // namespace quantgate::hardware
