#include "kernels/validate/diagnosis/layer_changes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "kernels/layer/layer.h"
#include "kernels/tensor/convert.h"
#include "kernels/tensor/transpose.h"
#include "kernels/validate/diagnosis/fit.h"

namespace quantgate {
namespace {

/// A tensor of these values and this dtype and shape.
absl::StatusOr<Tensor> TensorOf(const std::vector<float>& values, DType dtype, const Shape& shape) {
  QG_ASSIGN_OR_RETURN(const Tensor f32,
                      Tensor::FromBytes(DType::kF32, shape, std::as_bytes(std::span(values))));
  return CastTensor(f32, dtype, ExecutionContext());
}

/// `tensor` with its values changed by `change`.
template <typename Change>
absl::StatusOr<Tensor> Changed(const Tensor& tensor, Change change) {
  QG_ASSIGN_OR_RETURN(Values values, ValuesOf(tensor));
  change(values);
  return TensorOf(values.at, tensor.dtype(), tensor.shape());
}

/// The values that are left of a tensor that went through FP8 under one scale, max / amax, in f32.
absl::StatusOr<Tensor> ThroughFp8(const Tensor& tensor, DType dtype) {
  QG_ASSIGN_OR_RETURN(Values values, ValuesOf(tensor));
  float amax = 0;
  for (const float value : values.at) {
    if (std::isfinite(value)) amax = std::max(amax, std::abs(value));
  }
  const float scale = amax == 0 ? 1 : (dtype == DType::kF8E4M3 ? 448.0f : 57344.0f) / amax;
  for (float& value : values.at) value *= scale;
  QG_RETURN_IF_ERROR(RoundTo(dtype, values.at));
  for (float& value : values.at) value /= scale;
  return TensorOf(values.at, DType::kF32, tensor.shape());
}

struct NonFinitePlaces {
  std::vector<int64_t> rows, columns;
};
NonFinitePlaces NewNonFinite(const Values& expected, const Values& subject) {
  NonFinitePlaces places;
  std::set<int64_t> rows, columns;
  for (int64_t row = 0; row < subject.rows; ++row) {
    for (int64_t column = 0; column < subject.columns; ++column) {
      if (std::isfinite(subject(row, column)) || !std::isfinite(expected(row, column))) continue;
      rows.insert(row);
      columns.insert(column);
    }
  }
  places.rows.assign(rows.begin(), rows.end());
  places.columns.assign(columns.begin(), columns.end());
  return places;
}

class Proposer {
 public:
  Proposer(const LayerCase& of, const std::set<std::string>& failing)
      : of_(of), failing_(failing) {}

  void Add(std::string what, ChangeScope scope, std::string operand,
           std::function<absl::StatusOr<Tensor>()> tensor) {
    changes_.push_back({std::move(what), [=]() -> absl::StatusOr<LayerChange> {
                          LayerChange change{scope, {}, "", ""};
                          QG_ASSIGN_OR_RETURN(change.operands[operand], tensor());
                          return change;
                        }});
  }
  void Add(std::string what, LayerChange change) {
    changes_.push_back(
        {std::move(what),
         [change = std::move(change)]() -> absl::StatusOr<LayerChange> { return change; }});
  }

  void SayHowSure() { changes_.back().says_how_sure = true; }

  bool HasForwardFailed() const { return Failed("y"); }
  bool Failed(std::string_view word) const {
    return std::any_of(failing_.begin(), failing_.end(), [&](const std::string& name) {
      return ParameterName::Parse(name).word == word;
    });
  }
  /// Whether all that failed has one of these words.
  bool OnlyFailed(const std::set<std::string>& words) const {
    return std::all_of(failing_.begin(), failing_.end(), [&](const std::string& name) {
      return words.contains(ParameterName::Parse(name).word);
    });
  }
  bool OnlyWeightGradients() const { return OnlyFailed({"dw", "db", "main_grad"}); }
  const Tensor* Find(const std::string& operand) const {
    const auto found = of_.operands.find(operand);
    return found == of_.operands.end() ? nullptr : &found->second;
  }
  std::vector<ProposedChange> Take() { return std::move(changes_); }

 private:
  const LayerCase& of_;
  const std::set<std::string>& failing_;
  std::vector<ProposedChange> changes_;
};

/// NaN in the rows of x where y has them, or NaN or an infinity in one element of a weight whose
/// column y has them in.
absl::Status ProposeNonFinite(const LayerCase& of, Proposer& proposer) {
  if (!of.subject.contains("y") || !of.expected.contains("y")) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(const Values y, ValuesOf(of.subject.at("y")));
  QG_ASSIGN_OR_RETURN(const Values expected, ValuesOf(of.expected.at("y")));
  const NonFinitePlaces places = NewNonFinite(expected, y);
  if (places.rows.empty()) return absl::OkStatus();
  const auto single_column = [&](const std::string& output) -> absl::StatusOr<int64_t> {
    if (!of.subject.contains(output) || !of.expected.contains(output)) return -1;
    QG_ASSIGN_OR_RETURN(const Values found, ValuesOf(of.subject.at(output)));
    QG_ASSIGN_OR_RETURN(const Values was, ValuesOf(of.expected.at(output)));
    const NonFinitePlaces lines = NewNonFinite(was, found);
    return lines.columns.size() == 1 ? lines.columns[0] : -1;
  };
  // In y alone they may have come from anywhere behind the operands too.
  const bool is_seen_twice = !proposer.OnlyFailed({"y"});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const Tensor* x = proposer.Find("x");
  if (x != nullptr && static_cast<int64_t>(places.rows.size()) < y.rows) {
    QG_ASSIGN_OR_RETURN(const int64_t column, single_column("dw"));
    const std::string where =
        places.rows.size() == 1
            ? absl::StrCat("row ", places.rows[0],
                           column < 0 ? "" : absl::StrCat(", column ", column))
            : absl::StrCat(places.rows.size(), " rows, ", places.rows[0], " the first");
    for (const float value : {nan, infinity, -infinity}) {
      proposer.Add(absl::StrCat(is_seen_twice ? "x has " : "x may have ",
                                std::isnan(value) ? "a NaN" : "an infinity", " in ", where),
                   ChangeScope::kAll, "x", [=] {
                     return Changed(*x, [&](Values& values) {
                       for (const int64_t row : places.rows) {
                         values.at[size_t(row * values.columns + std::max<int64_t>(column, 0))] =
                             value;
                       }
                     });
                   });
      proposer.SayHowSure();
    }
  }
  const Tensor* weight = proposer.Find("weight");
  if (x == nullptr || weight == nullptr || places.columns.size() != 1) return absl::OkStatus();
  // An infinity in element (n, k) gives column n of y the signs of column k of x.
  QG_ASSIGN_OR_RETURN(const Values given, ValuesOf(*x));
  QG_ASSIGN_OR_RETURN(int64_t k, single_column("dx"));
  const int64_t n = places.columns[0];
  for (int64_t column = 0; column < given.columns && k < 0; ++column) {
    for (const bool is_positive : {true, false}) {
      bool agrees = true;
      for (int64_t row = 0; row < given.rows && agrees; ++row) {
        const float value = y(row, n);
        if (std::isinf(value))
          agrees = (value * given(row, column) > 0) == is_positive;
        else
          agrees = (given(row, column) > 0) != is_positive;
      }
      if (agrees) k = column;
    }
  }
  for (const float value : {infinity, -infinity, nan}) {
    proposer.Add(absl::StrCat(is_seen_twice ? "the weight has " : "the weight may have ",
                              std::isnan(value) ? "a NaN" : "an infinity", " in row ", n,
                              k < 0 ? "" : absl::StrCat(", column ", k)),
                 ChangeScope::kAll, "weight", [=] {
                   return Changed(*weight, [&](Values& values) {
                     values.at[size_t(n * values.columns + std::max<int64_t>(k, 0))] = value;
                   });
                 });
    proposer.SayHowSure();
  }
  return absl::OkStatus();
}

void ProposeTransposedWeights(const LayerCase& of, Proposer& proposer) {
  for (const auto& [name, tensor] : of.operands) {
    const bool is_square = tensor.rank() == 2 && tensor.shape()[0] == tensor.shape()[1];
    if (ParameterName::Parse(name).word != "weight" || !is_square) continue;
    const auto transposed = [tensor = tensor]() -> absl::StatusOr<Tensor> {
      return Transpose2d(tensor, ExecutionContext());
    };
    if (proposer.HasForwardFailed()) {
      proposer.Add(absl::StrCat("the weight is transposed (", name, ")"), ChangeScope::kAll, name,
                   transposed);
    } else if (proposer.OnlyFailed({"dx"})) {
      proposer.Add(absl::StrCat("the weight of dgrad is transposed (", name, ")"),
                   ChangeScope::kDgrad, name, transposed);
    }
  }
}

void ProposeBiases(const LayerCase& of, Proposer& proposer) {
  if (!proposer.HasForwardFailed()) return;
  for (const auto& [name, tensor] : of.operands) {
    if (ParameterName::Parse(name).word != "bias") continue;
    for (const float times : {0.0f, 2.0f}) {
      proposer.Add(
          absl::StrCat("the bias is ", times == 0 ? "missing" : "added twice", " (", name, ")"),
          ChangeScope::kAll, name, [tensor = tensor, times] {
            return Changed(tensor, [&](Values& values) {
              for (float& value : values.at) value *= times;
            });
          });
    }
  }
}

void ProposeRowOrder(const std::vector<int64_t>& row_order, Proposer& proposer) {
  const Tensor* x = proposer.Find("x");
  if (x != nullptr && !row_order.empty() && static_cast<int64_t>(row_order.size()) == x->rows()) {
    int64_t first = 0;
    while (first + 1 < x->rows() && row_order[size_t(first)] == first) ++first;
    proposer.Add(absl::StrCat("rows of x are permuted",
                              first == 0 ? "" : absl::StrCat(" from row ", first, " on")),
                 ChangeScope::kAll, "x", [x, row_order] {
                   return Changed(*x, [&](Values& values) {
                     const std::vector<float> given = values.at;
                     for (int64_t row = 0; row < values.rows; ++row) {
                       std::copy_n(given.begin() + row_order[size_t(row)] * values.columns,
                                   values.columns, values.at.begin() + row * values.columns);
                     }
                   });
                 });
  }
}

void ProposeMissingRows(Proposer& proposer) {
  const Tensor* grad_output = proposer.Find("grad_output");
  if (grad_output == nullptr || !proposer.OnlyWeightGradients()) return;
  const int64_t rows = grad_output->rows();
  for (int64_t missing = 1; missing < rows; missing = missing < 16 ? missing + 1 : 2 * missing) {
    proposer.Add(missing == 1
                     ? "the last row of the batch is missing from the weight's gradients"
                     : absl::StrCat("the last ", missing,
                                    " rows of the batch are missing from the weight's gradients"),
                 ChangeScope::kWgrad, "grad_output", [=] {
                   return Changed(*grad_output, [&](Values& values) {
                     std::fill(values.at.end() - missing * values.columns, values.at.end(), 0.0f);
                   });
                 });
  }
}

/// Tensors of the shape of an operand, in its place.
void ProposeRelated(const LayerCase& of, Proposer& proposer) {
  for (const NamedTensor& related : of.related) {
    for (const auto& [name, operand] : of.operands) {
      if (related.tensor.shape() != operand.shape()) continue;
      const std::string word = ParameterName::Parse(name).word;
      const auto add = [&](const std::string& what, ChangeScope scope) {
        proposer.Add(what, scope, name, [tensor = related.tensor] { return tensor; });
      };
      const std::string instead = absl::StrCat(related.name, " in place of ", name);
      if (proposer.HasForwardFailed()) {
        if (word != "grad_output") add(instead, ChangeScope::kAll);
      } else if (word == "grad_output") {
        add(absl::StrCat("the gradient of the output is ", instead), ChangeScope::kAll);
      } else if (word == "weight" && proposer.OnlyFailed({"dx"})) {
        add(absl::StrCat("dx is of another weight: ", instead), ChangeScope::kDgrad);
      } else if (word == "x" && proposer.OnlyFailed({"dw", "main_grad"})) {
        add(absl::StrCat("dw is of another input: ", instead), ChangeScope::kWgrad);
      }
    }
  }
}

void ProposeActivations(const LayerModel& model, Proposer& proposer) {
  for (const std::string& activation : model.Activations()) {
    if (proposer.HasForwardFailed()) {
      proposer.Add(absl::StrCat("another activation: ", activation),
                   LayerChange{ChangeScope::kAll, {}, activation, ""});
    } else {
      proposer.Add(absl::StrCat("backward has the slope of another activation: ", activation),
                   LayerChange{ChangeScope::kSlope, {}, activation, ""});
    }
  }
}

void ProposeEarlierScales(LayerModel& model, Proposer& proposer) {
  const std::vector<std::string> states = model.EarlierScales();
  const auto add = [&](const std::string& what, std::vector<std::string> of) {
    proposer.Add(what, LayerChange{ChangeScope::kAll, {}, "", "", std::move(of)});
  };
  for (const std::string& state : states) {
    add(absl::StrCat("the scale of ", state, " is that of the forward before"), {state});
  }
  if (states.size() > 1) {
    add(absl::StrCat("the scales of ", absl::StrJoin(states, ", "),
                     " are those of the forward before"),
        states);
  }
}

void ProposeQuantizedOperands(const LayerCase& of, Proposer& proposer) {
  if (!proposer.HasForwardFailed()) return;
  for (const auto& [name, tensor] : of.operands) {
    const std::string word = ParameterName::Parse(name).word;
    if (word != "x" && word != "weight") continue;
    for (const DType dtype : {DType::kF8E4M3, DType::kF8E5M2}) {
      proposer.Add(absl::StrCat("an operand was quantized: ", name, " to ",
                                std::string(DTypeName(dtype)), " under one scale"),
                   ChangeScope::kAll, name,
                   [tensor = tensor, dtype] { return ThroughFp8(tensor, dtype); });
    }
  }
}

}  // namespace

absl::StatusOr<std::vector<ProposedChange>> ProposeChanges(const LayerCase& of, LayerModel& model,
                                                           const std::set<std::string>& failing,
                                                           const std::vector<int64_t>& row_order) {
  Proposer proposer(of, failing);
  QG_RETURN_IF_ERROR(ProposeNonFinite(of, proposer));
  ProposeRowOrder(row_order, proposer);
  ProposeTransposedWeights(of, proposer);
  ProposeBiases(of, proposer);
  ProposeRelated(of, proposer);
  ProposeEarlierScales(model, proposer);
  ProposeActivations(model, proposer);
  for (const std::string& recipe : model.Recipes()) {
    proposer.Add(recipe, LayerChange{ChangeScope::kAll, {}, "", recipe});
  }
  ProposeMissingRows(proposer);
  ProposeQuantizedOperands(of, proposer);
  return proposer.Take();
}

}  // namespace quantgate
