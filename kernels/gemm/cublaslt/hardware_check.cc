#include "kernels/gemm/cublaslt/hardware_check.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "kernels/gemm/cublaslt/algorithm_inventory.h"
#include "kernels/gemm/gemm.h"

namespace quantgate {
namespace {

std::string DataText(const HardwareCase& one) {
  return absl::StrCat(", data ", std::string(DistributionName(one.distribution)), ", seed ",
                      one.seed);
}

uint32_t BitsAt(const Tensor& tensor, int64_t index) {
  uint32_t bits = 0;
  const auto width = static_cast<size_t>(DTypeBytes(tensor.dtype()));
  std::memcpy(&bits, tensor.data() + static_cast<size_t>(index) * width, width);
  return bits;
}

/// Runs cases and collects the results by class.
class Checker {
 public:
  Checker(const HardwareCheckSides& sides, const Cancellation* cancellation)
      : sides_(sides), cancellation_(cancellation) {}

  absl::Status Run(const HardwareCase& one);
  HardwareCheck Finish();

 private:
  /// The key of a class: operands, id, tile, slices, request.
  using Key = std::tuple<std::string, int, int, int, bool>;

  absl::Status CheckCancelled() const {
    return cancellation_ == nullptr ? absl::OkStatus() : cancellation_->Check();
  }
  HardwareClass& ClassOf(const GemmDesc& desc, const CublasLtAlgorithm& algorithm);
  absl::Status RunAlgorithm(const HardwareCase& one, GemmDesc desc,
                            const CublasLtAlgorithm& algorithm);
  /// The model's result in host memory; null where the GEMM has no model.
  absl::StatusOr<const GemmResult*> ModelOf(GemmDesc desc, const std::string& arithmetic,
                                            int split_k);
  absl::StatusOr<GemmResult> OnHost(absl::StatusOr<GemmResult> result) const;
  void Refuse(const HardwareCase& one, const GemmDesc& desc, const absl::Status& status);

  const HardwareCheckSides& sides_;
  const Cancellation* cancellation_;
  std::map<Key, HardwareClass> classes_;
  std::map<std::string, std::optional<GemmResult>> models_;  ///< One case's, by arithmetic.
  HardwareCheck check_;
};

absl::StatusOr<GemmResult> Checker::OnHost(absl::StatusOr<GemmResult> result) const {
  QG_RETURN_IF_ERROR(result.status());
  QG_ASSIGN_OR_RETURN(result->d, sides_.to_host(result->d));
  if (result->amax.has_value()) {
    QG_ASSIGN_OR_RETURN(result->amax, sides_.to_host(result->amax));
  }
  return result;
}

HardwareClass& Checker::ClassOf(const GemmDesc& desc, const CublasLtAlgorithm& algorithm) {
  const int split_k = algorithm.split_k == 0 ? 1 : algorithm.split_k;  // Some kernels say 0.
  const bool may_split = desc.arithmetic.any_split_k;
  const std::string operands = InventoryOperands(desc);
  const auto [place, is_new] =
      classes_.try_emplace(Key{operands, algorithm.id, algorithm.tile, split_k, may_split});
  HardwareClass& one = place->second;
  if (!is_new) return one;
  one.operands = operands;
  one.algorithm_id = algorithm.id;
  one.tile = algorithm.tile;
  one.split_k = split_k;
  one.may_split = may_split;
  const AlgorithmClass* row = InventoryRow(desc, algorithm);
  if (row == nullptr) {
    one.standing = ClassStanding::kUnlisted;
    one.arithmetic = "sm90";
  } else {
    one.arithmetic = row->arithmetic;
    one.standing = row->arithmetic.empty() ? ClassStanding::kNotModelled : ClassStanding::kModelled;
  }
  return one;
}

absl::StatusOr<const GemmResult*> Checker::ModelOf(GemmDesc desc, const std::string& arithmetic,
                                                   int split_k) {
  QG_ASSIGN_OR_RETURN(Arithmetic model, Arithmetic::Parse(arithmetic));
  if (IsTensorCore(model.family)) model.split_k = split_k;
  const auto [place, is_new] = models_.try_emplace(model.ToString());
  if (is_new) {
    desc.arithmetic = model;
    absl::StatusOr<GemmResult> result = OnHost(sides_.model(desc));
    if (result.ok()) {
      place->second = *std::move(result);
    } else if (!absl::IsUnimplemented(result.status())) {
      return result.status();
    }
  }
  return place->second.has_value() ? &*place->second : nullptr;
}

void Checker::Refuse(const HardwareCase& one, const GemmDesc& desc, const absl::Status& status) {
  check_.refusals.push_back(
      absl::StrCat(GemmText(desc), DataText(one), ": ", std::string(status.message())));
}

absl::Status Checker::RunAlgorithm(const HardwareCase& one, GemmDesc desc,
                                   const CublasLtAlgorithm& algorithm) {
  QG_RETURN_IF_ERROR(CheckCancelled());
  HardwareClass& counts = ClassOf(desc, algorithm);
  counts.first_choices += algorithm.index == 0;
  const GemmResult* model = nullptr;
  if (counts.standing != ClassStanding::kNotModelled) {
    QG_ASSIGN_OR_RETURN(model, ModelOf(desc, counts.arithmetic, std::max(1, counts.split_k)));
  }
  if (model == nullptr) {
    ++counts.not_modelled;
    return absl::OkStatus();
  }
  desc.arithmetic.algorithm = algorithm.index;
  const absl::StatusOr<GemmResult> hardware = OnHost(sides_.hardware(desc));
  if (absl::IsUnimplemented(hardware.status())) {
    Refuse(one, desc, hardware.status());
    return absl::OkStatus();
  }
  QG_RETURN_IF_ERROR(hardware.status());
  std::optional<OutputDifference> difference = FirstDifference(hardware->d, model->d);
  counts.outputs += model->d.element_count();
  if (difference.has_value()) {
    counts.differing_outputs += difference->count;
  } else if (hardware->amax.has_value()) {
    difference = FirstDifference(hardware->amax, model->amax);
    if (difference.has_value()) difference->is_amax = true;
  }
  ++(difference.has_value() ? counts.differing : counts.equal);
  if (!difference.has_value() || counts.first.has_value()) return absl::OkStatus();
  difference->gemm = GemmText(desc) + DataText(one);
  difference->algorithm = algorithm.ToString();
  counts.first = std::move(difference);
  return absl::OkStatus();
}

absl::Status Checker::Run(const HardwareCase& one) {
  QG_RETURN_IF_ERROR(CheckCancelled());
  ++check_.cases;
  models_.clear();
  QG_ASSIGN_OR_RETURN(const GemmDesc on_host, DescOf(one));
  QG_ASSIGN_OR_RETURN(GemmDesc desc, WithTensors(on_host, sides_.place));
  for (const bool may_split : {false, true}) {
    desc.arithmetic.any_split_k = may_split;
    const absl::StatusOr<std::vector<CublasLtAlgorithm>> algorithms = sides_.algorithms(desc);
    if (absl::IsUnimplemented(algorithms.status())) {
      Refuse(one, desc, algorithms.status());
      continue;
    }
    QG_RETURN_IF_ERROR(algorithms.status());
    for (const CublasLtAlgorithm& algorithm : *algorithms) {
      QG_RETURN_IF_ERROR(RunAlgorithm(one, desc, algorithm));
    }
  }
  return absl::OkStatus();
}

HardwareCheck Checker::Finish() {
  for (auto& [key, one] : classes_) check_.classes.push_back(std::move(one));
  return std::move(check_);
}

std::string SlicesText(int split_k) {
  if (split_k < 0) return "the kernel's own slices";
  return split_k == 1 ? "K not split" : absl::StrCat("K in ", split_k, " slices");
}

std::string_view RequestText(bool may_split) { return may_split ? "any" : "split-K forbidden"; }

std::string DifferenceText(const OutputDifference& d) {
  const std::string place =
      d.is_amax ? std::string("the reported amax")
                : absl::StrFormat("%d of %d outputs, at (%d, %d)", d.count, d.of, d.row, d.column);
  return absl::StrFormat("%s: hardware 0x%0*x, model 0x%0*x; %s; %s", place, 2 * d.bytes,
                         d.hardware_bits, 2 * d.bytes, d.model_bits, d.gemm, d.algorithm);
}

/// The line about a class that has drifted; empty where it has not.
std::string DriftText(const HardwareClass& one) {
  const bool is_unlisted = one.standing == ClassStanding::kUnlisted;
  if (one.differing == 0 && !is_unlisted) return "";
  std::string text =
      absl::StrFormat("%s: %s by algorithm %d (tile %d, %s, asked for: %s)",
                      one.differing > 0 ? "drift" : "new", one.operands, one.algorithm_id, one.tile,
                      SlicesText(one.split_k), std::string(RequestText(one.may_split)));
  if (is_unlisted) absl::StrAppend(&text, ", which no survey has seen,");
  const int runs = one.equal + one.differing;
  if (one.differing == 0) {
    return absl::StrCat(text, " equals ", one.arithmetic, " in ", one.equal, " runs");
  }
  absl::StrAppend(&text, " differs from ", one.arithmetic, " in ", one.differing, " of ", runs,
                  " runs");
  return absl::StrCat(text, "; first: ", DifferenceText(*one.first));
}

std::string StandingText(ClassStanding standing) {
  switch (standing) {
    case ClassStanding::kModelled:
      return "modelled";
    case ClassStanding::kNotModelled:
      return "not modelled";
    case ClassStanding::kUnlisted:
      return "new";
  }
  return "unknown";
}

std::vector<std::string> TableLines(const HardwareCheck& check) {
  struct Row {
    int tiles = 0, first = 0, equal = 0, differing = 0, not_modelled = 0;
    int64_t outputs = 0;
  };
  std::map<std::tuple<std::string, int, std::string, std::string, std::string>, Row> rows;
  for (const HardwareClass& one : check.classes) {
    const std::string slices = one.split_k > 1   ? "split-K"
                               : one.split_k < 0 ? "the kernel's own"
                                                 : "none";
    Row& row = rows[{one.operands, one.algorithm_id, slices,
                     std::string(RequestText(one.may_split)), StandingText(one.standing)}];
    ++row.tiles;
    row.first += one.first_choices;
    row.equal += one.equal;
    row.differing += one.differing;
    row.not_modelled += one.not_modelled;
    row.outputs += one.outputs;
  }
  std::vector<std::string> lines = {absl::StrFormat(
      "%-22s %4s %-16s %-18s %-12s %5s %5s %6s %6s %7s %11s", "operands", "id", "slices",
      "asked for", "standing", "tiles", "first", "equal", "differ", "not run", "outputs")};
  for (const auto& [key, row] : rows) {
    const auto& [operands, id, slices, request, standing] = key;
    lines.push_back(absl::StrFormat("%-22s %4d %-16s %-18s %-12s %5d %5d %6d %6d %7d %11d",
                                    operands, id, slices, request, standing, row.tiles, row.first,
                                    row.equal, row.differing, row.not_modelled, row.outputs));
  }
  return lines;
}

}  // namespace

std::optional<OutputDifference> FirstDifference(const Tensor& hardware, const Tensor& model) {
  if (std::memcmp(hardware.data(), model.data(), model.byte_size()) == 0) return std::nullopt;
  OutputDifference out;
  out.of = model.element_count();
  out.bytes = DTypeBytes(model.dtype());
  const int64_t columns = model.columns();
  for (int64_t i = 0; i < out.of; ++i) {
    const uint32_t hardware_bits = BitsAt(hardware, i), model_bits = BitsAt(model, i);
    if (hardware_bits == model_bits || out.count++ > 0) continue;
    out.row = i / columns;
    out.column = i % columns;
    out.hardware_bits = hardware_bits;
    out.model_bits = model_bits;
  }
  return out;
}

int64_t HardwareCheck::runs() const {
  int64_t sum = 0;
  for (const HardwareClass& one : classes) sum += one.equal + one.differing;
  return sum;
}

int64_t HardwareCheck::outputs() const {
  int64_t sum = 0;
  for (const HardwareClass& one : classes) sum += one.outputs;
  return sum;
}

bool HardwareCheck::has_drift() const {
  return !refusals.empty() || std::any_of(classes.begin(), classes.end(),
                                          [](const auto& one) { return one.differing > 0; });
}

absl::StatusOr<HardwareCheck> CheckHardware(const HardwareCheckSides& sides,
                                            const std::vector<HardwareCase>& cases,
                                            const Cancellation* cancellation) {
  Checker checker(sides, cancellation);
  for (const HardwareCase& one : cases) QG_RETURN_IF_ERROR(checker.Run(one));
  return checker.Finish();
}

std::vector<std::string> HardwareCheckLines(const HardwareCheck& check) {
  int differing = 0, not_modelled = 0;
  for (const HardwareClass& one : check.classes) {
    differing += one.differing;
    not_modelled += one.not_modelled;
  }
  std::vector<std::string> lines = {absl::StrFormat(
      "%s: %d GEMMs, %d runs of cuBLASLt's algorithms with %d outputs compared, %d runs differ; %d "
      "GEMMs refused; %d runs have no model",
      check.has_drift() ? "DRIFT" : "the hardware computes what its models say", check.cases,
      check.runs(), check.outputs(), differing, check.refusals.size(), not_modelled)};
  for (const HardwareClass& one : check.classes) {
    if (std::string text = DriftText(one); !text.empty()) lines.push_back(std::move(text));
  }
  for (const std::string& refusal : check.refusals) lines.push_back("refused: " + refusal);
  for (std::string& line : TableLines(check)) lines.push_back(std::move(line));
  return lines;
}

std::string HardwareCheckKey::ToString(HardwareCheckSize size) const {
  return absl::StrCat(device, ", driver ", driver, ", cuBLASLt ", cublaslt, ", build ", build,
                      size == HardwareCheckSize::kQuick ? ", quick" : ", full");
}

}  // namespace quantgate
