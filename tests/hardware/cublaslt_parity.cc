// Compares GemmCpu's sm90 arithmetic with cuBLASLt on the device at hand, bit for bit, over many
// shapes:
//   cublaslt_parity [SECONDS] [SEED] [FILTER] [FOLDER]
// Each family of operand and output types whose name contains FILTER (default: all; "128]" is block
// scaling) gets an equal share of SECONDS (default 400). Shapes,
// data patterns and epilogues are drawn from SEED. Every algorithm that the heuristic offers (up to
// 8) runs, without split-K and, where the heuristic chooses it, with; every output of every run is
// compared. Prints the first differences of a family (their outputs go to FOLDER, where one is
// given) and a Markdown table. Exit code 1 when an algorithm that sm90 models differs.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels/base/execution.h"
#include "kernels/gemm/gemm.h"
#include "tests/hardware/gemm_family.h"

namespace quantgate::hardware {
namespace {

using testing::Mix;
using testing::Pattern;

constexpr int kAlgorithmsMax = 8;
// Families of kernels (CUBLASLT_ALGO_CONFIG_ID). 66: wgmma, every type but tf32. 21, 23, 43, 63:
// tf32 tensor cores (21 and 23 take other types too, by other rules). 55: f32 operands by fp32 FMA
// over k, the arithmetic fp32.
constexpr int kWgmmaId = 66, kFp32FmaId = 55;
constexpr int kTf32Ids[] = {21, 23, 43, 63, kFp32FmaId};
constexpr size_t kDifferencesPrintedMax = 12;  // Per family.
constexpr int kRefusalsPrintedMax = 4;         // Per family.
constexpr int64_t kSizeMax = 8192;
constexpr double kProductsMax = 4.0e10;  // Of one shape: what 16 cores do in a second or less.

/// What was seen of one family.
struct Tally {
  struct Kind {
    int runs = 0;
    int64_t compared = 0;  // Outputs of the hardware compared with the model's.
    int64_t mismatches = 0;
    void Add(const Kind& other) {
      runs += other.runs, compared += other.compared, mismatches += other.mismatches;
    }
  };
  int shapes = 0, refused = 0;
  int64_t distinct = 0;  // Outputs that the model computed.
  Kind first;            // The algorithm that the heuristic ranks first: what a caller gets.
  Kind modelled;         // All of the kernels that sm90 models, without split-K.
  Kind split_k;          // The same with split-K.
  Kind other;            // Kernels of older generations, offered further down the list.
  std::map<int, int> first_ids;  // Shapes by the kernel family of the first choice.
  std::map<std::string, int64_t> mismatches_by_algorithm;
  void Add(const Tally& t) {
    shapes += t.shapes, refused += t.refused, distinct += t.distinct;
    first.Add(t.first), modelled.Add(t.modelled), split_k.Add(t.split_k), other.Add(t.other);
  }
};

class Sweep {
 public:
  Sweep(Device& device, const Family& family, uint64_t seed, std::string folder)
      : device_(device), family_(family), seed_(seed), folder_(std::move(folder)) {}

  void RunFor(double seconds);
  const Tally& tally() const { return tally_; }

 private:
  uint64_t Draw64() { return Mix(seed_, counter_++); }
  int64_t DrawSize(int64_t low, int64_t high, int64_t multiple);
  Trial DrawTrial();
  void DrawScalesOf(Trial& trial);
  void DrawEpilogue(Trial& trial);
  void RunTrial(const Trial& trial);
  /// Outputs that differ; prints the first few of a family.
  int64_t Compare(const Trial& trial, const Algorithm& algorithm, const std::vector<uint8_t>& d,
                  const Tensor& expected);
  void WriteOutput(const std::vector<uint8_t>& d) const;
  /// Absent, with a line printed, where the model refuses.
  Tensor ModelOf(const Trial& trial, ArithmeticFamily family, int split_k);

  Device& device_;
  const Family& family_;
  const uint64_t seed_;
  const std::string folder_;  // Empty: differing outputs are not written.
  uint64_t counter_ = 0;
  Tally tally_;
};

/// Log-uniform, rounded to `multiple`.
int64_t Sweep::DrawSize(int64_t low, int64_t high, int64_t multiple) {
  int octaves = 0;
  while ((low << (octaves + 1)) <= high) ++octaves;
  const int64_t base = low << (Draw64() % static_cast<uint64_t>(octaves + 1));
  const int64_t size = base + static_cast<int64_t>(Draw64() % static_cast<uint64_t>(base));
  return std::clamp(size / multiple * multiple, multiple, high);
}

void Sweep::DrawScalesOf(Trial& trial) {
  GemmCase& h = trial.hardware;
  if (family_.is_block_scaled()) {
    static const ScaleValues kDrawn[] = {ScaleValues::kPowers,    ScaleValues::kPowers,
                                         ScaleValues::kFractions, ScaleValues::kFractions,
                                         ScaleValues::kWide,      ScaleValues::kSpecials};
    SetBlockScales(trial, family_, kDrawn[Draw64() % std::size(kDrawn)], Draw64());
    return;
  }
  if (!family_.is_fp8() || Draw64() % 3 == 0) return;
  const bool outer = Draw64() % 4 == 0 && !h.d_type.starts_with("f8");
  const Scaling scaling = outer ? Scaling::kOuter : Scaling::kTensor;
  const auto scale = [&](int64_t rows, std::vector<float>& values, Scaling& mode,
                         GemmOperand& operand) {
    mode = scaling;
    values.resize(static_cast<size_t>(ScaleCount(scaling, rows, h.k)));
    for (float& value : values) value = static_cast<float>(1 + Draw64() % 1000) / 377.0f;
    operand = WithScales(operand, scaling, values, rows, h.k);
  };
  scale(h.m, h.a_scale, h.a_scaling, trial.model.a);
  scale(h.n, h.b_scale, h.b_scaling, trial.model.b);
  trial.text += outer ? " outer scales" : " tensor scales";
}

void Sweep::DrawEpilogue(Trial& trial) {
  GemmCase& h = trial.hardware;
  const auto draw_float = [&] {
    return static_cast<float>(static_cast<int>(Draw64() % 4001) - 2000) / 731.0f;
  };
  DrawScalesOf(trial);
  if (h.d_type.starts_with("f8")) {
    h.has_d_scale = h.has_amax = true;
    h.d_scale = draw_float();
    trial.model.d_scale = *Tensor::FromScalar(h.d_scale);
    return;
  }
  const uint64_t kind = Draw64() % 8;
  if (family_.a_type == "f32") {  // Other values of alpha and beta depend on the kernel.
    if (kind < 4) return;
    SetSums(trial, 1.0f, 1.0f, false);
    SetC(trial, Draw64());
    trial.text += " beta 1";
    return;
  }
  if (kind >= 4 && kind <= 5) {
    const float alpha = draw_float();
    SetSums(trial, alpha, kind == 4 ? 1.0f : draw_float() + 0.0001f, false);  // Beta is never 0.
    SetC(trial, Draw64());
  } else if (kind == 6 && family_.in_place) {
    SetSums(trial, 1.0f, 1.0f, true);
    SetC(trial, Draw64());
  }
  if ((kind == 7 || kind == 5) && family_.bias) SetBias(trial, family_, Draw64());
  char text[96];
  std::snprintf(text, sizeof(text), " alpha %.9g beta %.9g%s%s", h.alpha, h.beta,
                h.in_place ? " in place" : "", h.bias_type.empty() ? "" : " bias");
  trial.text += text;
}

Trial Sweep::DrawTrial() {
  static const Pattern kDrawn[] = {Pattern::kCodes,  Pattern::kWide,      Pattern::kModel,
                                   Pattern::kModel,  Pattern::kWide,      Pattern::kSpecials,
                                   Pattern::kSparse, Pattern::kCancel,    Pattern::kTiny,
                                   Pattern::kHuge,   Pattern::kSubnormal, Pattern::kMaximal};
  Trial trial;
  GemmCase& h = trial.hardware;
  const bool is_nt = family_.layout == Layout::kNT;
  do {
    h.m = DrawSize(16, kSizeMax, is_nt ? 8 : 1);
    h.n = DrawSize(16, kSizeMax, family_.alignment);
    h.k = DrawSize(16, kSizeMax, is_nt ? 1 : family_.k_alignment);
    if (family_.a_type == "f32") h.k = std::max<int64_t>(8, h.k / 8 * 8);
    // Whole blocks along k half of the time.
    if (family_.is_block_scaled() && Draw64() % 2 == 0) h.k = (h.k + 127) / 128 * 128;
  } while (static_cast<double>(h.m) * static_cast<double>(h.n) * static_cast<double>(h.k) >
           kProductsMax);
  const Pattern a_pattern = kDrawn[Draw64() % std::size(kDrawn)];
  const Pattern b_pattern = Draw64() % 2 == 0 ? a_pattern : kDrawn[Draw64() % std::size(kDrawn)];
  const uint64_t a_seed = Draw64() * 2, b_seed = Draw64() | 1;
  SetOperands(trial, family_, a_pattern, a_seed, b_pattern, b_seed);
  DrawEpilogue(trial);
  return trial;
}

void Sweep::WriteOutput(const std::vector<uint8_t>& d) const {
  if (folder_.empty()) return;
  const std::string name = std::to_string(seed_) + "." + std::to_string(tally_.shapes) + "." +
                           std::to_string(tally_.mismatches_by_algorithm.size());
  std::ofstream file(folder_ + "/" + name, std::ios::binary);
  file.write(reinterpret_cast<const char*>(d.data()), static_cast<std::streamsize>(d.size()));
}

int64_t Sweep::Compare(const Trial& trial, const Algorithm& algorithm,
                       const std::vector<uint8_t>& d, const Tensor& expected) {
  if (std::memcmp(d.data(), expected.data(), d.size()) == 0) return 0;
  const size_t width = static_cast<size_t>(DTypeBytes(expected.dtype()));
  const auto code = [&](const void* data, int64_t index) {
    uint32_t value = 0;
    std::memcpy(&value, static_cast<const char*>(data) + static_cast<size_t>(index) * width, width);
    return value;
  };
  int64_t count = 0, first = -1;
  for (int64_t i = 0; i < expected.element_count(); ++i) {
    if (code(d.data(), i) == code(expected.data(), i)) continue;
    if (count++ == 0) first = i;
  }
  tally_.mismatches_by_algorithm[algorithm.text] += count;
  if (tally_.mismatches_by_algorithm.size() > kDifferencesPrintedMax) return count;
  WriteOutput(d);
  const int digits = static_cast<int>(2 * width);
  std::printf(
      "DIFFERS %s: %s: {%s}: %ld of %ld, first at (%ld, %ld): cuBLASLt 0x%0*x, model 0x%0*x\n  "
      "%s\n",
      family_.Name().c_str(), trial.text.c_str(), algorithm.text.c_str(), static_cast<long>(count),
      static_cast<long>(expected.element_count()), static_cast<long>(first / trial.hardware.n),
      static_cast<long>(first % trial.hardware.n), digits, code(d.data(), first), digits,
      code(expected.data(), first), GemmText(trial.model).c_str());
  return count;
}

Tensor Sweep::ModelOf(const Trial& trial, ArithmeticFamily family, int split_k) {
  GemmDesc desc = trial.model;
  desc.arithmetic.family = family;
  desc.arithmetic.split_k = split_k;
  absl::StatusOr<GemmResult> result = GemmCpu(desc, ExecutionContext{});
  if (!result.ok()) {
    std::printf("REFUSED by the model: %s: %s\n", trial.text.c_str(),
                result.status().ToString().c_str());
    return Tensor();
  }
  tally_.distinct += result->d.element_count();
  return result->d;
}

void Sweep::RunTrial(const Trial& trial) {
  LoadedGemm loaded(device_, trial.hardware);
  std::vector<Algorithm> algorithms =
      loaded.Algorithms(kAlgorithmsMax, CUBLASLT_REDUCTION_SCHEME_NONE);
  if (algorithms.empty()) {
    if (tally_.refused++ < kRefusalsPrintedMax) {
      std::printf("REFUSED %s: %s: heuristic status %d\n", family_.Name().c_str(),
                  trial.text.c_str(), loaded.heuristic_status());
    }
    return;
  }
  const std::string first_text = algorithms.front().text;
  for (Algorithm& algorithm :
       loaded.Algorithms(kAlgorithmsMax, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)) {
    if (algorithm.split_k > 1) algorithms.push_back(std::move(algorithm));
  }
  std::map<std::pair<ArithmeticFamily, int>, Tensor> models;  // By slices of K.
  ++tally_.shapes;
  ++tally_.first_ids[algorithms.front().id];
  std::vector<uint8_t> d;
  for (const Algorithm& algorithm : algorithms) {
    // The kernels of tf32 slice K each in their own way.
    if (family_.a_type == "f32" && algorithm.split_k > 1) continue;
    const ArithmeticFamily arithmetic =
        algorithm.id == kFp32FmaId ? ArithmeticFamily::kFp32 : ArithmeticFamily::kSm90;
    const auto [model, drawn] = models.try_emplace({arithmetic, algorithm.split_k});
    if (drawn) model->second = ModelOf(trial, arithmetic, algorithm.split_k);
    const Tensor& expected = model->second;
    if (!expected.has_value()) continue;
    if (!loaded.Run(algorithm, &d)) {
      std::printf("FAILED %s: %s: {%s}: cublasStatus_t %d\n", family_.Name().c_str(),
                  trial.text.c_str(), algorithm.text.c_str(),
                  static_cast<int>(loaded.run_status()));
      continue;
    }
    const Tally::Kind seen{1, expected.element_count(), Compare(trial, algorithm, d, expected)};
    const bool is_tf32_kernel =
        std::find(std::begin(kTf32Ids), std::end(kTf32Ids), algorithm.id) != std::end(kTf32Ids);
    const bool modelled = family_.is_block_scaled() ||
                          (family_.a_type == "f32" ? is_tf32_kernel : algorithm.id == kWgmmaId);
    (!modelled ? tally_.other : algorithm.split_k > 1 ? tally_.split_k : tally_.modelled).Add(seen);
    if (algorithm.text == first_text) tally_.first.Add(seen);
  }
}

void Sweep::RunFor(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  do {
    RunTrial(DrawTrial());
  } while (Clock::now() < end);
}

void PrintRow(const std::string& name, const Tally& t) {
  const auto kind = [](const Tally::Kind& k) {
    return std::to_string(k.runs) + ", " + std::to_string(k.compared) + ", " +
           std::to_string(k.mismatches);
  };
  std::printf("| %s | %d (%d refused) | %ld | %ld, %ld | %s | %s | %s |\n", name.c_str(), t.shapes,
              t.refused, static_cast<long>(t.distinct), static_cast<long>(t.first.compared),
              static_cast<long>(t.first.mismatches), kind(t.modelled).c_str(),
              kind(t.split_k).c_str(), kind(t.other).c_str());
}

int Main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 400.0;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const std::string filter = argc > 3 ? argv[3] : "", folder = argc > 4 ? argv[4] : "";
  Device device;
  std::printf("%s; %s, %d CPUs; seed %lu\n", device.Origin().c_str(),
              std::string(IsaName(BestIsa())).c_str(), AvailableCpus(),
              static_cast<unsigned long>(seed));
  std::vector<Family> families = AllFamilies();
  std::erase_if(families, [&](const Family& family) {
    return family.Name().find(filter) == std::string::npos;
  });
  std::vector<Tally> tallies;
  Tally total;
  for (size_t i = 0; i < families.size(); ++i) {
    Sweep sweep(device, families[i], seed * 1000 + i, folder);
    sweep.RunFor(seconds / static_cast<double>(families.size()));
    tallies.push_back(sweep.tally());
    std::fflush(stdout);
  }
  std::printf(
      "\n| operands, output, layout | shapes | model outputs | first choice: outputs, differ | "
      "wgmma kernels: "
      "runs, outputs, differ | split-K: runs, outputs, differ | other kernels: runs, outputs, "
      "differ |\n"
      "|---|---|---|---|---|---|---|\n");
  for (size_t i = 0; i < families.size(); ++i) {
    PrintRow(families[i].Name(), tallies[i]);
    total.Add(tallies[i]);
  }
  PrintRow("**all**", total);
  for (size_t i = 0; i < families.size(); ++i) {
    std::printf("first choices of %s:", families[i].Name().c_str());
    for (const auto& [id, count] : tallies[i].first_ids) std::printf(" %d shapes id=%d", count, id);
    std::printf("\n");
    for (const auto& [algorithm, count] : tallies[i].mismatches_by_algorithm) {
      std::printf("differences of %s: {%s}: %ld\n", families[i].Name().c_str(), algorithm.c_str(),
                  static_cast<long>(count));
    }
  }
  return total.modelled.mismatches + total.split_k.mismatches == 0 ? 0 : 1;
}

}  // namespace
}  // namespace quantgate::hardware

int main(int argc, char** argv) { return quantgate::hardware::Main(argc, argv); }
