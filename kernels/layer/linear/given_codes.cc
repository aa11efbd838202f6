#include "kernels/layer/linear/given_codes.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/engine/engine.h"
#include "kernels/layer/layer_faults.h"
#include "kernels/layer/linear/linear_operands.h"

namespace quantgate {
namespace {

/// What codes and a rule must have in common so that a GEMM reads the codes as it would read the
/// rule's own. How the scales were chosen is not part of it.
struct CodesKind {
  QuantizerFormat format;
  DType element;
  int block_dim;
  bool hadamard;
  bool row_scaled;
  friend bool operator==(const CodesKind&, const CodesKind&) = default;
};

CodesKind KindOfCopy(const QuantizedCopy& copy) {
  return {copy.format, copy.element, copy.block_dim, copy.hadamard, copy.is_row_scaled()};
}

/// The kind that a rule makes of one direction of a tensor with so many rows (columnwise: columns).
CodesKind KindOfRule(const QuantizerSpec& spec, Usage usage, int64_t lines) {
  // One amax for one line is an amax for the tensor.
  return {spec.format, spec.element, spec.traits().has_blocks() ? spec.block_dim : 1,
          usage == Usage::kColumnwise && spec.hadamard, spec.row_scaled && lines != 1};
}

std::string KindText(const CodesKind& kind) {
  const ScalingTraits& traits = TraitsOf(kind.format);
  if (traits.scales == ScaleKind::kNone) return std::string(traits.name);
  return absl::StrCat(std::string(traits.name), " (", std::string(DTypeName(kind.element)),
                      traits.has_blocks() ? absl::StrCat(", block_dim ", kind.block_dim) : "",
                      kind.hadamard ? ", hadamard" : "", kind.row_scaled ? ", row_scaled" : "",
                      ")");
}

/// The directions in which the unit's GEMMs read the operand under no override, or the one that an
/// override reads.
Usages DirectionsRead(const LinearUnit& unit, TensorRole role) {
  const LinearDataflow& flow = unit.flow;
  const bool has_override = flow.backward_override != BackwardOverride::kNone;
  if (role == TensorRole::kInput) return {true, flow.needs_dw && !has_override};
  if (role == TensorRole::kWeight) return {true, flow.needs_dx && !has_override};
  return {flow.needs_dx && !has_override, flow.needs_dw && !has_override};
}

GemmRole ReaderOf(TensorRole role, Usage usage) {
  if (usage == Usage::kColumnwise) {
    return role == TensorRole::kWeight ? GemmRole::kDgrad : GemmRole::kWgrad;
  }
  return role == TensorRole::kGradOutput ? GemmRole::kDgrad : GemmRole::kFprop;
}

/// The number of scale lines of a direction: rows of the source, or columns.
int64_t LinesOf(const QuantizedTensor& codes, Usage usage) {
  if (usage == Usage::kColumnwise) return codes.shape.back();
  int64_t rows = 1;
  for (size_t dim = 0; dim + 1 < codes.shape.size(); ++dim) rows *= codes.shape[dim];
  return rows;
}

/// Checks codes against the recipe's rules for their role.
class RoleCheck {
 public:
  RoleCheck(const std::string& field, TensorRole role, const QuantizedTensor& codes,
            const Recipe& recipe)
      : field_(field),
        role_(role),
        codes_(codes),
        recipe_(recipe),
        quantizer_(recipe.QuantizerFor(role)) {}

  absl::Status RefuseGiven(const std::string& rule) const {
    return Refuse(field_, absl::StrCat("given as ", CodesText(codes_)), rule);
  }

  /// The directions that are read, and those that they would be derived from.
  absl::Status CheckRead(Usages reads) const {
    if (reads.rowwise) QG_RETURN_IF_ERROR(CheckKind(Usage::kRowwise));
    if (reads.columnwise) QG_RETURN_IF_ERROR(CheckKind(Usage::kColumnwise));
    return CheckDerived(reads);
  }

  /// GEMMs read its values, so that any direction will do, in the format of the role.
  absl::Status CheckDequantized() const {
    for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
      if (codes_.copy(usage).has_value()) QG_RETURN_IF_ERROR(CheckKind(usage));
    }
    return absl::OkStatus();
  }

  /// Of formats with a scale of the whole tensor, which amax and e4m3_max give: whether the codes
  /// that are there have the one of the role's rule, in the directions that are read.
  absl::Status CheckTensorScale(Usages reads) const {
    for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
      if (usage == Usage::kRowwise ? !reads.rowwise : !reads.columnwise) continue;
      // What is missing is derived from the rowwise codes, or else columnwise ones.
      const Usage held =
          codes_.copy(usage).has_value() || !codes_.rowwise.has_value() ? usage : Usage::kRowwise;
      const std::optional<QuantizedCopy>& copy = codes_.copy(held);
      if (!copy.has_value() || TraitsOf(copy->format).scales != ScaleKind::kTwoLevel) continue;
      const QuantizerSpec& spec = quantizer_.spec(usage);
      const bool has_scale = HasTensorScale(spec.scale_rule);
      const std::string recipe = absl::StrCat("recipe ", recipe_.ShortText(), " gives ",
                                              std::string(TensorRoleName(role_)));
      if (copy->amax.has_value() != has_scale) {
        return Refuse(
            field_,
            absl::StrCat(has_scale ? "without" : "with", " amax_", std::string(UsageName(held))),
            recipe + (has_scale ? " a tensor scale, which is of the amax"
                                : " no tensor scale, which an amax would be of"));
      }
      if (has_scale && copy->e4m3_max != spec.e4m3_max) {
        return Refuse(field_, absl::StrCat("with e4m3_max ", copy->e4m3_max),
                      absl::StrCat(recipe, " an e4m3_max of ", spec.e4m3_max));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status CheckKind(Usage usage) const {
    const QuantizerSpec& spec = quantizer_.spec(usage);
    const std::string reads =
        absl::StrCat("recipe ", recipe_.ShortText(), " reads ", std::string(TensorRoleName(role_)),
                     " ", std::string(UsageName(usage)), " ");
    if (!spec.is_quantized()) return RefuseGiven(reads + "in high precision");
    const std::optional<QuantizedCopy>& copy =
        codes_.copy(usage).has_value() ? codes_.copy(usage) : codes_.rowwise;
    if (!copy.has_value()) return absl::OkStatus();
    const CodesKind wanted = KindOfRule(spec, usage, LinesOf(codes_, usage));
    if (KindOfCopy(*copy) == wanted) return absl::OkStatus();
    return RefuseGiven(absl::StrCat(reads, "as ", KindText(wanted),
                                    ", and what is given as codes is not quantized again"));
  }

  /// Refuses a direction that is read, missing and not to be derived.
  absl::Status CheckDerived(Usages reads) const {
    QuantizedTensor codes = codes_;
    codes.is_hybrid = !quantizer_.has_one_rule();
    const Usages held = codes.usages();
    const absl::Status status = CheckUsages(codes, Union(held, reads));
    if (status.ok()) return status;
    const Usage missing = reads.rowwise && !held.rowwise ? Usage::kRowwise : Usage::kColumnwise;
    const std::optional<Refusal> why = RefusalOf(status);
    return Refuse(field_, absl::StrCat("without ", std::string(UsageName(missing)), " codes"),
                  absl::StrCat(std::string(GemmRoleName(ReaderOf(role_, missing))), " reads them; ",
                               why.has_value() ? why->rule : std::string(status.message())));
  }

  const std::string& field_;
  const TensorRole role_;
  const QuantizedTensor& codes_;
  const Recipe& recipe_;
  const Quantizer& quantizer_;
};

/// Under high_precision: the GEMM that would read the original of the operand; null if none does.
const char* ReaderOfOriginal(const LinearDataflow& flow, TensorRole role) {
  if (flow.needs_dx && role != TensorRole::kInput) return "dgrad";
  return flow.needs_dw && role != TensorRole::kWeight ? "wgrad" : nullptr;
}

/// Gives the codes of a tensor with leading dims, [B][M][K], the matrix [B M][K] that GEMMs read.
/// Columnwise codes and block scales have it already.
absl::Status Flatten(QuantizedTensor& codes) {
  if (codes.shape.size() == 2) return absl::OkStatus();
  codes.shape = {LinesOf(codes, Usage::kRowwise), codes.shape.back()};
  if (!codes.rowwise.has_value()) return absl::OkStatus();
  Tensor& data = codes.rowwise->data;
  QG_ASSIGN_OR_RETURN(data, data.Reinterpret(data.dtype(), {codes.shape[0], data.columns()}));
  return absl::OkStatus();
}

}  // namespace

std::string CodesText(const QuantizedTensor& codes) {
  if (!codes.columnwise.has_value()) {
    return codes.rowwise.has_value() ? KindText(KindOfCopy(*codes.rowwise)) : "no codes";
  }
  const CodesKind columnwise = KindOfCopy(*codes.columnwise);
  if (!codes.rowwise.has_value() || KindOfCopy(*codes.rowwise) == columnwise) {
    return KindText(columnwise);
  }
  return absl::StrCat("rowwise ", KindText(KindOfCopy(*codes.rowwise)), ", columnwise ",
                      KindText(columnwise));
}

absl::Status CheckGivenCodes(const std::string& field, TensorRole role,
                             const QuantizedTensor& codes, const LinearUnit& unit) {
  const LinearDataflow& flow = unit.flow;
  const RoleCheck check(field, role, codes, *unit.recipe);
  if (flow.is_calibration) {
    return check.RefuseGiven("a calibration reads it in high precision");
  }
  if (flow.backward_override == BackwardOverride::kHighPrecision) {
    const char* const reader = ReaderOfOriginal(flow, role);
    if (reader != nullptr) {
      return check.RefuseGiven(absl::StrCat("under backward_override=high_precision ", reader,
                                            " reads the original, which codes do not have"));
    }
  }
  if (role == TensorRole::kGradOutput && flow.backward_override == BackwardOverride::kDequantized) {
    QG_RETURN_IF_ERROR(check.CheckDequantized());
    return check.CheckTensorScale(codes.usages());
  }
  const Usages reads = DirectionsRead(unit, role);
  QG_RETURN_IF_ERROR(check.CheckRead(reads));
  return check.CheckTensorScale(reads);
}

absl::Status CheckCodesOfRole(const std::string& field, TensorRole role,
                              const QuantizedTensor& codes, const Recipe& recipe, Usages reads) {
  const RoleCheck check(field, role, codes, recipe);
  QG_RETURN_IF_ERROR(check.CheckRead(reads));
  return check.CheckTensorScale(reads);
}

std::string DerivedNote(const std::string& name, Usages held) {
  return absl::StrCat(name, held.rowwise ? ": columnwise codes are derived from the rowwise ones"
                                         : ": rowwise codes are derived from the columnwise ones");
}

absl::StatusOr<QuantizedTensor> GivenInUsages(StepRecorder& recorder, const LinearUnit& unit,
                                              TensorRole role, QuantizedTensor codes, Usages usages,
                                              LayerState& state) {
  const Usages held = codes.usages();
  QG_RETURN_IF_ERROR(Flatten(codes));
  if (Covers(held, usages)) return OnlyUsages(std::move(codes), usages);
  const std::string& name = role == TensorRole::kInput ? unit.names.x : unit.names.grad_output;
  codes.is_hybrid = !unit.recipe->QuantizerFor(role).has_one_rule();
  const bool keeps_derived =
      recorder.faults().Has(kFaultDerivedCodesKept) && state.seeded_memory != nullptr;
  if (keeps_derived) {
    const auto earlier = state.seeded_memory->codes.find(name);
    if (earlier != state.seeded_memory->codes.end()) {
      codes.columnwise = earlier->second.columnwise;
      return OnlyUsages(std::move(codes), usages);
    }
  }
  QG_RETURN_IF_ERROR(recorder.Timed(
      {StageKind::kQuantize,
       unit.names.Stage(absl::StrCat("derive codes of ", std::string(TensorRoleName(role))))},
      [&] {
        return recorder.engine().UpdateUsages(codes, Union(held, usages), recorder.cancellation());
      }));
  recorder.AddNote(DerivedNote(name, held));
  if (keeps_derived) state.seeded_memory->codes[name] = codes;
  return OnlyUsages(std::move(codes), usages);
}

}  // namespace quantgate
