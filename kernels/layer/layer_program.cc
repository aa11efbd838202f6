#include "kernels/layer/layer_program.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"

namespace quantgate {
namespace {

LayerParameter Weight(const std::string& prefix, const std::string& suffix) {
  return {absl::StrCat(prefix, "weight", suffix), ParameterKind::kWeight, false,
          absl::StrCat(prefix, "dw", suffix), absl::StrCat(prefix, "main_grad", suffix)};
}

LayerParameter Bias(const std::string& prefix, const std::string& suffix, bool is_optional) {
  return {absl::StrCat(prefix, "bias", suffix), ParameterKind::kBias, is_optional,
          absl::StrCat(prefix, "db", suffix), ""};
}

void AddNorm(const std::string& prefix, NormKind kind, std::vector<LayerParameter>& parameters) {
  parameters.push_back({prefix + "gamma", ParameterKind::kGamma, false, prefix + "dgamma", ""});
  if (kind != NormKind::kLayerNorm) return;
  parameters.push_back({prefix + "beta", ParameterKind::kBeta, true, prefix + "dbeta", ""});
}

void AddLinear(const std::string& prefix, const std::string& suffix,
               std::vector<LayerParameter>& parameters) {
  parameters.push_back(Weight(prefix, suffix));
  parameters.push_back(Bias(prefix, suffix, true));
}

void AddChain(const LayerSpec& spec, std::vector<LayerParameter>& parameters) {
  for (const OperationSpec& operation : spec.operations) {
    const std::string prefix = operation.name + ".";
    if (operation.kind == OperationKind::kBasicLinear) parameters.push_back(Weight(prefix, ""));
    if (operation.kind == OperationKind::kBias) parameters.push_back(Bias(prefix, "", false));
    if (operation.kind == OperationKind::kNorm) AddNorm(prefix, operation.norm.kind, parameters);
  }
}

/// Builds a program, one operation after the other.
class ProgramBuilder {
 public:
  using Has = std::function<bool(const std::string&)>;

  ProgramBuilder(const LayerSpec& spec, const Has& has, int first_unit)
      : spec_(spec), has_(has), next_unit_(first_unit) {
    program_.values.push_back({"x", "dx"});
  }

  /// The program of the kind's parts. `suffix`: ".0" for expert 0, empty without experts.
  LayerProgram Parts(const std::string& suffix);
  LayerProgram Chain();

 private:
  ProgramOperation& Add(OperationKind kind, const std::string& name) {
    ProgramOperation operation;
    operation.kind = kind;
    operation.name = name;
    operation.field = absl::StrCat("layer.", name);
    operation.input = static_cast<int>(program_.operations.size());
    program_.operations.push_back(std::move(operation));
    program_.values.push_back({});
    return program_.operations.back();
  }

  /// Names the value that the last operation gives, and the value's gradient.
  void Rename(const std::string& name, const std::string& gradient) {
    program_.values.back().name = name;
    program_.values.back().gradient = gradient;
  }

  void AddNorm(const std::string& prefix) {
    ProgramOperation& norm = Add(OperationKind::kNorm, prefix.empty() ? "norm" : NameOf(prefix));
    norm.norm = spec_.norm;
    norm.gamma = prefix + "gamma";
    if (has_(prefix + "beta")) norm.beta = prefix + "beta";
    const bool is_returned = spec_.traits().has_one_norm();
    if (is_returned) program_.norm_out = static_cast<int>(program_.values.size()) - 1;
  }

  void AddAttention(const std::string& prefix) {
    ProgramOperation& attention = Add(OperationKind::kAttention, NameOf(prefix));
    attention.field = "layer.attention";
    attention.attention = spec_.attention;
    attention.divides_heads = spec_.parallel_mode == ParallelMode::kColumn;
  }

  /// "norm1" of "norm1.".
  static std::string NameOf(const std::string& prefix) {
    return prefix.substr(0, prefix.size() - 1);
  }

  ProgramOperation& AddUnit(OperationKind kind, const std::string& name, const LinearNames& names) {
    ProgramOperation& operation = Add(kind, name);
    operation.names = names;
    operation.unit = next_unit_++;
    return operation;
  }

  /// A basic_linear and its bias, in its epilogue or behind it.
  void AddLinear(const std::string& prefix, const std::string& suffix, ParallelMode mode) {
    const LinearNames names(prefix, suffix);
    ProgramOperation& linear = AddUnit(OperationKind::kBasicLinear, names.weight, names);
    linear.weight = names.weight;
    linear.parallel_mode = mode;
    if (!has_(names.bias)) return;
    if (spec_.fused) {
      program_.operations.back().bias = names.bias;
      return;
    }
    Rename(names.Stage("product"), names.grad_output);
    Add(OperationKind::kBias, names.bias).bias = names.bias;
  }

  void AddChained(const OperationSpec& spec, const std::string& field);
  bool JoinsBias(const OperationSpec& bias) const;
  LayerProgram Finish(const std::string& suffix);

  const LayerSpec& spec_;
  const Has& has_;
  int next_unit_;
  LayerProgram program_;
  /// Numbers of values: by operation of a chain, by LayerPart::output.
  std::map<std::string, int> values_of_ = {{"x", 0}};
};

/// Whether a bias joins the GEMM before it, whose own output nothing else reads.
bool ProgramBuilder::JoinsBias(const OperationSpec& bias) const {
  if (!spec_.fused || program_.operations.empty()) return false;
  const ProgramOperation& last = program_.operations.back();
  if (last.kind != OperationKind::kBasicLinear || !last.bias.empty()) return false;
  for (const OperationSpec& other : spec_.operations) {
    if (other.kind == OperationKind::kAdd && other.addend == last.name) return false;
  }
  return true;
}

void ProgramBuilder::AddChained(const OperationSpec& spec, const std::string& field) {
  const std::string prefix = spec.name + ".";
  if (spec.kind == OperationKind::kBias && JoinsBias(spec)) {
    ProgramOperation& linear = program_.operations.back();
    linear.bias = prefix + "bias";
    linear.names.bias = linear.bias;
    linear.names.db = prefix + "db";
  } else {
    const bool is_unit =
        spec.kind == OperationKind::kBasicLinear || spec.kind == OperationKind::kQuantize;
    ProgramOperation& operation = is_unit ? AddUnit(spec.kind, spec.name, LinearNames(prefix, ""))
                                          : Add(spec.kind, spec.name);
    operation.field = field;
    if (spec.kind == OperationKind::kBasicLinear) operation.weight = prefix + "weight";
    if (spec.kind == OperationKind::kBias) operation.bias = prefix + "bias";
    if (spec.kind == OperationKind::kNorm) {
      operation.gamma = prefix + "gamma";
      const bool has_beta = spec.norm.kind == NormKind::kLayerNorm && has_(prefix + "beta");
      if (has_beta) operation.beta = prefix + "beta";
    }
    if (spec.kind == OperationKind::kAdd) {
      operation.addend = values_of_.at(spec.addend);
    }
    operation.norm = spec.norm;
    operation.activation = spec.activation;
    operation.factor = spec.factor;
    operation.quantizes_forward = spec.quantize_forward;
    operation.quantizes_backward = spec.quantize_backward;
    operation.parallel_mode = spec.parallel_mode;
  }
  Rename(prefix + "y", prefix + "grad_output");
  values_of_[spec.name] = static_cast<int>(program_.values.size()) - 1;
}

LayerProgram ProgramBuilder::Parts(const std::string& suffix) {
  const std::span<const LayerPart> parts = spec_.traits().parts;
  ParallelMode mode = spec_.parallel_mode;
  for (const LayerPart& part : parts) {
    const std::string prefix(part.prefix);
    if (part.operation == OperationKind::kNorm) AddNorm(prefix);
    if (part.operation == OperationKind::kAttention) AddAttention(prefix);
    if (part.operation == OperationKind::kAdd) {
      Add(OperationKind::kAdd, NameOf(prefix)).addend = values_of_.at(std::string(part.addend));
    }
    if (part.operation == OperationKind::kActivation) {
      Add(OperationKind::kActivation, "activation").activation = spec_.activation;
    }
    if (part.operation == OperationKind::kBasicLinear) {
      AddLinear(prefix, suffix, mode);
      if (mode != ParallelMode::kNone) {
        mode = mode == ParallelMode::kColumn ? ParallelMode::kRow : ParallelMode::kColumn;
      }
    }
    if (&part == &parts.back()) break;
    Rename(std::string(part.output), std::string(part.gradient));
    values_of_[std::string(part.output)] = static_cast<int>(program_.values.size()) - 1;
  }
  if (!suffix.empty()) program_.values[0] = {"x" + suffix, "dx" + suffix};
  return Finish(suffix);
}

LayerProgram ProgramBuilder::Chain() {
  for (size_t i = 0; i < spec_.operations.size(); ++i) {
    AddChained(spec_.operations[i], absl::StrCat("layer.operations[", i, "]"));
  }
  return Finish("");
}

LayerProgram ProgramBuilder::Finish(const std::string& suffix) {
  Rename("y" + suffix, "grad_output" + suffix);
  std::vector<ProgramValue>& values = program_.values;
  for (const ProgramOperation& operation : program_.operations) {
    ++values[operation.input].consumers;
    if (operation.addend >= 0) ++values[operation.addend].consumers;
  }
  for (size_t i = 0; i < program_.operations.size(); ++i) {
    ProgramOperation& operation = program_.operations[i];
    const ProgramValue& input = values[operation.input];
    const ProgramValue& output = values[program_.output_of(static_cast<int>(i))];
    operation.names.x = input.name;
    operation.names.y = output.name;
    operation.names.grad_output = output.gradient;
    if (input.consumers == 1) operation.names.dx = input.gradient;
  }
  return std::move(program_);
}

}  // namespace

std::vector<LayerParameter> ParametersOf(const LayerSpec& spec) {
  const LayerTraits& traits = spec.traits();
  std::vector<LayerParameter> parameters;
  if (traits.has_operations) AddChain(spec, parameters);
  const auto add_linears = [&](const std::string& suffix) {
    for (const LayerPart& part : traits.parts) {
      if (part.operation != OperationKind::kBasicLinear) continue;
      AddLinear(std::string(part.prefix), suffix, parameters);
    }
  };
  if (!traits.has_experts) add_linears("");
  for (size_t i = 0; traits.has_experts && i < spec.m_splits.size(); ++i) {
    add_linears(absl::StrCat(".", i));
  }
  for (const LayerPart& part : traits.parts) {
    if (part.operation != OperationKind::kNorm) continue;
    AddNorm(std::string(part.prefix), spec.norm.kind, parameters);
  }
  return parameters;
}

std::vector<LayerProgram> ProgramsOf(const LayerSpec& spec,
                                     const std::function<bool(const std::string&)>& has) {
  const LayerTraits& traits = spec.traits();
  if (traits.has_operations) return {ProgramBuilder(spec, has, 0).Chain()};
  if (!traits.has_experts) return {ProgramBuilder(spec, has, 0).Parts("")};
  const auto is_unit = [](const LayerPart& part) {
    return part.operation == OperationKind::kBasicLinear;
  };
  const auto units = std::count_if(traits.parts.begin(), traits.parts.end(), is_unit);
  std::vector<LayerProgram> programs;
  for (size_t i = 0; i < spec.m_splits.size(); ++i) {
    ProgramBuilder builder(spec, has, static_cast<int>(i) * static_cast<int>(units));
    programs.push_back(builder.Parts(absl::StrCat(".", i)));
  }
  return programs;
}

std::vector<LayerDelayedState> DelayedStatesOf(const LayerSpec& spec, const Recipe& recipe) {
  std::vector<LayerDelayedState> states;
  if (!recipe.is_delayed()) return states;
  const auto no_biases = [](const std::string&) { return false; };
  for (const LayerProgram& program : ProgramsOf(spec, no_biases)) {
    for (size_t i = 0; i < program.operations.size(); ++i) {
      const ProgramOperation& operation = program.operations[i];
      if (operation.unit < 0) continue;
      const bool is_linear = operation.kind == OperationKind::kBasicLinear;
      // A quantize operation follows the module that reads what it makes.
      const auto add_if = [&](bool has, TensorRole role, int reader) {
        if (!has) return;
        const std::string& prefix =
            program.operations[is_linear || reader < 0 ? i : static_cast<size_t>(reader)]
                .names.prefix;
        const Recipe of_module = RecipeOfModule(spec, recipe, prefix);
        const Quantizer& quantizer = of_module.QuantizerFor(role);
        for (const Usage usage : quantizer.delayed_directions()) {
          states.push_back(
              {operation.names.StateOf(role, usage), role, quantizer.spec(usage).element});
        }
      };
      const int after = LinearAfter(program.operations, program.output_of(static_cast<int>(i)));
      const int behind = LinearBehind(program.operations, program.values, operation.input);
      add_if(is_linear || operation.quantizes_forward, TensorRole::kInput, after);
      add_if(is_linear, TensorRole::kWeight, -1);
      add_if(is_linear || operation.quantizes_backward, TensorRole::kGradOutput, behind);
    }
  }
  return states;
}

}  // namespace quantgate
