// Compares GemmCpu's sm90 arithmetic with cuBLASLt on the device at hand, bit for bit, over many
// shapes:
//   cublaslt_parity [SECONDS] [SEED] [FOLDER]
// Each family of operand and output types gets an equal share of SECONDS (default 400). Shapes,
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
#include "tests/gemm/operand_pattern.h"
#include "tests/hardware/cublaslt_gemm.h"

namespace quantgate::hardware {
namespace {

using testing::CodeFormatOf;
using testing::Mix;
using testing::Pattern;
using testing::PatternName;

constexpr int kAlgorithmsMax = 8;
// Families of kernels (CUBLASLT_ALGO_CONFIG_ID). 66: wgmma, every type but tf32. 21, 23, 43, 63:
// tf32 tensor cores (21 and 23 take other types too, by other rules). 55: f32 operands by fp32 FMA
// over k, the arithmetic fp32.
constexpr int kWgmmaId = 66, kFp32FmaId = 55;
constexpr int kTf32Ids[] = {21, 23, 43, 63, kFp32FmaId};
constexpr size_t kDifferencesPrintedMax = 12;  // Per family.
constexpr double kProductsMax = 2.0e10;  // Of one shape: what 16 cores do in about half a second.

struct Family {
  std::string a_type, b_type, d_type;
  Layout layout = Layout::kTN;
  bool split_accumulator = false;
  int alignment = 8;  // Of n and k; m takes any value where the layout lets it.
  int k_alignment = 8;
  bool in_place = true;  // Drawn among the epilogues.
  bool bias = true;
  bool is_fp8() const { return a_type.starts_with("f8"); }
  int chunk() const { return is_fp8() ? 32 : a_type == "f32" ? 8 : 16; }
  std::string Name() const {
    static const char* const kLayouts[] = {"TN", "NN", "NT"};
    std::string name =
        a_type + " x " + b_type + " -> " + d_type + ", " + kLayouts[static_cast<int>(layout)];
    if (is_fp8()) name += split_accumulator ? ", split" : ", fast";
    return name;
  }
};

std::vector<Family> AllFamilies() {
  std::vector<Family> families;
  for (const std::string type : {"bf16", "f16"}) {
    for (const Layout layout : {Layout::kTN, Layout::kNN, Layout::kNT}) {
      families.push_back({type, type, type, layout});
      families.push_back({type, type, "f32", layout});
    }
  }
  for (const Layout layout : {Layout::kTN, Layout::kNN, Layout::kNT}) {
    // The tf32 kernels that are not wgmma add C and a bias by other rules
    // (tests/hardware/README.md).
    families.push_back({"f32", "f32", "f32", layout, false, 8, 8, false, false});
  }
  const std::pair<std::string, std::string> pairs[] = {
      {"f8_e4m3", "f8_e4m3"}, {"f8_e5m2", "f8_e4m3"}, {"f8_e4m3", "f8_e5m2"}};
  for (const auto& [a, b] : pairs) {
    for (const bool split : {false, true}) {
      for (const std::string d_type : {"f32", "bf16", "f16"}) {
        families.push_back({a, b, d_type, Layout::kTN, split, 8, 16});
      }
    }
    families.push_back({a, b, "f8_e4m3", Layout::kTN, false, 16, 16, false, true});
  }
  return families;
}

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
  int shapes = 0;
  int64_t distinct = 0;  // Outputs that the model computed.
  Kind first;            // The algorithm that the heuristic ranks first: what a caller gets.
  Kind modelled;         // All of the kernels that sm90 models, without split-K.
  Kind split_k;          // The same with split-K.
  Kind other;            // Kernels of older generations, offered further down the list.
  std::map<int, int> first_ids;  // Shapes by the kernel family of the first choice.
  std::map<std::string, int64_t> mismatches_by_algorithm;
  void Add(const Tally& t) {
    shapes += t.shapes, distinct += t.distinct;
    first.Add(t.first), modelled.Add(t.modelled), split_k.Add(t.split_k), other.Add(t.other);
  }
};

DType DTypeOf(const std::string& name) { return *ParseDType(name); }

Tensor TensorOf(const std::string& type, Shape shape, const std::vector<uint8_t>& bytes) {
  absl::StatusOr<Tensor> tensor =
      Tensor::FromBytes(DTypeOf(type), std::move(shape), std::as_bytes(std::span(bytes)));
  if (!tensor.ok()) {
    std::fprintf(stderr, "%s\n", tensor.status().ToString().c_str());
    std::exit(1);
  }
  return *std::move(tensor);
}

/// The same matrix as testing::PatternMatrix, on all cores, optionally stored transposed.
std::vector<uint8_t> Draw(Pattern pattern, const std::string& type, int chunk, uint64_t seed,
                          int64_t rows, int64_t columns, bool transposed) {
  const auto& format = CodeFormatOf(type);
  const size_t width = static_cast<size_t>(format.bytes);
  std::vector<uint8_t> bytes(static_cast<size_t>(rows * columns) * width);
  ParallelFor(ExecutionContext{}, rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t k = 0; k < columns; ++k) {
        const uint32_t code = testing::PatternCode(pattern, format, chunk, seed, row, k, columns);
        const int64_t index = transposed ? k * rows + row : row * columns + k;
        std::memcpy(&bytes[static_cast<size_t>(index) * width], &code, width);
      }
    }
  });
  return bytes;
}

/// A shape, its data and its epilogue, for the hardware and for the model.
struct Trial {
  GemmCase hardware;
  GemmDesc model;
  std::string text;
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

void Sweep::DrawEpilogue(Trial& trial) {
  GemmCase& h = trial.hardware;
  GemmDesc& model = trial.model;
  const auto draw_float = [&] {
    return static_cast<float>(static_cast<int>(Draw64() % 4001) - 2000) / 731.0f;
  };
  const auto set_c = [&] {
    h.c = Draw(Pattern::kModel, h.d_type, 1, Draw64(), h.m, h.n, false);
    model.c = TensorOf(h.d_type, {h.m, h.n}, h.c);
  };
  const bool d_is_fp8 = h.d_type.starts_with("f8");
  if (family_.is_fp8() && Draw64() % 3 != 0) {
    const bool outer = Draw64() % 4 == 0 && !d_is_fp8;
    const auto scale = [&](int64_t count, std::vector<float>& values, Scaling& mode,
                           GemmOperand& operand) {
      values.resize(static_cast<size_t>(outer ? count : 1));
      for (float& value : values) value = static_cast<float>(1 + Draw64() % 1000) / 377.0f;
      mode = outer ? Scaling::kOuter : Scaling::kTensor;
      operand.scaling = outer ? ScaleMode::kOuter : ScaleMode::kTensor;
      const auto* first = reinterpret_cast<const uint8_t*>(values.data());
      operand.scale_inv = TensorOf("f32", {static_cast<int64_t>(values.size())},
                                   {first, first + values.size() * sizeof(float)});
    };
    scale(h.m, h.a_scale, h.a_scaling, model.a);
    scale(h.n, h.b_scale, h.b_scaling, model.b);
    trial.text += outer ? " outer scales" : " tensor scales";
  }
  if (d_is_fp8) {
    h.has_d_scale = h.has_amax = true;
    h.d_scale = draw_float();
    model.d_scale = *Tensor::FromScalar(h.d_scale);
    return;
  }
  const uint64_t kind = Draw64() % 8;
  if (family_.a_type == "f32") {  // Other values of alpha and beta depend on the kernel.
    if (kind >= 4) h.beta = model.beta = 1.0f, set_c(), trial.text += " beta 1";
    return;
  }
  if (kind >= 4 && kind <= 5) {
    h.alpha = draw_float();
    h.beta = kind == 4 ? 1.0f : draw_float() + 0.0001f;  // Never 0.
    set_c();
  } else if (kind == 6 && family_.in_place) {
    h.beta = 1.0f, h.in_place = true;
    set_c();
  }
  if ((kind == 7 || kind == 5) && family_.bias) {
    h.bias_type = family_.is_fp8() && h.d_type == "f32" ? "bf16" : h.d_type;
    h.bias = Draw(Pattern::kModel, h.bias_type, 1, Draw64(), 1, h.n, false);
    model.bias = TensorOf(h.bias_type, {h.n}, h.bias);
  }
  model.alpha = h.alpha, model.beta = h.beta, model.in_place = h.in_place;
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
  h.layout = family_.layout;
  h.a_type = family_.a_type, h.b_type = family_.b_type, h.d_type = family_.d_type;
  h.split_accumulator = family_.split_accumulator;
  do {
    h.m = DrawSize(16, 2048, h.layout == Layout::kNT ? 8 : 1);
    h.n = DrawSize(16, 2048, family_.alignment);
    h.k = DrawSize(16, 4096, h.layout == Layout::kNT ? 1 : family_.k_alignment);
    if (h.a_type == "f32") h.k = std::max<int64_t>(8, h.k / 8 * 8);
  } while (static_cast<double>(h.m) * static_cast<double>(h.n) * static_cast<double>(h.k) >
           kProductsMax);
  const Pattern a_pattern = kDrawn[Draw64() % std::size(kDrawn)];
  const Pattern b_pattern = Draw64() % 2 == 0 ? a_pattern : kDrawn[Draw64() % std::size(kDrawn)];
  const uint64_t a_seed = Draw64() * 2, b_seed = Draw64() | 1;
  h.a = Draw(a_pattern, h.a_type, family_.chunk(), a_seed, h.m, h.k, h.layout == Layout::kNT);
  h.b = Draw(b_pattern, h.b_type, family_.chunk(), b_seed, h.n, h.k, h.layout != Layout::kTN);

  GemmDesc& model = trial.model;
  model.a.data =
      TensorOf(h.a_type, h.layout == Layout::kNT ? Shape{h.k, h.m} : Shape{h.m, h.k}, h.a);
  model.b.data =
      TensorOf(h.b_type, h.layout == Layout::kTN ? Shape{h.n, h.k} : Shape{h.k, h.n}, h.b);
  model.layout = static_cast<GemmLayout>(h.layout);
  model.arithmetic.family = ArithmeticFamily::kSm90;
  model.use_split_accumulator = h.split_accumulator;
  model.out_dtype = DTypeOf(h.d_type);
  const auto operand_text = [](Pattern pattern, uint64_t seed) {
    return " " + std::string(PatternName(pattern)) + ":" + std::to_string(seed);
  };
  trial.text = "m=" + std::to_string(h.m) + " n=" + std::to_string(h.n) +
               " k=" + std::to_string(h.k) + operand_text(a_pattern, a_seed) +
               operand_text(b_pattern, b_seed);
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
    std::printf("REFUSED %s: %s: heuristic status %d\n", family_.Name().c_str(), trial.text.c_str(),
                loaded.heuristic_status());
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
    const bool modelled = family_.a_type == "f32" ? is_tf32_kernel : algorithm.id == kWgmmaId;
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
  std::printf("| %s | %d | %ld | %ld, %ld | %s | %s | %s |\n", name.c_str(), t.shapes,
              static_cast<long>(t.distinct), static_cast<long>(t.first.compared),
              static_cast<long>(t.first.mismatches), kind(t.modelled).c_str(),
              kind(t.split_k).c_str(), kind(t.other).c_str());
}

int Main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 400.0;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const std::string folder = argc > 3 ? argv[3] : "";
  Device device;
  std::printf("%s; %s, %d CPUs; seed %lu\n", device.Origin().c_str(),
              std::string(IsaName(BestIsa())).c_str(), AvailableCpus(),
              static_cast<unsigned long>(seed));
  const std::vector<Family> families = AllFamilies();
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
