#include "kernels/validate/explain/explain_cause.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/grouped_digits.h"
#include "kernels/base/status_macros.h"
#include "kernels/validate/explain/changed_scales.h"
#include "kernels/validate/explain/explain_candidates.h"
#include "kernels/validate/explain/explain_stored.h"

namespace quantgate {
namespace {

constexpr char kOrder[] =
    "scales right, codes wrong: elements were scaled by another order of operations";
constexpr char kRounding[] = "elements are truncated or rounded away from zero, not to nearest";
constexpr char kFormat[] = "codes are of another format";
constexpr char kTransposed[] = "codes are transposed";
constexpr char kTransposedBytes[] = "bytes of two codes were transposed as if each were one";
constexpr char kSwapped[] = "the two codes of each byte are swapped";
constexpr char kRotated[] = "the columns of x are rotated: codes of a shifted tensor";
constexpr char kOneAmax[] = "one amax for the whole tensor in place of one for each block";
constexpr char kStale[] = "the scale is of another amax than the source's";

/// The rules of this build's quantizers, and how they scale elements.
struct OwnRule {
  std::string_view name;
  ElementScaling scaling;
};
constexpr OwnRule kOwnRules[] = {
    {"divide", ElementScaling::kMultiply},
    {"divide, power of two", ElementScaling::kMultiply},
    {"divide or maximum", ElementScaling::kMultiply},
    {"divide or maximum, power of two", ElementScaling::kMultiply},
    {"reciprocal", ElementScaling::kMultiply},
    {"reciprocal, power of two", ElementScaling::kMultiply},
    {"reciprocal or maximum", ElementScaling::kMultiply},
    {"reciprocal or maximum, power of two", ElementScaling::kMultiply},
    {"round_up", ElementScaling::kMultiply},
    {"floor", ElementScaling::kMultiply},
    {"ceil", ElementScaling::kMultiply},
    {"even", ElementScaling::kMultiply},
    {"nearest", ElementScaling::kMultiply},
    {"two_level", ElementScaling::kMultiply},
    {"two_level with block scales up to 256", ElementScaling::kMultiply},
    {"two_level_clamped", ElementScaling::kDivideByProduct},
    {"single_level", ElementScaling::kDivide},
};

std::string_view ShortName(std::string_view rule) { return rule.substr(0, rule.find(':')); }

const OwnRule* FindOwn(std::string_view rule) {
  const auto* const found =
      std::find_if(std::begin(kOwnRules), std::end(kOwnRules),
                   [&](const OwnRule& own) { return own.name == ShortName(rule); });
  return found == std::end(kOwnRules) ? nullptr : found;
}

/// Elements in one orientation, and one reading of their codes.
struct Reading {
  int64_t rows = 0, columns = 0;
  std::shared_ptr<const CodedElements> elements;  ///< Without codes.
  std::shared_ptr<const std::vector<uint8_t>> codes;
};

/// A rule on the blocks of one shape.
struct RuledBlocks {
  const NamedScaleRule* rule;
  const CodeFormat* format;  ///< Of the elements that the scales are for.
  std::shared_ptr<const BlockMaxima> maxima;
  int64_t scale_rows, scale_columns;
};

enum class Toward { kNearest, kZero, kAway };

uint8_t Encode(const CodeFormat& format, float scaled, Toward toward) {
  const uint8_t nearest = format.encode(scaled, ElementRounding::kNearestEven, Overflow::kSaturate);
  if (toward == Toward::kNearest || std::isnan(scaled)) return nearest;
  const float magnitude = std::fabs(scaled);
  auto code = static_cast<uint8_t>(nearest & (format.sign - 1));
  if (toward == Toward::kZero && format.values[code] > magnitude) --code;
  if (toward == Toward::kAway && format.values[code] < magnitude && code < format.max) ++code;
  return format.Signed(code, std::signbit(scaled) ? format.sign : uint8_t(0));
}

class CauseFinder {
 public:
  CauseFinder(const ExplainCodesRequest& request, const std::vector<float>& source,
              const ExecutionContext& context)
      : request_(request), source_(source), context_(context) {}

  absl::StatusOr<std::optional<CodesCause>> Find();

 private:
  using Codes = std::shared_ptr<const std::vector<uint8_t>>;

  std::optional<CodesCause> FindIn(const Reading& reading, bool transposed);
  /// Scales are right: what of the elements is not.
  std::optional<CodesCause> FindInElements(const Reading& reading, bool transposed);
  /// Codes are right by the scales that they should have: what the given scales are of these.
  std::optional<CodesCause> FindInScales(const Reading& reading);
  /// Codes are those of the given scales: what these are.
  std::optional<CodesCause> FindOfGivenScales(const Reading& reading);
  std::optional<CodesCause> FindRotation(const Reading& reading);

  /// Calls visit for rules, this build's first, on blocks of every shape, or of those that the
  /// given scales fit. Stops where it returns true.
  void ForRules(const Reading& reading, const CodeFormat& format, bool fits_given,
                const std::function<bool(const RuledBlocks&)>& visit);
  std::shared_ptr<const BlockMaxima> CachedMaxima(const StoredCodes& stored,
                                                  const CodeBlocks& blocks);
  ScaleRuleResult Apply(const RuledBlocks& ruled, int64_t scale) const;
  std::vector<uint32_t> OwnScales(const RuledBlocks& ruled) const;
  bool HasGivenScales(const RuledBlocks& ruled) const;
  /// Whether every code is that of its element under the factors of blocks; signs of zeros are not
  /// judged.
  bool Fits(const Reading& reading, const CodeBlocks& blocks, int64_t scale_columns,
            const CodeFormat& format, ElementScaling scaling, Toward toward,
            const std::function<float(int64_t scale)>& factor_of) const;
  bool FitsRule(const Reading& reading, const RuledBlocks& ruled, const CodeFormat& format,
                ElementScaling scaling, Toward toward) const;
  /// As FitsRule for any way of scaling that goes with the rule.
  std::optional<ElementScaling> ScalingThatFits(const Reading& reading, const RuledBlocks& ruled,
                                                const CodeFormat& format) const;
  std::string RuleText(const RuledBlocks& ruled) const;
  Codes Unpacked(bool swapped, bool bytes_transposed, int64_t rows, int64_t columns) const;

  const ExplainCodesRequest& request_;
  const std::vector<float>& source_;
  const ExecutionContext& context_;
  bool is_packed_ = false;  // FP4, two to a byte.
  std::vector<const CodeFormat*> formats_, other_formats_;
  StoredCodes given_;  // The scales as given.
  float global_amax_ = 0;
  /// Indices of codes that were not those of some candidate, found on all elements.
  mutable std::set<int64_t> failed_at_;
  std::map<std::tuple<std::shared_ptr<const CodedElements>, int64_t, int64_t, int64_t>,
           std::shared_ptr<const BlockMaxima>>
      maxima_;
};

ScaleRuleResult CauseFinder::Apply(const RuledBlocks& ruled, int64_t scale) const {
  return ruled.rule->apply({ruled.maxima->amaxes[scale], global_amax_, ruled.format->dtype,
                            request_.source.dtype(), ruled.maxima->has_nan[scale] != 0,
                            ruled.format->is_fnuz ? ruled.format->max_value() : 0});
}

std::vector<uint32_t> CauseFinder::OwnScales(const RuledBlocks& ruled) const {
  std::vector<uint32_t> scales(ruled.maxima->amaxes.size());
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = Apply(ruled, static_cast<int64_t>(i)).scale_inv_bits;
  }
  return scales;
}

bool CauseFinder::HasGivenScales(const RuledBlocks& ruled) const {
  if (ruled.scale_rows != given_.scale_rows || ruled.scale_columns != given_.scale_columns) {
    return false;
  }
  for (size_t i = 0; i < given_.scales.size(); ++i) {
    if (Apply(ruled, static_cast<int64_t>(i)).scale_inv_bits != given_.scales[i]) return false;
  }
  return true;
}

std::shared_ptr<const BlockMaxima> CauseFinder::CachedMaxima(const StoredCodes& stored,
                                                             const CodeBlocks& blocks) {
  const auto key = std::make_tuple(stored.elements, blocks.rows, blocks.columns, blocks.amax_rows);
  std::shared_ptr<const BlockMaxima>& known = maxima_[key];
  if (known == nullptr) known = MaximaOf(stored, blocks, context_);
  return known;
}

void CauseFinder::ForRules(const Reading& reading, const CodeFormat& format, bool fits_given,
                           const std::function<bool(const RuledBlocks&)>& visit) {
  const int64_t m = reading.rows, k = reading.columns;
  std::vector<CodeBlocks> shapes = {{m, k, m, k}, {1, k, 1, k}, {m, 1, m, 1}};
  for (const int64_t length : {128, 32, 16, 64, 256}) {
    shapes.push_back({1, length, 1, length});
    shapes.push_back({length, length, length, length});
    if (length <= 32) shapes.push_back({1, length, length, length});
    shapes.push_back({length, 1, length, 1});
  }
  StoredCodes stored;
  stored.rows = m;
  stored.columns = k;
  stored.elements = reading.elements;
  for (const CodeBlocks& shape : shapes) {
    stored.scale_rows = (m + shape.rows - 1) / shape.rows;
    stored.scale_columns = (k + shape.columns - 1) / shape.columns;
    if (fits_given &&
        (stored.scale_rows != given_.scale_rows || stored.scale_columns != given_.scale_columns)) {
      continue;
    }
    stored.scales.resize(stored.scale_rows * stored.scale_columns);
    std::shared_ptr<const BlockMaxima> maxima;
    for (const bool own : {true, false}) {
      for (const NamedScaleRule& rule : AllScaleRules()) {
        if ((FindOwn(rule.name) != nullptr) != own || !rule.fits(format.dtype) ||
            !IsScaleDType(request_.scale_inv.dtype(), rule.scale)) {
          continue;
        }
        // E4M3 scales belong to blocks of 16.
        if (rule.scale == DType::kF8E4M3 && shape.columns != 16) continue;
        if (maxima == nullptr) maxima = CachedMaxima(stored, shape);
        if (visit({&rule, &format, maxima, stored.scale_rows, stored.scale_columns})) return;
      }
    }
  }
}

bool CauseFinder::Fits(const Reading& reading, const CodeBlocks& blocks, int64_t scale_columns,
                       const CodeFormat& format, ElementScaling scaling, Toward toward,
                       const std::function<float(int64_t scale)>& factor_of) const {
  const ElementScaler scaler(scaling, request_.source.dtype());
  const std::vector<float>& values = reading.elements->values;
  const std::vector<uint8_t>& codes = *reading.codes;
  const auto is_code = [&](float factor, int64_t at) {
    const float scaled = scaler(values[at], factor);
    const uint8_t expected = Encode(format, scaled, toward), given = codes[at];
    if (expected == given) return true;
    if (scaled == 0) return (given & (format.sign - 1)) == 0;
    return format.has_nan && std::isnan(format.values[expected]) &&
           std::isnan(format.values[given]);
  };
  const int64_t count = reading.rows * reading.columns;
  const auto is_code_at = [&](int64_t at) {
    const int64_t scale =
        at / reading.columns / blocks.rows * scale_columns + at % reading.columns / blocks.columns;
    return is_code(factor_of(scale), at);
  };
  // A few of them first, which most candidates fail, and those that others failed: one stray code
  // has every candidate fail at the same place.
  const int64_t step = std::max<int64_t>(1, count / 64 | 1);
  for (int64_t at = 0; at < count; at += step) {
    if (!is_code_at(at)) return false;
  }
  for (const int64_t at : failed_at_) {
    if (!is_code_at(at)) return false;
  }
  std::atomic<bool> fits = true;
  std::atomic<int64_t> failed_at = -1;
  ParallelFor(context_, reading.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end && fits; ++row) {
      for (int64_t first = 0; first < reading.columns; first += blocks.columns) {
        const float factor = factor_of(row / blocks.rows * scale_columns + first / blocks.columns);
        const int64_t stop = std::min(first + blocks.columns, reading.columns);
        for (int64_t column = first; column < stop; ++column) {
          if (!is_code(factor, row * reading.columns + column)) {
            failed_at = row * reading.columns + column;
            fits = false;
            return;
          }
        }
      }
    }
  });
  if (!fits) failed_at_.insert(failed_at);
  return fits;
}

bool CauseFinder::FitsRule(const Reading& reading, const RuledBlocks& ruled,
                           const CodeFormat& format, ElementScaling scaling, Toward toward) const {
  return Fits(reading, ruled.maxima->blocks, ruled.scale_columns, format, scaling, toward,
              [&](int64_t scale) { return Apply(ruled, scale).factor(scaling); });
}

std::optional<ElementScaling> CauseFinder::ScalingThatFits(const Reading& reading,
                                                           const RuledBlocks& ruled,
                                                           const CodeFormat& format) const {
  const ScaleRuleResult first = Apply(ruled, 0);
  for (int i = 0; i < kScalingCount; ++i) {
    const auto scaling = static_cast<ElementScaling>(i);
    if (first.factors[i] == 0 || scaling == ElementScaling::kDivideInBf16) continue;
    if (FitsRule(reading, ruled, format, scaling, Toward::kNearest)) return scaling;
  }
  return std::nullopt;
}

std::string CauseFinder::RuleText(const RuledBlocks& ruled) const {
  const CodeBlocks& blocks = ruled.maxima->blocks;
  return absl::StrCat(ruled.format->name, " ", blocks.amax_rows, "x", blocks.amax_columns, ", ",
                      std::string(ruled.rule->name));
}

std::optional<CodesCause> CauseFinder::FindInElements(const Reading& reading, bool transposed) {
  std::optional<CodesCause> cause;
  const auto found = [&](const char* what, const RuledBlocks& ruled, const std::string& how) {
    cause = {what,
             absl::StrCat("All scales are those of ", RuleText(ruled), "; all ",
                          GroupedDigits(reading.rows * reading.columns), " codes are those ", how)};
    return true;
  };
  std::vector<std::pair<const char*, Reading>> views;
  const auto add_view = [&](const char* what, bool swapped, bool bytes_transposed) {
    Reading view = reading;
    view.codes = Unpacked(swapped, bytes_transposed, reading.rows, reading.columns);
    views.emplace_back(what, std::move(view));
  };
  if (!transposed) add_view(is_packed_ ? kTransposedBytes : kTransposed, false, true);
  if (is_packed_) add_view(kSwapped, true, false);
  for (const CodeFormat* format : formats_) {
    ForRules(reading, *format, true, [&](const RuledBlocks& ruled) {
      const OwnRule* const own = FindOwn(ruled.rule->name);
      if (own == nullptr || !HasGivenScales(ruled)) return false;
      const ScaleRuleResult first = Apply(ruled, 0);
      for (int i = 0; i < kScalingCount; ++i) {
        const auto scaling = static_cast<ElementScaling>(i);
        if (first.factors[i] == 0 || scaling == own->scaling) continue;
        if (FitsRule(reading, ruled, *format, scaling, Toward::kNearest)) {
          return found(
              kOrder, ruled,
              absl::StrCat("of ", ScalingText(scaling, request_.source.dtype()), ", not of ",
                           ScalingText(own->scaling, request_.source.dtype())));
        }
      }
      for (const auto& [toward, text] : {std::pair(Toward::kZero, "rounded toward zero"),
                                         {Toward::kAway,
                                          "rounded away from "
                                          "zero"}}) {
        if (FitsRule(reading, ruled, *format, own->scaling, toward)) {
          return found(kRounding, ruled, text);
        }
      }
      for (const CodeFormat* other : other_formats_) {
        if (other != format && FitsRule(reading, ruled, *other, own->scaling, Toward::kNearest)) {
          return found(kFormat, ruled, absl::StrCat("of ", other->name));
        }
      }
      for (const auto& [what, view] : views) {
        if (FitsRule(view, ruled, *format, own->scaling, Toward::kNearest)) {
          return found(what, ruled, "of the rule once that is undone");
        }
      }
      return false;
    });
    if (cause.has_value()) return cause;
  }
  return std::nullopt;
}

std::optional<CodesCause> CauseFinder::FindInScales(const Reading& reading) {
  std::optional<CodesCause> cause, of_others;
  bool may_be_others = true;
  for (const CodeFormat* format : formats_) {
    ForRules(reading, *format, false, [&](const RuledBlocks& ruled) {
      if (!ScalingThatFits(reading, ruled, *format).has_value()) return false;
      const OwnScaleArray own = {ruled.rule->scale, ruled.rule->keeps_scale, ruled.scale_rows,
                                 ruled.scale_columns, OwnScales(ruled)};
      const GivenScaleArray given = {given_.scale_rows, given_.scale_columns, &given_.scales};
      const auto caused = [&](const ChangedScales& changed) {
        return CodesCause{
            changed.what,
            absl::StrCat("All ", GroupedDigits(reading.rows * reading.columns),
                         " codes are those of ", RuleText(ruled),
                         ", under the scales that follow from the source; ", changed.how)};
      };
      if (const auto changed = ChangeOfScales(own, given)) {
        cause = caused(*changed);
        return true;
      }
      // Of every rule that gives the codes the scales must be as foreign.
      const auto others = ScalesOfAnother(own, given);
      may_be_others &= others.has_value();
      if (others.has_value() && !of_others.has_value()) of_others = caused(*others);
      return false;
    });
    if (cause.has_value()) return cause;
  }
  return may_be_others ? of_others : std::nullopt;
}

std::optional<CodesCause> CauseFinder::FindOfGivenScales(const Reading& reading) {
  const DType dtype = request_.scale_inv.dtype();
  if (!IsScaleDType(dtype, DType::kF32) && !IsScaleDType(dtype, DType::kF8E8M0)) {
    return std::nullopt;
  }
  const bool is_float = IsScaleDType(dtype, DType::kF32);
  std::optional<CodesCause> cause;
  const auto value_of = [&](int64_t scale) {
    return is_float ? std::bit_cast<float>(given_.scales[scale])
                    : std::ldexp(1.0f, static_cast<int>(given_.scales[scale]) - 127);
  };
  for (const CodeFormat* format : formats_) {
    bool is_judged = false, fits_given = false;
    CodeBlocks judged = {};
    ForRules(reading, *format, true, [&](const RuledBlocks& ruled) {
      const CodeBlocks& blocks = ruled.maxima->blocks;
      // Elements under the given scales, once for each shape of blocks.
      if (!is_judged || judged.rows != blocks.rows || judged.columns != blocks.columns) {
        is_judged = true;
        judged = blocks;
        fits_given = false;
        for (const ElementScaling scaling :
             {ElementScaling::kMultiply, ElementScaling::kDivide, ElementScaling::kDivideInType}) {
          fits_given |= Fits(reading, blocks, ruled.scale_columns, *format, scaling,
                             Toward::kNearest, [&](int64_t scale) {
                               return scaling == ElementScaling::kMultiply ? 1.0f / value_of(scale)
                                                                           : value_of(scale);
                             });
        }
      }
      if (!fits_given || FindOwn(ruled.rule->name) == nullptr || HasGivenScales(ruled)) {
        return false;
      }
      const OwnScaleArray own = {ruled.rule->scale, ruled.rule->keeps_scale, ruled.scale_rows,
                                 ruled.scale_columns, OwnScales(ruled)};
      const GivenScaleArray given = {given_.scale_rows, given_.scale_columns, &given_.scales};
      const std::string codes_text =
          absl::StrCat("All ", GroupedDigits(reading.rows * reading.columns),
                       " codes are those of the given scales; ");
      if (const auto changed = ChangeOfScales(own, given)) {
        cause = {changed->what, absl::StrCat(codes_text, changed->how, ", by ", RuleText(ruled))};
        return true;
      }
      const bool is_one = given_.scales.size() > 1 && given_.scale_distinct == 1;
      const uint32_t of_tensor =
          ruled.rule->apply({global_amax_, global_amax_, format->dtype, request_.source.dtype()})
              .scale_inv_bits;
      if (is_one && given_.scales.front() == of_tensor) {
        cause = {kOneAmax,
                 absl::StrCat(codes_text, "all of these are that of the tensor's amax, by ",
                              RuleText(ruled))};
        return true;
      }
      return false;
    });
    if (cause.has_value()) return cause;
    // One scale that no rule makes of the source's amax.
    const bool is_single = given_.scales.size() == 1 && is_float && IsFp8(format->dtype);
    if (!is_single || !fits_given) continue;
    bool is_made = false;
    ForRules(reading, *format, true, [&](const RuledBlocks& ruled) {
      is_made = HasGivenScales(ruled);
      return is_made;
    });
    if (is_made) continue;
    return CodesCause{
        kStale, absl::StrCat("All ", GroupedDigits(reading.rows * reading.columns),
                             " codes are those of the given scale, which no rule makes of the "
                             "source's amax: it goes with an amax of ",
                             format->max_value() * value_of(0), ", not ", global_amax_,
                             ", as delayed scaling and clipping have it")};
  }
  return std::nullopt;
}

std::optional<CodesCause> CauseFinder::FindRotation(const Reading& reading) {
  const int64_t k = reading.columns;
  if (k < 2) return std::nullopt;
  for (const CodeFormat* format : formats_) {
    // Shifts under which the signs of some rows agree, where codes are not zeros.
    for (int64_t shift = 1; shift < k; ++shift) {
      bool agrees = true;
      int64_t compared = 0;
      for (int64_t at = 0; at < reading.rows * k && compared < 256 && agrees; at += 3) {
        const uint8_t code = (*reading.codes)[at];
        if ((code & (format->sign - 1)) == 0) continue;
        const int64_t row = at / k, column = at % k;
        const float value = reading.elements->values[row * k + (column - shift + k) % k];
        agrees = std::signbit(value) == ((code & format->sign) != 0);
        ++compared;
      }
      if (!agrees || compared < 64) continue;
      Reading rotated = reading;
      auto elements = std::make_shared<CodedElements>(*reading.elements);
      for (int64_t at = 0; at < reading.rows * k; ++at) {
        elements->values[at] = reading.elements->values[at / k * k + (at % k - shift + k) % k];
      }
      rotated.elements = std::move(elements);
      std::optional<CodesCause> cause;
      ForRules(rotated, *format, true, [&](const RuledBlocks& ruled) {
        if (!HasGivenScales(ruled) || !ScalingThatFits(rotated, ruled, *format).has_value()) {
          return false;
        }
        cause = {kRotated, absl::StrCat("All codes and scales are those of ", RuleText(ruled),
                                        " of the source with its columns rotated by ", shift)};
        return true;
      });
      if (cause.has_value()) return cause;
    }
  }
  return std::nullopt;
}

CauseFinder::Codes CauseFinder::Unpacked(bool swapped, bool bytes_transposed, int64_t rows,
                                         int64_t columns) const {
  auto codes = std::make_shared<std::vector<uint8_t>>(rows * columns);
  const uint8_t* const bytes = request_.codes.as<uint8_t>();
  const int64_t row_bytes = is_packed_ ? (columns + 1) / 2 : columns;
  // Of a tile of this side, lines that lie across stay in the caches.
  constexpr int64_t kSide = 64;
  ParallelFor(context_, rows, kSide, [&](int64_t begin, int64_t end) {
    for (int64_t first = 0; first < columns; first += kSide) {
      const int64_t stop = std::min(first + kSide, columns);
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t column = first; column < stop; ++column) {
          const int64_t byte = is_packed_ ? column / 2 : column;
          const uint8_t given =
              bytes[bytes_transposed ? byte * rows + row : row * row_bytes + byte];
          const bool is_high = (column % 2 == 1) != swapped;
          (*codes)[row * columns + column] = !is_packed_ ? given
                                             : is_high   ? given >> 4
                                                         : given & 0xF;
        }
      }
    }
  });
  return codes;
}

std::optional<CodesCause> CauseFinder::FindIn(const Reading& reading, bool transposed) {
  if (auto cause = FindInElements(reading, transposed)) return cause;
  if (auto cause = FindInScales(reading)) return cause;
  if (auto cause = FindOfGivenScales(reading)) return cause;
  return FindRotation(reading);
}

absl::StatusOr<std::optional<CodesCause>> CauseFinder::Find() {
  const Tensor& scales = request_.scale_inv;
  given_ = AsGiven(scales);
  const int64_t m = request_.source.rows(), k = request_.source.columns();
  const Tensor& codes = request_.codes;
  global_amax_ = 0;
  for (const float value : source_) {
    if (std::fabs(value) > global_amax_) global_amax_ = std::fabs(value);
  }
  if (request_.amax.has_value() && request_.amax.element_count() == 1) {
    global_amax_ = *request_.amax.as<float>();
  }
  for (const bool transposed : {false, true}) {
    Reading reading;
    reading.rows = transposed ? k : m;
    reading.columns = transposed ? m : k;
    if (codes.rows() != reading.rows || (transposed && m == 1)) continue;
    const bool is_whole = codes.columns() == reading.columns;
    is_packed_ = !is_whole && codes.columns() * 2 == reading.columns;
    if (!is_whole && !is_packed_) continue;
    formats_.clear();
    other_formats_.clear();
    for (const CodeFormat& format : AllCodeFormats()) {
      const bool is_fp4 = format.dtype == DType::kF4E2M1x2;
      if (is_fp4 != is_packed_) continue;
      const bool is_given = codes.dtype() == DType::kU8 || codes.dtype() == format.dtype;
      if (is_given) formats_.push_back(&format);
      if (IsFp8(format.dtype) && (is_given || IsFp8(codes.dtype()))) {
        other_formats_.push_back(&format);
      }
    }
    if (!other_formats_.empty()) {
      for (const CodeFormat& format : FnuzCodeFormats()) other_formats_.push_back(&format);
    }
    auto elements = std::make_shared<CodedElements>();
    elements->rows = reading.rows;
    elements->columns = reading.columns;
    if (transposed) {
      elements->values.resize(source_.size());
      constexpr int64_t kLine = 16;  // Elements of a cache line of the source.
      ParallelFor(context_, k, kLine, [&](int64_t begin, int64_t end) {
        for (int64_t column = 0; column < m; ++column) {
          for (int64_t row = begin; row < end; ++row) {
            elements->values[row * m + column] = source_[column * k + row];
          }
        }
      });
    } else {
      elements->values = source_;
    }
    reading.elements = std::move(elements);
    reading.codes = Unpacked(false, false, reading.rows, reading.columns);
    QG_RETURN_IF_ERROR(context_.CheckCancelled());
    if (auto cause = FindIn(reading, transposed)) return cause;
  }
  return std::optional<CodesCause>();
}

}  // namespace

bool IsOwnRule(std::string_view rule, ElementScaling scaling) {
  const OwnRule* const own = FindOwn(rule);
  return own != nullptr ? own->scaling == scaling
                        : rule.starts_with("two_level, ") && scaling == ElementScaling::kMultiply;
}

absl::StatusOr<std::optional<CodesCause>> FindCause(const ExplainCodesRequest& request,
                                                    const std::vector<float>& source,
                                                    const ExecutionContext& context) {
  return CauseFinder(request, source, context).Find();
}

}  // namespace quantgate
