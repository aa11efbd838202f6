// Which kernels does cuBLASLt's heuristic return, and which of them does the model reproduce?
//   cublaslt_inventory [SECONDS] [SEED] [FILTER]
// Over shapes with m, n, k in 16 ... 8192, for every family of operand types, layouts and scaling,
// every algorithm that the heuristic returns, asked for any reduction scheme and then for none
// (where it has none of these: what it would let split K, made not to), runs with one of four
// epilogues. Its output is compared with GemmCpu's on up to 256 rows. Prints
// a Markdown table by class of algorithm: runs whose bits are all equal, runs that differ, outputs.
// Shapes are visited in an order drawn from SEED until a family's share of SECONDS (default 420) is
// used up.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/base/execution.h"
#include "kernels/gemm/scaling_check.h"
#include "tests/hardware/cublaslt_runs.h"
#include "tests/hardware/gemm_family.h"

namespace quantgate::hardware {
namespace {

using testing::Mix;
using testing::Pattern;

constexpr size_t kAlgorithmsMax = 32;
constexpr int64_t kBandRows = 128;  // A tile of block scales: row bands begin at its multiples.
constexpr int64_t kSizes[] = {16,  24,  32,   48,   64,   96,   128,  192,  256, 384,
                              512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192};
constexpr int kSizeCount = std::size(kSizes);
constexpr int kFp32FmaId = 55;

/// Rows [0, 128) and the last begun tile of 128: what is compared of an output.
struct Band {
  int64_t begin, end;
};
std::vector<Band> BandsOf(int64_t m) {
  std::vector<Band> bands = {{0, std::min(m, kBandRows)}};
  const int64_t last = (m - 1) / kBandRows * kBandRows;
  if (last > 0) bands.push_back({last, m});
  return bands;
}

enum class EpilogueKind { kPlain, kSum, kInPlace, kBias };
const char* const kEpilogueNames[] = {"plain", "alpha, beta", "beta 1 in place", "bias"};

/// (family, algorithm id, split-K with its reduction scheme or none, epilogue).
using ClassKey = std::tuple<std::string, int, std::string, std::string>;

struct ClassCounts {
  int equal_runs = 0, differing_runs = 0, refused_runs = 0, first_choices = 0;
  int64_t outputs = 0, differing = 0;
  std::string example;  // Of a run that differs.
  void Add(const ClassCounts& c) {
    equal_runs += c.equal_runs, differing_runs += c.differing_runs;
    refused_runs += c.refused_runs, first_choices += c.first_choices;
    outputs += c.outputs, differing += c.differing;
    if (example.empty()) example = c.example;
  }
};

using Classes = std::map<ClassKey, ClassCounts>;

std::string SchemeName(const CublasLtAlgorithm& algorithm, bool may_split) {
  if (algorithm.split_k < 0) return "the kernel's own";
  if (algorithm.split_k <= 1) return may_split ? "none" : "none, split-K forbidden";
  switch (algorithm.reduction_scheme) {  // cublasLtReductionScheme_t.
    case 1:
      return "split-K in place";
    case 2:
      return "split-K in fp32";
    case 4:
      return "split-K in the output type";
    default:
      return "split-K scheme " + std::to_string(algorithm.reduction_scheme);
  }
}

/// Rows `bands` of a row-major matrix, or columns of one stored transposed.
Tensor Cut(const Tensor& matrix, const std::vector<Band>& bands, bool transposed) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(matrix.data());
  const int64_t width = DTypeBytes(matrix.dtype());
  const int64_t rows = matrix.shape()[transposed ? 1 : 0];
  const int64_t columns = matrix.shape()[transposed ? 0 : 1];
  std::vector<uint8_t> out;
  int64_t kept = 0;
  for (const Band& band : bands) kept += band.end - band.begin;
  const auto append = [&](int64_t begin, int64_t count) {
    out.insert(out.end(), bytes + begin * width, bytes + (begin + count) * width);
  };
  for (const Band& band : bands) {
    if (transposed) break;
    append(band.begin * columns, (band.end - band.begin) * columns);
  }
  for (int64_t k = 0; transposed && k < columns; ++k) {
    for (const Band& band : bands) append(k * rows + band.begin, band.end - band.begin);
  }
  const std::string type(DTypeName(matrix.dtype()));
  return TensorOf(type, transposed ? Shape{columns, kept} : Shape{kept, columns}, out);
}

/// The trial's model with the rows of `bands` alone.
GemmDesc BandModel(const Trial& trial, const std::vector<Band>& bands) {
  GemmDesc model = trial.gemm;
  model.a.data = Cut(model.a.data, bands, model.layout == GemmLayout::kNT);
  if (model.c.has_value()) model.c = Cut(model.c, bands, false);
  if (!IsFp8Block(model.a.scaling)) return model;
  std::vector<Band> blocks = bands;
  if (model.a.scaling == ScaleMode::k128x128) {
    for (Band& band : blocks) {
      band = {band.begin / kBandRows, (band.end + kBandRows - 1) / kBandRows};
    }
  }
  model.a.scale_inv = Cut(model.a.scale_inv, blocks, false);
  return model;
}

/// Runs one family and counts its classes.
class Inventory {
 public:
  Inventory(CublasLtRuns& cublaslt, const Family& family, uint64_t seed)
      : cublaslt_(cublaslt), family_(family), seed_(seed) {}

  void RunFor(double seconds);
  const Classes& classes() const { return classes_; }
  int shapes() const { return shapes_; }
  int refused() const { return refused_; }

 private:
  using Models = std::map<std::pair<bool, int>, Tensor>;  // By fp32 arithmetic or not, slices of K.

  Trial DrawTrial(int64_t m, int64_t n, int64_t k, EpilogueKind epilogue, uint64_t seed) const;
  void RunShape(int64_t m, int64_t n, int64_t k, uint64_t index);
  void RunAlgorithms(const GemmDesc& placed, const std::vector<CublasLtAlgorithm>& algorithms,
                     EpilogueKind epilogue, const Trial& trial, const std::vector<Band>& bands,
                     const GemmDesc& band_model, Models& models);
  /// Absent where the model refuses.
  Tensor ModelOf(const GemmDesc& band_model, const CublasLtAlgorithm& algorithm) const;
  int64_t CountDifferences(const Tensor& d, const std::vector<Band>& bands, const Tensor& expected);

  CublasLtRuns& cublaslt_;
  const Family& family_;
  const uint64_t seed_;
  Classes classes_;
  std::vector<uint8_t> rows_;
  int shapes_ = 0, refused_ = 0;
};

Trial Inventory::DrawTrial(int64_t m, int64_t n, int64_t k, EpilogueKind epilogue,
                           uint64_t seed) const {
  Trial trial;
  trial.shape = {m, n, k};
  const Pattern pattern = seed % 2 == 0 ? Pattern::kModel : Pattern::kWide;
  SetOperands(trial, family_, pattern, seed * 2, pattern, seed * 2 + 1);
  SetBlockScales(trial, family_, ScaleValues::kFractions, seed);
  if (IsFp8(trial.gemm.out_dtype)) {
    trial.gemm.d_scale = *Tensor::FromScalar(0.37f);
    return trial;
  }
  switch (epilogue) {
    case EpilogueKind::kPlain:
      break;
    case EpilogueKind::kSum:
      SetSums(trial, family_.a_type == "f32" ? 1.0f : 0.7f, family_.a_type == "f32" ? 1.0f : 0.3f,
              false);
      SetC(trial, seed);
      break;
    case EpilogueKind::kInPlace:
      SetSums(trial, 1.0f, 1.0f, true);
      SetC(trial, seed);
      break;
    case EpilogueKind::kBias:
      SetBias(trial, family_, seed);
      break;
  }
  return trial;
}

Tensor Inventory::ModelOf(const GemmDesc& band_model, const CublasLtAlgorithm& algorithm) const {
  GemmDesc desc = band_model;
  if (algorithm.id == kFp32FmaId) desc.arithmetic.family = ArithmeticFamily::kFp32;
  desc.arithmetic.split_k = std::max(1, algorithm.split_k);  // Some kernels say 0.
  absl::StatusOr<GemmResult> result = GemmCpu(desc, ExecutionContext{});
  return result.ok() ? result->d : Tensor();
}

int64_t Inventory::CountDifferences(const Tensor& d, const std::vector<Band>& bands,
                                    const Tensor& expected) {
  const auto width = static_cast<size_t>(DTypeBytes(d.dtype()));
  const size_t row_bytes = static_cast<size_t>(d.columns()) * width;
  const auto* first = reinterpret_cast<const uint8_t*>(d.data());
  rows_.resize(expected.bytes().size());
  size_t at = 0;
  for (const Band& band : bands) {
    const size_t bytes = static_cast<size_t>(band.end - band.begin) * row_bytes;
    Need(cublaslt_.device().Read(first + static_cast<size_t>(band.begin) * row_bytes, &rows_[at],
                                 bytes));
    at += bytes;
  }
  const auto* model = reinterpret_cast<const uint8_t*>(expected.data());
  if (std::memcmp(rows_.data(), model, rows_.size()) == 0) return 0;
  int64_t count = 0;
  for (size_t i = 0; i < rows_.size(); i += width) {
    count += std::memcmp(&rows_[i], model + i, width) != 0;
  }
  return count;
}

void Inventory::RunShape(int64_t m, int64_t n, int64_t k, uint64_t index) {
  const auto epilogue = static_cast<EpilogueKind>(index % 4);
  const Trial trial = DrawTrial(m, n, k, epilogue, Mix(seed_, index) >> 8);
  GemmDesc placed = cublaslt_.Placed(trial.gemm);
  placed.arithmetic.any_split_k = true;
  const std::vector<CublasLtAlgorithm> any = cublaslt_.Algorithms(placed, kAlgorithmsMax);
  if (any.empty()) {
    ++refused_;
    return;
  }
  ++shapes_;
  const std::vector<Band> bands = BandsOf(m);
  const GemmDesc band_model = BandModel(trial, bands);
  Models models;
  RunAlgorithms(placed, any, epilogue, trial, bands, band_model, models);
  placed.arithmetic.any_split_k = false;
  RunAlgorithms(placed, cublaslt_.Algorithms(placed, kAlgorithmsMax), epilogue, trial, bands,
                band_model, models);
}

void Inventory::RunAlgorithms(const GemmDesc& placed,
                              const std::vector<CublasLtAlgorithm>& algorithms,
                              EpilogueKind epilogue, const Trial& trial,
                              const std::vector<Band>& bands, const GemmDesc& band_model,
                              Models& models) {
  const char* const what =
      IsFp8(placed.out_dtype) ? "D scale" : kEpilogueNames[static_cast<int>(epilogue)];
  for (const CublasLtAlgorithm& algorithm : algorithms) {
    ClassCounts& counts = classes_[{family_.Name(), algorithm.id,
                                    SchemeName(algorithm, placed.arithmetic.any_split_k), what}];
    counts.first_choices += algorithm.index == 0;
    const auto [model, is_new] =
        models.try_emplace({algorithm.id == kFp32FmaId, algorithm.split_k});
    if (is_new) model->second = ModelOf(band_model, algorithm);
    const absl::StatusOr<GemmResult> result = cublaslt_.Run(placed, algorithm);
    if (!model->second.has_value() || !result.ok()) {
      ++counts.refused_runs;
      continue;
    }
    const int64_t differing = CountDifferences(result->d, bands, model->second);
    counts.outputs += model->second.element_count();
    counts.differing += differing;
    ++(differing == 0 ? counts.equal_runs : counts.differing_runs);
    if (differing != 0 && counts.example.empty()) {
      counts.example = trial.text + " {" + algorithm.ToString() + "} " + std::to_string(differing);
    }
  }
}

void Inventory::RunFor(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  constexpr uint64_t kShapeCount = uint64_t{kSizeCount} * kSizeCount * kSizeCount;
  // A step coprime to the count (19^3) visits every shape once.
  const uint64_t first = Mix(seed_, 0) % kShapeCount, step = 4099;
  for (uint64_t i = 0; i < kShapeCount && Clock::now() < end; ++i) {
    const uint64_t shape = (first + i * step) % kShapeCount;
    const int64_t m = kSizes[shape % kSizeCount], n = kSizes[shape / kSizeCount % kSizeCount],
                  k = kSizes[shape / kSizeCount / kSizeCount];
    if (n % family_.alignment != 0 || k % family_.k_alignment != 0) continue;
    RunShape(m, n, k, i);
  }
}

void PrintTable(const Classes& classes) {
  std::printf(
      "\n| operands, output, layout | algorithm id | slices | epilogue | first choices | runs "
      "equal "
      "| runs that differ | not run | outputs compared | outputs that differ |\n"
      "|---|---|---|---|---|---|---|---|---|---|\n");
  ClassCounts total;
  for (const auto& [key, c] : classes) {
    const auto& [family, id, slices, epilogue] = key;
    std::printf("| %s | %d | %s | %s | %d | %d | %d | %d | %ld | %ld |\n", family.c_str(), id,
                slices.c_str(), epilogue.c_str(), c.first_choices, c.equal_runs, c.differing_runs,
                c.refused_runs, static_cast<long>(c.outputs), static_cast<long>(c.differing));
    total.Add(c);
  }
  std::printf("| **all** | | | | %d | %d | %d | %d | %ld | %ld |\n\n", total.first_choices,
              total.equal_runs, total.differing_runs, total.refused_runs,
              static_cast<long>(total.outputs), static_cast<long>(total.differing));
  for (const auto& [key, c] : classes) {
    const auto& [family, id, slices, epilogue] = key;
    if (c.example.empty()) continue;
    std::printf("DIFFERS %s id %d %s, %s: %s\n", family.c_str(), id, slices.c_str(),
                epilogue.c_str(), c.example.c_str());
  }
}

/// Classes by operand type and id alone: what `quantgate info` states.
void PrintSummary(const Classes& classes) {
  std::map<std::tuple<std::string, int, std::string>, ClassCounts> by_id;
  for (const auto& [key, c] : classes) {
    const std::string& family = std::get<0>(key);
    by_id[{family.substr(0, family.find(" ->")), std::get<1>(key), std::get<2>(key)}].Add(c);
  }
  std::printf(
      "\n| operands | algorithm id | slices | first choices | runs equal | runs that differ |"
      " not run |\n|---|---|---|---|---|---|---|\n");
  for (const auto& [key, c] : by_id) {
    std::printf("| %s | %d | %s | %d | %d | %d | %d |\n", std::get<0>(key).c_str(),
                std::get<1>(key), std::get<2>(key).c_str(), c.first_choices, c.equal_runs,
                c.differing_runs, c.refused_runs);
  }
}

int Main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 420.0;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  const std::string filter = argc > 3 ? argv[3] : "";
  CublasLtRuns cublaslt;
  std::printf("%s; %s, %d CPUs; seed %lu\n", DeviceText().c_str(),
              std::string(IsaName(BestIsa())).c_str(), AvailableCpus(),
              static_cast<unsigned long>(seed));
  std::vector<Family> families = AllFamilies();
  std::erase_if(families, [&](const Family& family) {
    return family.Name().find(filter) == std::string::npos;
  });
  Classes classes;
  for (size_t i = 0; i < families.size(); ++i) {
    Inventory inventory(cublaslt, families[i], seed * 1000 + i);
    inventory.RunFor(seconds / static_cast<double>(families.size()));
    classes.insert(inventory.classes().begin(), inventory.classes().end());
    std::printf("%s: %d shapes, %d refused\n", families[i].Name().c_str(), inventory.shapes(),
                inventory.refused());
    std::fflush(stdout);
  }
  PrintTable(classes);
  PrintSummary(classes);
  return 0;
}

}  // namespace
}  // namespace quantgate::hardware

int main(int argc, char** argv) { return quantgate::hardware::Main(argc, argv); }
