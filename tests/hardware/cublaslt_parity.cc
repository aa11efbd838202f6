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
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/execution.h"
#include "kernels/gemm/cublaslt/algorithm_inventory.h"
#include "kernels/gemm/cublaslt/hardware_check.h"
#include "tests/hardware/cublaslt_runs.h"
#include "tests/hardware/gemm_family.h"

namespace quantgate::hardware {
namespace {

using testing::Mix;
using testing::Pattern;

constexpr size_t kAlgorithmsMax = 8;           // Without split-K, and as many with it.
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
  Sweep(CublasLtRuns& cublaslt, const Family& family, uint64_t seed, std::string folder)
      : cublaslt_(cublaslt), family_(family), seed_(seed), folder_(std::move(folder)) {}

  void RunFor(double seconds);
  const Tally& tally() const { return tally_; }

 private:
  uint64_t Draw64() { return Mix(seed_, counter_++); }
  int64_t DrawSize(int64_t low, int64_t high, int64_t multiple);
  Trial DrawTrial();
  void DrawScalesOf(Trial& trial);
  void DrawEpilogue(Trial& trial);
  void RunTrial(const Trial& trial);
  void RunAlgorithm(const Trial& trial, const GemmDesc& placed, const CublasLtAlgorithm& algorithm,
                    bool is_first);
  /// Outputs that differ; prints the first few of a family.
  int64_t Compare(const Trial& trial, const CublasLtAlgorithm& algorithm, const Tensor& d,
                  const Tensor& expected);
  void WriteOutput(const Tensor& d) const;
  /// The trial's outputs under an arithmetic, computed once. Absent, with a line printed, where the
  /// model refuses.
  const Tensor& ModelUnder(const Trial& trial, const Arithmetic& arithmetic);

  CublasLtRuns& cublaslt_;
  const Family& family_;
  const uint64_t seed_;
  const std::string folder_;  // Empty: differing outputs are not written.
  uint64_t counter_ = 0;
  Tally tally_;
  std::map<std::string, Tensor> models_;  // Of the trial at hand, by arithmetic.
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
  if (family_.is_block_scaled()) {
    static const ScaleValues kDrawn[] = {ScaleValues::kPowers,    ScaleValues::kPowers,
                                         ScaleValues::kFractions, ScaleValues::kFractions,
                                         ScaleValues::kWide,      ScaleValues::kSpecials};
    SetBlockScales(trial, family_, kDrawn[Draw64() % std::size(kDrawn)], Draw64());
    return;
  }
  if (!family_.is_fp8() || Draw64() % 3 == 0) return;
  const bool outer = Draw64() % 4 == 0 && !IsFp8(trial.gemm.out_dtype);
  const ScaleMode scaling = outer ? ScaleMode::kOuter : ScaleMode::kTensor;
  const auto [m, n, k] = trial.shape;
  const auto scaled = [&, k = k](const GemmOperand& operand, int64_t rows) {
    std::vector<float> values(static_cast<size_t>(ScaleCount(scaling, rows, k)));
    for (float& value : values) value = static_cast<float>(1 + Draw64() % 1000) / 377.0f;
    return WithScales(operand, scaling, values, rows, k);
  };
  trial.gemm.a = scaled(trial.gemm.a, m);
  trial.gemm.b = scaled(trial.gemm.b, n);
  trial.text += outer ? " outer scales" : " tensor scales";
}

void Sweep::DrawEpilogue(Trial& trial) {
  GemmDesc& gemm = trial.gemm;
  const auto draw_float = [&] {
    return static_cast<float>(static_cast<int>(Draw64() % 4001) - 2000) / 731.0f;
  };
  DrawScalesOf(trial);
  if (IsFp8(gemm.out_dtype)) {
    gemm.d_scale = *Tensor::FromScalar(draw_float());
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
  std::snprintf(text, sizeof(text), " alpha %.9g beta %.9g%s%s", gemm.alpha, gemm.beta,
                gemm.in_place ? " in place" : "", gemm.bias.has_value() ? " bias" : "");
  trial.text += text;
}

Trial Sweep::DrawTrial() {
  static const Pattern kDrawn[] = {Pattern::kCodes,  Pattern::kWide,      Pattern::kModel,
                                   Pattern::kModel,  Pattern::kWide,      Pattern::kSpecials,
                                   Pattern::kSparse, Pattern::kCancel,    Pattern::kTiny,
                                   Pattern::kHuge,   Pattern::kSubnormal, Pattern::kMaximal};
  Trial trial;
  auto& [m, n, k] = trial.shape;
  const bool is_nt = family_.layout == GemmLayout::kNT;
  do {
    m = DrawSize(16, kSizeMax, is_nt ? 8 : family_.a_block == ScaleMode::k1x128 ? 4 : 1);
    n = DrawSize(16, kSizeMax, family_.alignment);
    k = DrawSize(16, kSizeMax, is_nt ? 1 : family_.k_alignment);
    if (family_.a_type == "f32") k = std::max<int64_t>(8, k / 8 * 8);
    // Whole blocks along k half of the time.
    if (family_.is_block_scaled() && Draw64() % 2 == 0) k = (k + 127) / 128 * 128;
  } while (static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) > kProductsMax);
  const Pattern a_pattern = kDrawn[Draw64() % std::size(kDrawn)];
  const Pattern b_pattern = Draw64() % 2 == 0 ? a_pattern : kDrawn[Draw64() % std::size(kDrawn)];
  const uint64_t a_seed = Draw64() * 2, b_seed = Draw64() | 1;
  SetOperands(trial, family_, a_pattern, a_seed, b_pattern, b_seed);
  DrawEpilogue(trial);
  return trial;
}

void Sweep::WriteOutput(const Tensor& d) const {
  if (folder_.empty()) return;
  const std::string name = std::to_string(seed_) + "." + std::to_string(tally_.shapes) + "." +
                           std::to_string(tally_.mismatches_by_algorithm.size());
  std::ofstream file(folder_ + "/" + name, std::ios::binary);
  file.write(reinterpret_cast<const char*>(d.data()), static_cast<std::streamsize>(d.byte_size()));
}

int64_t Sweep::Compare(const Trial& trial, const CublasLtAlgorithm& algorithm, const Tensor& d,
                       const Tensor& expected) {
  const std::optional<OutputDifference> found = FirstDifference(d, expected);
  if (!found.has_value()) return 0;
  const std::string text = algorithm.ToString();
  tally_.mismatches_by_algorithm[text] += found->count;
  if (tally_.mismatches_by_algorithm.size() > kDifferencesPrintedMax) return found->count;
  WriteOutput(d);
  const int digits = 2 * found->bytes;
  std::printf(
      "DIFFERS %s: %s: {%s}: %ld of %ld, first at (%ld, %ld): cuBLASLt 0x%0*x, model 0x%0*x\n  "
      "%s\n",
      family_.Name().c_str(), trial.text.c_str(), text.c_str(), static_cast<long>(found->count),
      static_cast<long>(found->of), static_cast<long>(found->row), static_cast<long>(found->column),
      digits, found->hardware_bits, digits, found->model_bits, GemmText(trial.gemm).c_str());
  return found->count;
}

const Tensor& Sweep::ModelUnder(const Trial& trial, const Arithmetic& arithmetic) {
  const auto [model, is_new] = models_.try_emplace(arithmetic.ToString());
  if (!is_new) return model->second;
  GemmDesc desc = trial.gemm;
  desc.arithmetic = arithmetic;
  absl::StatusOr<GemmResult> result = GemmCpu(desc, ExecutionContext{});
  if (result.ok()) {
    tally_.distinct += result->d.element_count();
    model->second = result->d;
  } else {
    std::printf("REFUSED by the model: %s: %s\n", trial.text.c_str(),
                result.status().ToString().c_str());
  }
  return model->second;
}

void Sweep::RunAlgorithm(const Trial& trial, const GemmDesc& placed,
                         const CublasLtAlgorithm& algorithm, bool is_first) {
  const bool is_split = algorithm.split_k > 1;
  const std::optional<Arithmetic> known = ModelOf(placed, algorithm);
  // Kernels of older generations are held against what their operands would have.
  Arithmetic unknown = placed.arithmetic.Model();
  unknown.split_k = std::max(1, algorithm.split_k);
  const Tensor& expected = ModelUnder(trial, known.value_or(unknown));
  if (!expected.has_value()) return;
  const absl::StatusOr<GemmResult> result = cublaslt_.Run(placed, algorithm);
  if (!result.ok()) {
    std::printf("FAILED %s: %s: %s\n", family_.Name().c_str(), trial.text.c_str(),
                result.status().ToString().c_str());
    return;
  }
  const Tensor d = Need(cublaslt_.device().ToHost(result->d));
  const Tally::Kind seen{1, expected.element_count(), Compare(trial, algorithm, d, expected)};
  (!known.has_value() ? tally_.other : is_split ? tally_.split_k : tally_.modelled).Add(seen);
  if (is_first) tally_.first.Add(seen);
}

void Sweep::RunTrial(const Trial& trial) {
  GemmDesc placed = cublaslt_.Placed(trial.gemm);
  const std::vector<CublasLtAlgorithm> whole = cublaslt_.Algorithms(placed, kAlgorithmsMax);
  if (whole.empty()) {
    if (tally_.refused++ < kRefusalsPrintedMax) {
      std::printf("REFUSED %s: %s: %s\n", family_.Name().c_str(), trial.text.c_str(),
                  cublaslt_.refusal().c_str());
    }
    return;
  }
  ++tally_.shapes;
  ++tally_.first_ids[whole.front().id];
  models_.clear();
  for (const CublasLtAlgorithm& algorithm : whole) {
    RunAlgorithm(trial, placed, algorithm, algorithm.index == 0);
  }
  if (family_.a_type == "f32") return;  // The kernels of tf32 slice K each in their own way.
  placed.arithmetic.any_split_k = true;
  for (const CublasLtAlgorithm& algorithm : cublaslt_.Algorithms(placed, kAlgorithmsMax)) {
    if (algorithm.split_k > 1) RunAlgorithm(trial, placed, algorithm, false);
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
  CublasLtRuns cublaslt;
  std::printf("%s; %s, %d CPUs; seed %lu\n", DeviceText().c_str(),
              std::string(IsaName(BestIsa())).c_str(), AvailableCpus(),
              static_cast<unsigned long>(seed));
  std::vector<Family> families = AllFamilies();
  std::erase_if(families, [&](const Family& family) {
    return family.Name().find(filter) == std::string::npos;
  });
  std::vector<Tally> tallies;
  Tally total;
  for (size_t i = 0; i < families.size(); ++i) {
    Sweep sweep(cublaslt, families[i], seed * 1000 + i, folder);
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
