#include "kernels/validate/ranks/parallel_report.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "kernels/layer/attention_core.h"
#include "kernels/layer/experts/expert_run.h"
#include "kernels/layer/layer_program.h"
#include "kernels/layer/layer_sharding.h"
#include "kernels/layer/layer_values.h"
#include "kernels/validate/ranks/rank_sum.h"

namespace quantgate {
namespace {

/// The parameter of a gradient; absent for y, dx and norm_out.
std::string ParameterOf(const LayerSpec& layer, const std::string& output) {
  for (const LayerParameter& parameter : ParametersOf(layer)) {
    if (output == parameter.gradient || output == parameter.main_grad) return parameter.name;
  }
  return "";
}

/// The basic_linear whose GEMM gives `output`, y or dx of the layer; null if another operation
/// gives it.
const ProgramOperation* LinearGiving(const LayerProgram& program, const std::string& output) {
  for (const ProgramOperation& operation : program.operations) {
    if (operation.kind != OperationKind::kBasicLinear) continue;
    if (operation.names.y == output || operation.names.dx == output) return &operation;
  }
  return nullptr;
}

/// Where a tensor that is no parameter's gradient stands in a program.
struct Place {
  size_t value = 0;  ///< The value that it is, whose gradient it is, or that is read.
  bool is_gradient = false;
  bool is_inside = false;  ///< Of an attention: rotated heads, or their gradient.
};

/// The place of `output`; of experts, whose programs name parts of outputs, that of y or dx.
Place PlaceOf(const LayerProgram& program, const std::string& output) {
  for (size_t i = 0; i < program.values.size(); ++i) {
    if (program.values[i].name == output) return {.value = i};
    if (program.values[i].gradient == output) return {.value = i, .is_gradient = true};
  }
  for (const ProgramOperation& operation : program.operations) {
    if (operation.kind != OperationKind::kAttention) continue;
    const auto value = static_cast<size_t>(operation.input);
    if (output == RotatedHeadsName(operation)) return {.value = value, .is_inside = true};
    if (output == RotatedHeadsGradientName(operation)) {
      return {.value = value, .is_gradient = true, .is_inside = true};
    }
  }
  return output == "dx" ? Place{.is_gradient = true} : Place{.value = program.values.size() - 1};
}

/// A rank's summand of `output`; absent if it has none.
Tensor PartialOf(const RankStep& step, const std::string& output) {
  for (const NamedTensor& partial : step.partials) {
    if (partial.name == output) return partial.tensor;
  }
  const GemmRecord* const gemm = FindGemm(step.result, output);
  return gemm == nullptr ? Tensor() : gemm->result.d;
}

}  // namespace

struct ParallelReporter::Assembly {
  enum class Kind {
    kSame,        ///< Every rank has the whole output.
    kShards,      ///< Each rank has a part, by `rule`.
    kRows,        ///< Each rank has rows of dim 0.
    kGathered,    ///< Every rank has the whole output but computed only its own rows.
    kSum,         ///< The ranks have added their partial products.
    kSumOfShards  ///< Each rank has the summand of its own rows; the report adds them.
  };
  Kind kind = Kind::kSame;
  ShardRule rule = {};
  bool sum_has_rows = false;  ///< kSum: each rank has rows of the sum.
  std::string bias = {};      ///< kSum: the parameter that is added to the sum.
};

/// What is known about an output's parts, in their order.
struct ParallelReporter::Parts {
  std::vector<Tensor> own, f32;  ///< Exact values.
  std::optional<BoundCheck> bound;
  std::string arithmetic, note;  ///< Those of the last part.

  absl::Status Add(const OutputReporter::Part& part) {
    own.push_back(part.exact.own);
    f32.push_back(part.exact.f32);
    if (part.bound.has_value()) MergeBoundChecks(*part.bound, bound);
    arithmetic = part.arithmetic;
    QG_ASSIGN_OR_RETURN(note, part.exact.note());
    return absl::OkStatus();
  }
};

struct ParallelReporter::Addends {
  std::vector<Tensor> partials;  ///< In host memory.
  std::vector<Tensor> exact;     ///< f32.
  Tensor bias = {};              ///< As in RankSum.
  ReductionProfile profile = {};
  std::optional<BoundCheck> bound;
  bool has_bounds = true;
  std::string arithmetic, derivation;  ///< Those of the last addend.

  void Add(const OutputReporter::Part& part, Tensor partial) {
    partials.push_back(std::move(partial));
    exact.push_back(part.exact.f32);
    has_bounds = has_bounds && part.bound.has_value();
    if (part.bound.has_value()) {
      MergeBoundChecks(*part.bound, bound);
      derivation = part.bound->bound.derivation;
    }
    arithmetic = part.arithmetic;
  }
};

/// Reports one rank's parts of outputs, on the rank's engine.
class ParallelReporter::RankReporter {
 public:
  RankReporter(const RankStep& step, const Cancellation* cancellation)
      : step_(step),
        cancellation_(cancellation),
        exact_(*step.engine, step.request, cancellation),
        reporter_(*step.engine, step.request, exact_, cancellation) {}

  /// `part` with its exact values in host memory, both of the part's shape.
  absl::StatusOr<OutputReporter::Part> Report(const NamedTensor& part) {
    QG_ASSIGN_OR_RETURN(OutputReporter::Part reported, reporter_.ReportPart(step_.result, part));
    for (Tensor* exact : {&reported.exact.own, &reported.exact.f32}) {
      QG_ASSIGN_OR_RETURN(*exact, step_.engine->ToHost(*exact, cancellation_));
      QG_ASSIGN_OR_RETURN(*exact, exact->Reinterpret(exact->dtype(), part.tensor.shape()));
    }
    return reported;
  }

  absl::StatusOr<VariantReport::RankReport> Describe(int rank) const {
    VariantReport::RankReport report;
    report.rank = rank;
    report.device = step_.engine->Describe().id;
    for (const NamedTensor& output : step_.result.outputs) {
      QG_ASSIGN_OR_RETURN(const Fingerprint fingerprint,
                          step_.engine->FingerprintOf(output.tensor, cancellation_));
      report.outputs.push_back(
          {WithExpertOfWhole(output.name, step_.first_expert), output.tensor.dtype(),
           output.tensor.shape(), fingerprint,
           [engine = step_.engine, tensor = output.tensor, cancellation = cancellation_] {
             return engine->ToHost(tensor, cancellation);
           }});
    }
    report.saved = step_.result.saved;
    report.quantizations = step_.result.quantizations;
    for (const GemmRecord& gemm : step_.result.gemms) report.gemms.push_back(GemmLineOf(gemm));
    QG_ASSIGN_OR_RETURN(report.stages, TimesOf(step_.result.stages));
    report.timelines = step_.result.timelines;
    report.gathered = step_.result.gathered;
    if (step_.first_expert != 0) NameExpertsOfWhole(report);
    return report;
  }

 private:
  void NameExpertsOfWhole(VariantReport::RankReport& report) const {
    const auto rename = [&](std::string& name) {
      name = WithExpertOfWhole(name, step_.first_expert);
    };
    for (SavedOperand& saved : report.saved) rename(saved.name);
    for (QuantizationRecord& quantization : report.quantizations) rename(quantization.tensor);
    for (VariantReport::GemmLine& gemm : report.gemms) rename(gemm.output);
    for (StageTime& stage : report.stages) rename(stage.stage);
  }

  const RankStep& step_;
  const Cancellation* const cancellation_;
  ExactValues exact_;
  OutputReporter reporter_;
};

ParallelReporter::ParallelReporter(Engine& engine, OutputReporter& whole,
                                   const LayerRequest& request, const Variant& variant,
                                   const ParallelStepResult& step, const Cancellation* cancellation)
    : engine_(engine),
      whole_(whole),
      request_(request),
      variant_(variant),
      step_(step),
      cancellation_(cancellation) {
  for (const RankStep& rank : step.ranks) {
    ranks_.push_back(std::make_unique<RankReporter>(rank, cancellation));
  }
}

ParallelReporter::~ParallelReporter() = default;

ParallelReporter::Assembly ParallelReporter::AssemblyOf(const std::string& output) const {
  using Kind = Assembly::Kind;
  const LayerRequest& request = step_.ranks[0].request;
  const LayerSpec& spec = layer();
  const bool divided = divides_rows();
  if (const std::string parameter = ParameterOf(spec, output); !parameter.empty()) {
    const ShardRule rule = ParameterShardRule(spec, parameter);
    if (rule.dim != -1) return {.kind = Kind::kShards, .rule = rule};
    return {.kind = divided ? Kind::kSumOfShards : Kind::kSame};
  }
  if (output == "norm_out" && spec.return_norm_output) {
    return {.kind = divided && DividesInputRows(spec) ? Kind::kGathered : Kind::kSame};
  }
  const LayerProgram program =
      ProgramsOf(spec, [&](const std::string& name) {
        const auto found = request.parameters.find(name);
        return found != request.parameters.end() && found->second.has_value();
      }).front();
  const Place place = PlaceOf(program, output);
  const ParallelMode summed = place.is_gradient ? ParallelMode::kColumn : ParallelMode::kRow;
  if (spec.traits().has_experts && spec.parallel_mode == summed) {
    return {.kind = Kind::kSum, .sum_has_rows = divided};
  }
  const ValueDivision division = ValueDivisionsOf(spec)[place.value];
  const bool has_rows = divided && division.divides_rows;
  const ProgramOperation* const linear = LinearGiving(program, output);
  if (linear != nullptr && linear->parallel_mode == summed) {
    return {.kind = Kind::kSum,
            .sum_has_rows = has_rows,
            .bias = place.is_gradient ? "" : linear->bias};
  }
  ShardRule columns = division.columns;
  if (place.is_inside && columns.dim != -1) {
    // [B * G * (R + 2)][S][D]: of every batch each rank has its groups.
    const Shape& x = request.x.shape();
    const int64_t batches = x.size() == 3 ? x[1] : 1;
    columns = {.dim = 0, .parts = static_cast<int>(std::max<int64_t>(batches, 1))};
  }
  if (has_rows) return {.kind = Kind::kRows};
  if (columns.dim == -1) return {.kind = Kind::kSame};
  return {.kind = Kind::kShards, .rule = columns};
}

std::vector<std::string> ParallelReporter::Intermediates() const {
  std::vector<std::string> names;
  for (const NamedTensor& tensor : step_.ranks[0].result.intermediates) {
    names.push_back(tensor.name);
  }
  return names;
}

absl::StatusOr<std::vector<Tensor>> ParallelReporter::PartsOf(const std::string& output) {
  std::vector<Tensor> parts;
  for (const RankStep& rank : step_.ranks) {
    QG_ASSIGN_OR_RETURN(parts.emplace_back(),
                        rank.engine->ToHost(FindComputed(rank.result, output), cancellation_));
  }
  return parts;
}

absl::StatusOr<Tensor> ParallelReporter::FirstOfEqual(const std::string& output,
                                                      const std::vector<Tensor>& parts,
                                                      const char* whose, std::string& difference) {
  for (size_t rank = 1; rank < parts.size(); ++rank) {
    const auto mine = parts[rank].bytes(), first = parts[0].bytes();
    if (std::equal(mine.begin(), mine.end(), first.begin(), first.end())) continue;
    difference = absl::StrCat("every ", whose, " has all of it, and ", whose, " ", rank,
                              "'s differs from ", whose, " 0's, which is reported");
    notes_.push_back(absl::StrCat(output, ": ", difference));
    break;
  }
  return engine_.ToDevice(parts[0], cancellation_);
}

absl::StatusOr<Tensor> ParallelReporter::Join(const std::vector<Tensor>& parts,
                                              const Assembly& assembly) {
  if (assembly.kind != Assembly::Kind::kShards) return JoinRows(engine_, parts, cancellation_);
  return JoinShards(engine_, parts, assembly.rule, cancellation_);
}

absl::StatusOr<ReportedOutput> ParallelReporter::Finish(ReportedOutput reported,
                                                        const std::string& arithmetic) {
  OutputReport& report = reported.report;
  report.arithmetic = arithmetic;
  QG_ASSIGN_OR_RETURN(report.fingerprint, engine_.FingerprintOf(report.value, cancellation_));
  QG_ASSIGN_OR_RETURN(const Fingerprint exact,
                      engine_.FingerprintOf(reported.exact_f32, cancellation_));
  reported.identity =
      absl::StrCat("ranks: ", report.tensor, " ", report.fingerprint.Hex(), " ", exact.Hex());
  return reported;
}

absl::StatusOr<ReportedOutput> ParallelReporter::ReportJoined(const std::string& output,
                                                              const Assembly& assembly) {
  using Kind = Assembly::Kind;
  QG_ASSIGN_OR_RETURN(const std::vector<Tensor> parts, PartsOf(output));
  Parts known;
  int64_t row = 0;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    NamedTensor part = {output, parts[rank]};
    if (assembly.kind == Kind::kGathered) {
      const int64_t rows = step_.ranks[rank].request.x.shape()[0];
      QG_ASSIGN_OR_RETURN(part.tensor, RowSlice(parts[rank], row, rows));
      row += rows;
    }
    QG_ASSIGN_OR_RETURN(const OutputReporter::Part reported, ranks_[rank]->Report(part));
    QG_RETURN_IF_ERROR(known.Add(reported));
    if (assembly.kind == Kind::kSame) break;  // The others' are the same, or a note says so.
  }
  Tensor value;
  std::string difference;
  if (assembly.kind == Kind::kSame || assembly.kind == Kind::kGathered) {
    QG_ASSIGN_OR_RETURN(value, FirstOfEqual(output, parts, "rank", difference));
  } else {
    QG_ASSIGN_OR_RETURN(value, Join(parts, assembly));
  }
  ExactValues::Value exact;
  if (assembly.kind == Kind::kSame) {
    exact.own = known.own[0];
    exact.f32 = known.f32[0];
  } else {
    QG_ASSIGN_OR_RETURN(exact.own, Join(known.own, assembly));
    QG_ASSIGN_OR_RETURN(exact.f32, Join(known.f32, assembly));
    absl::StrAppend(&known.note, "; joined from ", parts.size(), " ranks");
  }
  exact.note = ExactValues::NoteOf(std::move(known.note));
  QG_ASSIGN_OR_RETURN(ReportedOutput reported, whole_.Measure({output, value}, exact));
  reported.report.bound = std::move(known.bound);
  reported.report.rank_difference = std::move(difference);
  return Finish(std::move(reported), known.arithmetic);
}

absl::StatusOr<ReportedOutput> ParallelReporter::ReportSum(const std::string& output,
                                                           const Assembly& assembly) {
  const bool is_sum_here = assembly.kind == Assembly::Kind::kSumOfShards;
  Addends addends;
  for (size_t rank = 0; rank < step_.ranks.size(); ++rank) {
    const RankStep& step = step_.ranks[rank];
    Tensor partial = is_sum_here ? FindComputed(step.result, output) : PartialOf(step, output);
    if (!partial.has_value()) {
      return absl::InternalError(absl::StrCat("no partial product of ", output));
    }
    QG_ASSIGN_OR_RETURN(const OutputReporter::Part part, ranks_[rank]->Report({output, partial}));
    QG_ASSIGN_OR_RETURN(partial, step.engine->ToHost(partial, cancellation_));
    addends.Add(part, std::move(partial));
  }
  if (!is_sum_here) addends.profile = variant_.parallel->profile;
  const DType dtype = addends.partials[0].dtype();
  Tensor value;
  std::string difference;
  if (is_sum_here) {
    QG_ASSIGN_OR_RETURN(
        value, engine_.OrderedSum(addends.partials, SumAccumulation::kF32, dtype, cancellation_));
  } else {
    QG_ASSIGN_OR_RETURN(const std::vector<Tensor> parts, PartsOf(output));
    if (assembly.sum_has_rows) {
      QG_ASSIGN_OR_RETURN(value, JoinRows(engine_, parts, cancellation_));
    } else {
      QG_ASSIGN_OR_RETURN(value, FirstOfEqual(output, parts, "rank", difference));
    }
  }
  Tensor& bias = addends.bias;
  if (!assembly.bias.empty()) {
    const RankStep& first = step_.ranks[0];
    QG_ASSIGN_OR_RETURN(
        bias, first.engine->Cast(first.request.parameters.at(assembly.bias), dtype, cancellation_));
    QG_ASSIGN_OR_RETURN(bias, first.engine->ToHost(bias, cancellation_));
  }
  notes_.push_back(absl::StrCat(
      output,
      is_sum_here ? ": each rank has what its own rows give; added here over the ranks, "
                  : ": a sum over the ranks, ",
      ReductionProfileName(addends.profile)));
  return FinishSum({output, value}, std::move(addends), std::move(difference));
}

absl::StatusOr<ReportedOutput> ParallelReporter::FinishSum(NamedTensor value, Addends addends,
                                                           std::string difference) {
  const auto& [partials, exact, bias, profile, bound, has_bounds, arithmetic, derivation] = addends;
  QG_ASSIGN_OR_RETURN(const ExactValues::Value sum,
                      ExactRankSum({exact, bias, profile}, partials[0].dtype(), cancellation_));
  QG_ASSIGN_OR_RETURN(ReportedOutput reported, whole_.Measure(value, sum));
  reported.report.rank_difference = std::move(difference);
  if (has_bounds) {
    // Each partial must be within its own bound, and the sum within the bound of the additions.
    QG_ASSIGN_OR_RETURN(const Tensor host, engine_.ToHost(value.tensor, cancellation_));
    QG_ASSIGN_OR_RETURN(BoundCheck added,
                        CheckRankSum({partials, bias, profile}, host, cancellation_));
    const std::string additions = added.bound.derivation;
    std::optional<BoundCheck> merged = bound;
    MergeBoundChecks(added, merged);
    merged->bound.derivation = absl::StrCat("each rank's part p_r: ", derivation,
                                            "; their sum s: |s - sum p_r| <= ", additions);
    reported.report.bound = std::move(merged);
  }
  return Finish(std::move(reported),
                absl::StrCat(arithmetic, " + ", ReductionProfileName(profile)));
}

absl::StatusOr<Tensor> ParallelReporter::JoinTokens(const std::string& output) {
  QG_ASSIGN_OR_RETURN(const std::vector<Tensor> parts, PartsOf(output));
  QG_ASSIGN_OR_RETURN(const Tensor joined, JoinRows(engine_, parts, cancellation_));
  std::vector<std::vector<int64_t>> tokens;
  for (const RankStep& rank : step_.ranks) tokens.push_back(rank.tokens);
  return engine_.GatherRows(joined, PlacesOf(tokens), cancellation_);
}

absl::StatusOr<ReportedOutput> ParallelReporter::ReportExpertRows(const std::string& output) {
  QG_ASSIGN_OR_RETURN(Tensor value, JoinTokens(output));
  Parts known;
  std::vector<std::vector<int64_t>> experts_rows;
  for (size_t rank = 0; rank < step_.ranks.size(); ++rank) {
    const std::vector<int64_t>& rows = experts_rows.emplace_back(step_.ranks[rank].rows);
    if (rows.empty()) continue;
    NamedTensor part = {output, {}};
    QG_ASSIGN_OR_RETURN(part.tensor, engine_.GatherRows(value, rows, cancellation_));
    QG_ASSIGN_OR_RETURN(part.tensor, engine_.ToHost(part.tensor, cancellation_));
    QG_ASSIGN_OR_RETURN(const OutputReporter::Part reported, ranks_[rank]->Report(part));
    QG_RETURN_IF_ERROR(known.Add(reported));
  }
  ExactValues::Value exact;
  exact.note = ExactValues::NoteOf(absl::StrCat(known.note, "; joined from the ranks' experts"));
  const Shape shape = LayerOutputShape(request_, output);
  QG_ASSIGN_OR_RETURN(value, value.Reinterpret(value.dtype(), shape));
  if (known.own.empty()) {
    QG_ASSIGN_OR_RETURN(exact.own, engine_.ToDevice(value, cancellation_));
    QG_ASSIGN_OR_RETURN(exact.f32, engine_.Cast(value, DType::kF32, cancellation_));
    known.bound = BoundCheck{.pass = true, .bound = {.derivation = "no rank has rows of it"}};
  } else {
    QG_ASSIGN_OR_RETURN(exact.own, JoinRows(engine_, known.own, cancellation_));
    QG_ASSIGN_OR_RETURN(exact.f32, JoinRows(engine_, known.f32, cancellation_));
    const std::vector<int64_t> places = PlacesOf(experts_rows);
    for (Tensor* tensor : {&exact.own, &exact.f32}) {
      QG_ASSIGN_OR_RETURN(*tensor, engine_.GatherRows(*tensor, places, cancellation_));
      QG_ASSIGN_OR_RETURN(*tensor, tensor->Reinterpret(tensor->dtype(), shape));
    }
  }
  QG_ASSIGN_OR_RETURN(ReportedOutput reported, whole_.Measure({output, value}, exact));
  reported.report.bound = std::move(known.bound);
  return Finish(std::move(reported), known.arithmetic);
}

absl::StatusOr<ReportedOutput> ParallelReporter::ReportExpertSum(const std::string& output) {
  Addends addends;
  addends.profile = variant_.parallel->profile;
  std::vector<Tensor> sums;
  for (size_t rank = 0; rank < step_.ranks.size(); ++rank) {
    const RankStep& step = step_.ranks[rank];
    for (const NamedTensor& own : step.own_gradients) {
      if (WithExpertOfWhole(own.name, step.first_expert) != output) continue;
      QG_ASSIGN_OR_RETURN(Tensor partial, step.engine->ToHost(own.tensor, cancellation_));
      QG_ASSIGN_OR_RETURN(const OutputReporter::Part part,
                          ranks_[rank]->Report({own.name, partial}));
      addends.Add(part, std::move(partial));
      QG_ASSIGN_OR_RETURN(sums.emplace_back(),
                          step.engine->ToHost(FindComputed(step.result, own.name), cancellation_));
    }
  }
  if (sums.empty()) {
    return absl::InternalError(absl::StrCat("output ", output, " of no rank's expert"));
  }
  std::string difference;
  QG_ASSIGN_OR_RETURN(Tensor value, FirstOfEqual(output, sums, "copy", difference));
  notes_.push_back(absl::StrCat(output, ": a sum over the ranks that hold the expert, ",
                                ReductionProfileName(addends.profile)));
  return FinishSum({output, std::move(value)}, std::move(addends), std::move(difference));
}

absl::StatusOr<ReportedOutput> ParallelReporter::ReportExpert(const std::string& output) {
  for (size_t rank = 0; rank < step_.ranks.size(); ++rank) {
    const RankStep& step = step_.ranks[rank];
    for (const NamedTensor& own : step.result.outputs) {
      if (WithExpertOfWhole(own.name, step.first_expert) != output) continue;
      QG_ASSIGN_OR_RETURN(const Tensor host, step.engine->ToHost(own.tensor, cancellation_));
      QG_ASSIGN_OR_RETURN(const OutputReporter::Part part, ranks_[rank]->Report({own.name, host}));
      QG_ASSIGN_OR_RETURN(const Tensor value, engine_.ToDevice(host, cancellation_));
      QG_ASSIGN_OR_RETURN(ReportedOutput reported, whole_.Measure({output, value}, part.exact));
      reported.report.bound = part.bound;
      return Finish(std::move(reported), part.arithmetic);
    }
  }
  return absl::InternalError(absl::StrCat("output ", output, " of no rank's expert"));
}

absl::StatusOr<ReportedOutput> ParallelReporter::Report(const std::string& output) {
  if (variant_.parallel->expert_parallel > 1) {
    if (output == "y" || output == "dx") return ReportExpertRows(output);
    return variant_.parallel->data_parallel > 1 ? ReportExpertSum(output) : ReportExpert(output);
  }
  const Assembly assembly = AssemblyOf(output);
  const bool is_sum =
      assembly.kind == Assembly::Kind::kSum || assembly.kind == Assembly::Kind::kSumOfShards;
  return is_sum ? ReportSum(output, assembly) : ReportJoined(output, assembly);
}

absl::StatusOr<std::vector<VariantReport::RankReport>> ParallelReporter::Ranks() {
  std::vector<VariantReport::RankReport> reports;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    QG_ASSIGN_OR_RETURN(reports.emplace_back(), ranks_[rank]->Describe(static_cast<int>(rank)));
  }
  if (variant_.parallel->overlap.has_value()) {
    QG_ASSIGN_OR_RETURN(const std::vector<std::string> cut,
                        CutGemmNotes(step_.ranks, cancellation_));
    notes_.insert(notes_.end(), cut.begin(), cut.end());
  }
  return reports;
}

absl::StatusOr<std::vector<NamedTensor>> ParallelReporter::StateOfExperts() {
  std::vector<NamedTensor> all;
  std::vector<std::string> differing;
  for (const RankStep& rank : step_.ranks) {
    for (const NamedTensor& state : rank.result.state) {
      // "input.0.scale"
      const size_t dot = state.name.rfind('.');
      const std::string name =
          WithExpertOfWhole(state.name.substr(0, dot), rank.first_expert) + state.name.substr(dot);
      QG_ASSIGN_OR_RETURN(Tensor host, rank.engine->ToHost(state.tensor, cancellation_));
      const auto known = std::find_if(all.begin(), all.end(),
                                      [&](const NamedTensor& each) { return each.name == name; });
      if (known == all.end()) {
        all.push_back({name, std::move(host)});
        continue;
      }
      // A rank of an earlier copy has the state of this expert too, which must be equal.
      const auto first = known->tensor.bytes(), mine = host.bytes();
      if (std::equal(mine.begin(), mine.end(), first.begin(), first.end())) continue;
      if (std::count(differing.begin(), differing.end(), name) == 0) differing.push_back(name);
    }
  }
  std::erase_if(all, [&](const NamedTensor& state) {
    return std::count(differing.begin(), differing.end(), state.name) != 0;
  });
  NoteDiffering(differing);
  return all;
}

void ParallelReporter::NoteDiffering(const std::vector<std::string>& states) {
  if (states.empty()) return;
  notes_.push_back(
      absl::StrCat("left out of the state, since ranks differ: ", absl::StrJoin(states, ", ")));
}

absl::StatusOr<std::vector<NamedTensor>> ParallelReporter::State() {
  if (variant_.parallel->expert_parallel > 1) return StateOfExperts();
  std::vector<std::vector<NamedTensor>> states;
  for (const RankStep& rank : step_.ranks) {
    auto& mine = states.emplace_back();
    for (const NamedTensor& state : rank.result.state) {
      QG_ASSIGN_OR_RETURN(Tensor host, rank.engine->ToHost(state.tensor, cancellation_));
      mine.push_back({state.name, std::move(host)});
    }
  }
  std::vector<NamedTensor> common;
  std::vector<std::string> differing;
  for (size_t i = 0; i < states[0].size(); ++i) {
    const auto first = states[0][i].tensor.bytes();
    const bool is_common =
        std::all_of(states.begin(), states.end(), [&](const std::vector<NamedTensor>& mine) {
          const auto bytes = mine[i].tensor.bytes();
          return std::equal(bytes.begin(), bytes.end(), first.begin(), first.end());
        });
    if (is_common) {
      common.push_back(states[0][i]);
    } else {
      differing.push_back(states[0][i].name);
    }
  }
  NoteDiffering(differing);
  return common;
}

}  // namespace quantgate
