#include "kernels/validate/explain/explain_levels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/quantize/scale_layout.h"
#include "kernels/tensor/convert.h"
#include "kernels/validate/explain/explain_candidates.h"
#include "kernels/validate/explain/explain_evidence.h"
#include "kernels/validate/explain/explain_level_readings.h"

namespace quantgate {
namespace {

/// A tensor of at most so many elements is its own sample.
constexpr int64_t kSampleLevels = 16384;
/// How many of those that do not fit the sample are counted on everything: where none fits, and
/// beside those that do. Fewer of large tensors.
constexpr int64_t kSmallLevels = 1 << 20;
constexpr size_t kNearKept = 4, kNearKeptOfLarge = 2, kNearLevelsBesideFitting = 1;

/// What a library stores as the scale of a group.
enum class StoredScale {
  kInverse,     ///< What multiplies levels.
  kMultiplier,  ///< What multiplies elements.
  kAmax,
};
constexpr StoredScale kStoredScales[] = {StoredScale::kInverse, StoredScale::kMultiplier,
                                         StoredScale::kAmax};

/// How stored zero points follow from a rule's.
enum class StoredZero {
  kAsIs,
  kOffset,   ///< With the offset of the codes.
  kNegated,  ///< Of numbers.
};
constexpr StoredZero kStoredZeros[] = {StoredZero::kAsIs, StoredZero::kOffset,
                                       StoredZero::kNegated};

bool HasStoredScale(const LevelRule& rule, StoredScale stored) {
  switch (stored) {
    case StoredScale::kInverse:
      return true;
    case StoredScale::kMultiplier:
      return rule.rule == ScaleRule::kBitnet ||
             (rule.rule == ScaleRule::kModelopt && rule.levels == Levels::kI4);
    case StoredScale::kAmax:
      break;
  }
  return rule.rule == ScaleRule::kBitsandbytes && !IsTable(rule.levels);
}

/// The library of a rule, if it writes such codes: docs/quantizers.md section 11.1.
std::vector<std::string> LibrariesOf(const LevelRule& rule, const LevelGroups& groups) {
  const bool is_line = groups.group == kLineGroup || groups.group == kTensorGroup;
  switch (rule.rule) {
    case ScaleRule::kTorchao: {
      std::vector<std::string> names = {"torchao"};
      const bool is_pytorch = BitsOf(rule.levels) == 8 && is_line &&
                              rule.source == StepFormat::kF32 &&
                              rule.operation_dtype == StepDType::kF32;
      if (is_pytorch) names.push_back("PyTorch");
      return names;
    }
    case ScaleRule::kCompressedTensors:
      return {"compressed-tensors"};
    case ScaleRule::kModelopt:
      return {"NVIDIA ModelOpt"};
    case ScaleRule::kQuanto:
      if (rule.levels == Levels::kI8 && !is_line) return {};
      return {"optimum-quanto"};
    case ScaleRule::kTinygemm:
      return {"torchao, tinygemm"};
    case ScaleRule::kBitsandbytes:
      if (!IsTable(rule.levels) && groups.group != kLineGroup) return {};
      return {"bitsandbytes"};
    case ScaleRule::kBitnet:
      if (groups.group != kLineGroup) return {};
      return {"Transformers, BitNet"};
    case ScaleRule::kGguf:
      if (groups.group != 32 || groups.usage != Usage::kRowwise) return {};
      return {"gguf"};
    case ScaleRule::kQwix:
      return {"qwix"};
    default:
      return {};
  }
}

uint32_t BitsOfScale(float value) { return std::bit_cast<uint32_t>(CanonicalFloat(value)); }
bool IsSameLevel(float a, float b) { return BitsOfScale(a) == BitsOfScale(b); }

float StoredOf(const LevelRule& rule, const LevelScale& scale, const GroupExtremes& extremes,
               StoredScale stored) {
  switch (stored) {
    case StoredScale::kMultiplier:
      return scale.divides ? scale.scale_inv : scale.factor;
    case StoredScale::kAmax:
      return std::max(std::fabs(extremes.least), std::fabs(extremes.most));
    case StoredScale::kInverse:
      break;
  }
  return scale.scale_inv;
}

/// Whether a stored zero point is that of the group; without one in the rule, zero.
bool IsZero(const LevelRule& rule, const LevelScale& scale, const LevelZeros& zeros, int64_t group,
            StoredZero stored, int offset) {
  const float given = zeros.values[group];
  const float zero = rule.zero_point == ZeroPoint::kNone ? 0.0f : scale.zero;
  const float wanted = stored == StoredZero::kNegated  ? -zero
                       : stored == StoredZero::kOffset ? zero + static_cast<float>(offset)
                                                       : zero;
  if (zeros.are_nibbles) {
    return std::fabs(wanted) <= 16.0f && static_cast<int>(given) == (static_cast<int>(wanted) & 15);
  }
  return given == wanted || IsSameLevel(given, wanted);
}

/// The place of a code among the levels in their order.
int RankOf(Levels levels, uint8_t code) {
  if (levels == Levels::kNf4) return code & 15;
  if (levels != Levels::kBnbFp4) return static_cast<int>(LevelOf(levels, code));
  int rank = 0;
  while (BnbFp4Ranked(rank) != (code & 15)) ++rank;
  return rank;
}
/// The level of a rank, which there need not be.
double LevelAt(Levels levels, int rank) {
  if (!IsTable(levels)) return rank;
  const int within = std::clamp(rank, 0, 15);
  return levels == Levels::kNf4 ? Nf4Level(within) : BnbFp4Level(BnbFp4Ranked(within));
}

/// One division into groups with what is read of it once.
struct Division {
  LevelGroups groups;
  std::shared_ptr<const std::vector<GroupExtremes>> extremes;
  std::vector<int64_t> sample_groups;  ///< Those of the sample, each once.
  std::vector<int32_t> sample_slots;   ///< Of each element of the sample, its place among them.
};

/// A rule with a division, a spelling of the codes, and how scales and zero points are stored.
struct LevelTrial {
  const Division* division = nullptr;
  const LevelReading* reading = nullptr;
  LevelRule rule;
  StoredScale scale = StoredScale::kInverse;
  const LevelZeros* zeros = nullptr;  ///< Null: none are given.
  StoredZero zero = StoredZero::kAsIs;
  double score = 0;  ///< Shares of scales, zero points and codes that match in the sample.
  bool fits_sample = false;
};

/// What is counted of the elements of a trial.
struct Counts {
  int64_t matches = 0, between = 0, ties = 0, beyond = 0, step_up = 0, step_down = 0;
  double off_tie_max = 0;
  int64_t first = -1;  ///< The first element that differs.

  void Add(const Counts& other) {
    matches += other.matches;
    between += other.between;
    ties += other.ties;
    beyond += other.beyond;
    step_up += other.step_up;
    step_down += other.step_down;
    off_tie_max = std::max(off_tie_max, other.off_tie_max);
    if (first < 0 || (other.first >= 0 && other.first < first)) first = other.first;
  }
};

class LevelsExplainer {
 public:
  LevelsExplainer(const ExplainCodesRequest& request, const ExecutionContext& context)
      : request_(request), context_(context) {}

  absl::StatusOr<CodesExplanation> Explain();

 private:
  absl::Status Read();
  /// The rules that codes of this element with such groups may have.
  std::vector<LevelRule> RulesOf(DType element, const LevelGroups& groups) const;
  /// Every trial of a rule, with its score on the sample.
  std::vector<LevelTrial> TrialsOf(const Division& division, DType element,
                                   const LevelRule& rule) const;
  /// Counts everything.
  CodesCandidate Evaluate(const LevelTrial& trial) const;
  Counts CountCodes(const LevelTrial& trial, const std::vector<LevelScale>& scales) const;
  /// Counts the element `at`, whose given code is `given`.
  void CountCode(const LevelRule& rule, const LevelScale& scale, float value, uint8_t given,
                 int64_t at, Counts& counts) const;

  const ExplainCodesRequest& request_;
  const ExecutionContext& context_;
  std::vector<float> source_;
  std::vector<int64_t> sample_;
  std::vector<LevelReading> readings_;
  std::vector<Division> divisions_;
};

absl::Status LevelsExplainer::Read() {
  QG_ASSIGN_OR_RETURN(const Tensor f32, CastTensor(request_.source, DType::kF32, context_));
  source_.assign(f32.as<float>(), f32.as<float>() + f32.element_count());
  const int64_t rows = request_.source.rows(), columns = request_.source.columns();
  readings_ = LevelReadingsOf(request_.codes, rows, columns);
  if (readings_.empty()) {
    return Refuse("codes", TensorText(request_.codes),
                  absl::StrCat("must be one for each of the source's ", rows, "x", columns,
                               " elements: one to a byte, two to a byte or eight to an i32"));
  }
  const bool with_runs =
      std::any_of(readings_.begin(), readings_.end(), [](const LevelReading& reading) {
        return reading.element == DType::kNf4x2 || reading.element == DType::kBnbFp4x2;
      });
  QG_ASSIGN_OR_RETURN(std::vector<LevelGroups> found, LevelGroupsOf(request_, with_runs));
  if (found.empty()) {
    return Refuse("scale_inv", TensorText(request_.scale_inv),
                  absl::StrCat("fits no groups of a source ", TensorText(request_.source)));
  }
  const int64_t count = rows * columns;
  // Odd, so that every place in a group comes.
  const int64_t step = count <= kSampleLevels ? 1 : count / kSampleLevels | 1;
  for (int64_t at = 0; at < count; at += step) sample_.push_back(at);
  for (LevelGroups& groups : found) {
    QG_RETURN_IF_ERROR(context_.CheckCancelled());
    Division division;
    // Both orders of scales have the same extremes.
    if (groups.is_turned && !divisions_.empty() && divisions_.back().groups.usage == groups.usage &&
        divisions_.back().groups.unit == groups.unit) {
      division.extremes = divisions_.back().extremes;
    } else {
      division.extremes =
          std::make_shared<const std::vector<GroupExtremes>>(ExtremesOf(groups, source_, context_));
    }
    std::vector<int32_t> slots(static_cast<size_t>(groups.count()), -1);
    for (const int64_t at : sample_) {
      int32_t& slot = slots[groups.GroupOf(at / columns, at % columns)];
      if (slot < 0) {
        slot = static_cast<int32_t>(division.sample_groups.size());
        division.sample_groups.push_back(groups.GroupOf(at / columns, at % columns));
      }
      division.sample_slots.push_back(slot);
    }
    division.groups = std::move(groups);
    divisions_.push_back(std::move(division));
  }
  return absl::OkStatus();
}

std::vector<LevelRule> LevelsExplainer::RulesOf(DType element, const LevelGroups& groups) const {
  std::vector<LevelRule> rules;
  for (const ScalingTraits& traits : AllQuantizerFormats()) {
    const bool has_element =
        std::find(traits.elements.begin(), traits.elements.end(), element) != traits.elements.end();
    if (!traits.has_levels() || !has_element || traits.has_runs != groups.has_runs()) continue;
    if (traits.has_runs && groups.usage != Usage::kRowwise) continue;
    QuantizerSpec spec = {.format = traits.format, .element = element};
    spec.group = groups.group;
    for (const ScaleRule rule : traits.rules) {
      for (const ZeroPoint zero_point :
           {ZeroPoint::kNone, ZeroPoint::kInteger, ZeroPoint::kFloat}) {
        for (const StepDType operation : {StepDType::kF32, StepDType::kSource}) {
          spec.scale_rule = rule;
          spec.zero_point = zero_point;
          spec.operation_dtype = operation;
          if (!CheckQuantizer(spec).ok()) continue;
          rules.push_back(MakeLevelRule(spec, request_.source.dtype()));
        }
      }
    }
  }
  return rules;
}

std::vector<LevelTrial> LevelsExplainer::TrialsOf(const Division& division, DType element,
                                                  const LevelRule& rule) const {
  const LevelGroups& groups = division.groups;
  const std::vector<GroupExtremes>& extremes = *division.extremes;
  const auto group_count = static_cast<double>(division.sample_groups.size());
  std::vector<LevelScale> scales;
  for (const int64_t group : division.sample_groups) {
    scales.push_back(MakeLevelScale(rule, extremes[group]));
  }
  LevelTrial best;
  best.division = &division;
  best.rule = rule;
  double scale_share = -1;
  for (const StoredScale stored : kStoredScales) {
    if (!HasStoredScale(rule, stored)) continue;
    int64_t matches = 0;
    for (size_t i = 0; i < scales.size(); ++i) {
      const int64_t group = division.sample_groups[i];
      matches +=
          IsSameLevel(StoredOf(rule, scales[i], extremes[group], stored), groups.scales[group]);
    }
    if (matches / group_count <= scale_share) continue;
    scale_share = matches / group_count;
    best.scale = stored;
  }
  const int64_t columns = request_.source.columns();
  std::vector<LevelTrial> trials;
  for (const LevelReading& reading : readings_) {
    if (reading.element != element) continue;
    LevelTrial trial = best;
    trial.reading = &reading;
    double zero_share = groups.zeros.empty() ? 1 : -1;
    for (const LevelZeros& zeros : groups.zeros) {
      for (const StoredZero stored : kStoredZeros) {
        if (stored == StoredZero::kOffset && reading.offset == 0) continue;
        if (stored == StoredZero::kNegated && rule.zero_point != ZeroPoint::kFloat) continue;
        int64_t matches = 0;
        for (size_t i = 0; i < scales.size(); ++i) {
          matches +=
              IsZero(rule, scales[i], zeros, division.sample_groups[i], stored, reading.offset);
        }
        if (matches / group_count <= zero_share) continue;
        zero_share = matches / group_count;
        trial.zeros = &zeros;
        trial.zero = stored;
      }
    }
    int64_t matches = 0;
    for (size_t i = 0; i < sample_.size(); ++i) {
      const uint8_t code =
          LevelCodeOf(rule, scales[division.sample_slots[i]], source_[sample_[i]]).code;
      matches += code == reading.CodeAt(sample_[i] / columns, sample_[i] % columns);
    }
    trial.score = scale_share + zero_share + static_cast<double>(matches) / sample_.size();
    trial.fits_sample =
        scale_share == 1 && zero_share == 1 && matches == static_cast<int64_t>(sample_.size());
    trials.push_back(trial);
  }
  return trials;
}

void LevelsExplainer::CountCode(const LevelRule& rule, const LevelScale& scale, float value,
                                uint8_t given, int64_t at, Counts& counts) const {
  const Levels levels = rule.levels;
  const LevelCode made = LevelCodeOf(rule, scale, value);
  counts.beyond += made.is_beyond;
  // In steps of the stored scale, from where its codes are counted. Doubles hold them exactly.
  const double step = scale.scale_inv;
  const double from = rule.zero_point == ZeroPoint::kFloat ? double(value) - scale.zero : value;
  const double zero = rule.zero_point == ZeroPoint::kInteger ? scale.zero : 0.0;
  const int rank = RankOf(levels, made.code);
  const double of_code = (LevelAt(levels, rank) - zero) * step;
  if (!made.is_beyond && from != of_code && from == from) {
    ++counts.between;
    const double next = LevelAt(levels, from > of_code ? rank + 1 : rank - 1) - zero;
    counts.ties += 2 * from == of_code + next * step;
  }
  if (made.code == given) {
    ++counts.matches;
    return;
  }
  if (counts.first < 0) counts.first = at;
  const int given_rank = RankOf(levels, given);
  if (std::abs(given_rank - rank) != 1) return;
  const double of_given = (LevelAt(levels, given_rank) - zero) * step;
  ++(std::fabs(of_given) > std::fabs(of_code) ? counts.step_up : counts.step_down);
  const double off = std::fabs(from - (of_given + of_code) / 2) / std::fabs(of_given - of_code);
  if (off > counts.off_tie_max) counts.off_tie_max = off;
}

Counts LevelsExplainer::CountCodes(const LevelTrial& trial,
                                   const std::vector<LevelScale>& scales) const {
  const LevelGroups& groups = trial.division->groups;
  const int64_t columns = groups.columns;
  Counts counts;
  std::mutex mutex;
  ParallelFor(context_, groups.rows, std::max<int64_t>(16384 / columns, 1),
              [&](int64_t begin, int64_t end) {
                Counts part;
                for (int64_t row = begin; row < end; ++row) {
                  const bool are_columns = groups.usage == Usage::kColumnwise;
                  int64_t group = groups.GroupOf(row, 0), last = 0;
                  for (int64_t column = 0; column < columns; ++column) {
                    if (are_columns && column > 0) group += groups.across;
                    if (!are_columns && column == last) {
                      group = groups.GroupOf(row, column);
                      const int64_t along = groups.is_flat ? (row * columns + column) % groups.unit
                                                           : column % groups.unit;
                      last = column + groups.unit - along;
                    }
                    CountCode(trial.rule, scales[group], source_[row * columns + column],
                              trial.reading->CodeAt(row, column), row * columns + column, part);
                  }
                }
                const std::lock_guard<std::mutex> lock(mutex);
                counts.Add(part);
              });
  return counts;
}

/// Whether a bound of the rule, not the extremes, decides the scale: those of twice the size have
/// the same one.
bool IsAtBound(const LevelRule& rule, const GroupExtremes& extremes, const LevelScale& scale) {
  if (!(scale.scale_inv != 0.0f) || !std::isfinite(scale.scale_inv)) return true;
  GroupExtremes twice = extremes;
  twice.least *= 2;
  twice.most *= 2;
  twice.first_largest *= 2;
  return IsSameLevel(MakeLevelScale(rule, twice).scale_inv, scale.scale_inv);
}

CodesCandidate LevelsExplainer::Evaluate(const LevelTrial& trial) const {
  const LevelRule& rule = trial.rule;
  const LevelGroups& groups = trial.division->groups;
  const std::vector<GroupExtremes>& extremes = *trial.division->extremes;
  CodesCandidate candidate;
  candidate.element = trial.reading->Text();
  candidate.block = groups.Text();
  candidate.scale_rule = absl::StrCat(
      std::string(ScaleRuleName(rule.rule)),
      ", zero_point=", std::string(ZeroPointName(rule.zero_point)),
      trial.scale == StoredScale::kMultiplier ? ", what multiplies elements is stored"
      : trial.scale == StoredScale::kAmax     ? ", amaxes are stored"
                                              : "",
      trial.zero == StoredZero::kNegated  ? ", zero points are stored negated"
      : trial.zero == StoredZero::kOffset ? ", zero points are stored as codes are"
                                          : "",
      trial.zeros == nullptr && rule.zero_point != ZeroPoint::kNone ? ", zero points are not given"
                                                                    : "");
  candidate.element_rule =
      absl::StrCat("operation_dtype=", std::string(StepDTypeName(rule.operation_dtype)));
  for (std::string& library : LibrariesOf(rule, groups)) {
    candidate.libraries.insert(std::move(library));
  }
  candidate.is_own_rule = true;
  candidate.scale_count = groups.count();
  candidate.zero_count = trial.zeros == nullptr ? 0 : groups.count();
  candidate.code_count = request_.source.element_count();
  std::vector<LevelScale> scales(static_cast<size_t>(groups.count()));
  ParallelFor(context_, groups.count(), 1024, [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) {
      scales[group] = MakeLevelScale(rule, extremes[group]);
    }
  });
  std::vector<uint32_t> amaxes[2];  // At no bound of the rule, and at one.
  for (int64_t group = 0; group < groups.count(); ++group) {
    const LevelScale& scale = scales[group];
    const float stored = StoredOf(rule, scale, extremes[group], trial.scale);
    const bool is_same = IsSameLevel(stored, groups.scales[group]);
    candidate.scale_matches += is_same;
    if (!is_same && !candidate.first_scale_difference.has_value()) {
      candidate.first_scale_difference = {group, groups.scales[group], stored};
    }
    candidate.zero_matches += trial.zeros != nullptr && IsZero(rule, scale, *trial.zeros, group,
                                                               trial.zero, trial.reading->offset);
    amaxes[IsAtBound(rule, extremes[group], scale)].push_back(std::bit_cast<uint32_t>(
        std::max(std::fabs(extremes[group].least), std::fabs(extremes[group].most))));
  }
  const Counts counts = CountCodes(trial, scales);
  candidate.code_matches = counts.matches;
  if (counts.first >= 0) {
    const int64_t row = counts.first / groups.columns, column = counts.first % groups.columns;
    const LevelCode made =
        LevelCodeOf(rule, scales[groups.GroupOf(row, column)], source_[counts.first]);
    candidate.first_difference =
        ElementAt{row, column, trial.reading->CodeAt(row, column), made.code};
  }
  CodesEvidence& evidence = candidate.evidence;
  std::vector<uint32_t> bits;
  for (const float scale : groups.scales) bits.push_back(BitsOfScale(scale));
  evidence.scale_distinct = CountDistinct(bits);
  evidence.amax_distinct = CountDistinct(amaxes[0]);
  evidence.amax_bound_count = CountDistinct(amaxes[1]);
  evidence.between_count = counts.between;
  evidence.tie_count = counts.ties;
  evidence.overflow_count = counts.beyond;
  evidence.step_up_count = counts.step_up;
  evidence.step_down_count = counts.step_down;
  evidence.off_tie_max = counts.off_tie_max;
  return candidate;
}

int64_t MatchesOf(const CodesCandidate& candidate) {
  return candidate.code_matches + candidate.scale_matches + candidate.zero_matches;
}

absl::StatusOr<CodesExplanation> LevelsExplainer::Explain() {
  const ScopedIeeeEnvironment ieee;
  QG_RETURN_IF_ERROR(Read());
  struct Work {
    const Division* division;
    DType element;
    LevelRule rule;
  };
  std::vector<Work> work;
  for (const Division& division : divisions_) {
    std::set<DType> elements;
    for (const LevelReading& reading : readings_) {
      if (!elements.insert(reading.element).second) continue;
      for (const LevelRule& rule : RulesOf(reading.element, division.groups)) {
        work.push_back({&division, reading.element, rule});
      }
    }
  }
  if (work.empty()) {
    return Refuse("scale_inv", TensorText(request_.scale_inv),
                  "no rule of such codes has as many scales");
  }
  std::vector<std::vector<LevelTrial>> trials_of(work.size());
  ParallelFor(context_, static_cast<int64_t>(work.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      trials_of[i] = TrialsOf(*work[i].division, work[i].element, work[i].rule);
    }
  });
  QG_RETURN_IF_ERROR(context_.CheckCancelled());
  std::vector<LevelTrial> trials;
  for (std::vector<LevelTrial>& some : trials_of) {
    std::move(some.begin(), some.end(), std::back_inserter(trials));
  }
  CodesExplanation explanation;
  explanation.tried = static_cast<int64_t>(trials.size());
  // What does not fit the sample does not fit all.
  std::stable_sort(trials.begin(), trials.end(), [](const LevelTrial& a, const LevelTrial& b) {
    return std::pair(a.fits_sample, a.score) > std::pair(b.fits_sample, b.score);
  });
  const auto fitting = static_cast<size_t>(std::count_if(
      trials.begin(), trials.end(), [](const LevelTrial& t) { return t.fits_sample; }));
  const bool is_small = request_.source.element_count() <= kSmallLevels;
  const size_t near = fitting > 0 ? (is_small ? kNearLevelsBesideFitting : 0)
                      : is_small  ? kNearKept
                                  : kNearKeptOfLarge;
  std::vector<CodesCandidate>& candidates = explanation.candidates;
  for (size_t i = 0; i < std::min(trials.size(), fitting + near); ++i) {
    QG_RETURN_IF_ERROR(context_.CheckCancelled());
    candidates.push_back(Evaluate(trials[i]));
  }
  QG_RETURN_IF_ERROR(context_.CheckCancelled());
  std::stable_sort(
      candidates.begin(), candidates.end(), [](const CodesCandidate& a, const CodesCandidate& b) {
        return std::pair(a.is_entire(), MatchesOf(a)) > std::pair(b.is_entire(), MatchesOf(b));
      });
  std::set<std::string> libraries;  // Of all that give everything, however little tells them.
  for (CodesCandidate& candidate : candidates) {
    candidate.is_established = DoubtOf(candidate).empty();
    explanation.is_established |= candidate.is_established;
    if (candidate.is_entire()) {
      libraries.insert(candidate.libraries.begin(), candidate.libraries.end());
    }
  }
  for (CodesCandidate& candidate : candidates) {
    const bool is_alone = libraries.size() == 1 && !candidate.libraries.empty();
    if (is_alone && candidate.is_established) candidate.scale_origin = *libraries.begin();
  }
  explanation.conclusion = ConclusionOf(candidates, libraries, std::nullopt);
  if (!candidates.front().is_entire()) explanation.cause = kUnknownCause;
  if (candidates.size() > kCandidatesKept) candidates.resize(kCandidatesKept);
  return explanation;
}

}  // namespace

bool IsOfLevels(DType codes) {
  const auto formats = AllQuantizerFormats();
  return codes == DType::kI32 ||
         std::any_of(formats.begin(), formats.end(), [codes](const ScalingTraits& traits) {
           return traits.has_levels() && std::find(traits.elements.begin(), traits.elements.end(),
                                                   codes) != traits.elements.end();
         });
}

bool AreLevels(const ExplainCodesRequest& request) {
  const DType codes = request.codes.dtype();
  return request.zero_point.has_value() || (codes != DType::kU8 && IsOfLevels(codes));
}

bool MayBeLevels(const ExplainCodesRequest& request) {
  if (AreLevels(request)) return true;
  return request.codes.dtype() == DType::kU8 && IsHighPrecision(request.scale_inv.dtype()) &&
         request.scale_layout == ScaleLayout::kLogical && !request.amax.has_value();
}

absl::Status CheckLevels(const ExplainCodesRequest& request) {
  if (request.amax.has_value()) {
    return Refuse("amax", TensorText(request.amax), "codes of levels have none");
  }
  const DType zero = request.zero_point.has_value() ? request.zero_point.dtype() : DType::kI8;
  if (!IsOfLevels(request.codes.dtype())) {
    return Refuse("zero_point", TensorText(request.zero_point),
                  absl::StrCat("codes ", TensorText(request.codes), " have none"));
  }
  if (!IsHighPrecision(request.scale_inv.dtype())) {
    return Refuse("scale_inv", TensorText(request.scale_inv), "must be f32, bf16 or f16");
  }
  if (request.scale_layout != ScaleLayout::kLogical) {
    return Refuse("scale_layout", ScaleLayoutName(request.scale_layout),
                  "scales of levels are logical");
  }
  const bool is_zero =
      IsHighPrecision(zero) || zero == DType::kI8 || zero == DType::kU8 || zero == DType::kI32;
  if (!is_zero || (request.zero_point.has_value() && request.zero_point.element_count() == 0)) {
    return Refuse("zero_point", TensorText(request.zero_point),
                  "must be f32, bf16, f16, i8, u8 or i32, with at least one element");
  }
  return absl::OkStatus();
}

absl::StatusOr<CodesExplanation> ExplainLevels(const ExplainCodesRequest& request,
                                               const ExecutionContext& context) {
  return LevelsExplainer(request, context).Explain();
}

}  // namespace quantgate
