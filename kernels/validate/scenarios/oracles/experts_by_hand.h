// A grouped_linear of four experts, and the same by hand with each expert as a linear layer of its
// own. Training sessions on ranks are compared with it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/validate/scenarios/oracles/expected_copy.h"
#include "kernels/validate/scenarios/ranks/parallel_subject.h"
#include "kernels/validate/scenarios/ranks/rank_session_subject.h"

namespace quantgate {

inline constexpr int64_t kExpertIn = 64, kExpertOut = 32;
inline constexpr int64_t kDividedColumns = 64;  ///< A whole block of 32 on each of two ranks.
inline constexpr size_t kExpertCount = 4;

using RowsOfExperts = std::vector<int64_t>;
/// Rows of each expert, where there is one copy of the experts.
inline const RowsOfExperts& FewRows() {
  static const auto& rows = *new RowsOfExperts{64, 0, 32, 96};
  return rows;
}
/// Rows of each expert: whole blocks of 32 on each of four copies.
inline const RowsOfExperts& RowsOfCopies() {
  static const auto& rows = *new RowsOfExperts{128, 0, 256, 128};
  return rows;
}
/// Rows of each expert: whole blocks of 32 on each of two copies.
inline const RowsOfExperts& RowsOfTwoCopies() {
  static const auto& rows = *new RowsOfExperts{64, 0, 128, 64};
  return rows;
}

inline std::string WeightName(size_t expert) { return absl::StrCat("fc.weight.", expert); }
inline std::string BiasName(size_t expert) { return absl::StrCat("fc.bias.", expert); }

inline SessionSpec ExpertSpec(const Recipe& recipe, WeightStorage weights,
                              const RowsOfExperts& rows) {
  SessionLayer layer;
  layer.name = "fc";
  layer.spec.kind = LayerKind::kGroupedLinear;
  layer.spec.m_splits = rows;
  SessionSpec spec{.layers = {layer}, .recipe = recipe};
  spec.weights = weights;
  spec.masters = Masters::kF32;
  spec.optimizer.kind = OptimizerSpec::Kind::kSgd;
  spec.optimizer.sgd.learning_rate = 0.25f;
  spec.seed = 5;
  return spec;
}

/// The spec on `copies` copies of `ranks` ranks that divide the experts.
inline SessionSpec OnExpertRanks(SessionSpec spec, int ranks, int copies = 1) {
  if (ranks * copies == 1) return spec;
  spec.parallel.emplace();
  spec.parallel->tensor_parallel = 1;
  spec.parallel->expert_parallel = ranks;
  spec.parallel->data_parallel = copies;
  return spec;
}

inline absl::StatusOr<std::map<std::string, Tensor>> MakeExperts(ScenarioContext& context,
                                                                 int64_t outputs = kExpertOut) {
  std::map<std::string, Tensor> weights;
  for (size_t expert = 0; expert < kExpertCount; ++expert) {
    QG_ASSIGN_OR_RETURN(weights[WeightName(expert)],
                        context.Generate(Distribution::kNormal, 300 + expert, DType::kBF16,
                                         {outputs, kExpertIn}, 0.125f));
  }
  return weights;
}

/// Adds a bias of `outputs` elements to every expert.
inline absl::Status AddBiases(ScenarioContext& context, int64_t outputs,
                              std::map<std::string, Tensor>& parameters) {
  for (size_t expert = 0; expert < kExpertCount; ++expert) {
    QG_ASSIGN_OR_RETURN(
        parameters[BiasName(expert)],
        context.Generate(Distribution::kNormal, 320 + expert, DType::kBF16, {outputs}, 0.125f));
  }
  return absl::OkStatus();
}

/// Every expert on its own rows, as copies of one linear layer (CopiesByHand) or as copies of its
/// parts (PlacesByHand). An expert without rows does nothing and has zero gradients.
template <typename LinearByHand = CopiesByHand>
class ExpertsByHand {
 public:
  ExpertsByHand(Engine& reference, const SessionSpec& spec,
                const std::map<std::string, Tensor>& parameters, int copies = 1)
      : reference_(reference), rows_(spec.layers[0].spec.m_splits) {
    // Each expert draws the random numbers of its place among all experts.
    for (size_t expert = 0; expert < kExpertCount; ++expert) {
      SessionSpec alone = spec;
      alone.layers[0].spec = LayerSpec();
      alone.layers[0].spec.parallel_mode = spec.layers[0].spec.parallel_mode;
      std::map<std::string, Tensor> own = {{"fc.weight", parameters.at(WeightName(expert))}};
      gradient_shapes_["fc.dw"] = own.at("fc.weight").shape();
      if (const auto bias = parameters.find(BiasName(expert)); bias != parameters.end()) {
        own["fc.bias"] = bias->second;
        gradient_shapes_["fc.db"] = bias->second.shape();
      }
      experts_.emplace_back(reference, alone, own, copies);
      experts_.back().DrawAsOneOf(static_cast<uint32_t>(expert), kExpertCount);
    }
  }

  void ResumeAs(int copies) {
    for (LinearByHand& expert : experts_) expert.ResumeAs(copies);
  }
  void ShareAmaxes() {
    for (LinearByHand& expert : experts_) expert.ShareAmaxes();
  }

  absl::StatusOr<NamedOutputs> Forward(const ForwardStep& step) {
    std::vector<Tensor> rows;
    for (size_t expert = 0, begin = 0; expert < experts_.size(); ++expert) {
      QG_ASSIGN_OR_RETURN(const Tensor x, RowsOf(step.x, expert, begin));
      if (x.rows() == 0) continue;
      ForwardStep own = step;
      own.x = x;
      QG_ASSIGN_OR_RETURN(const NamedOutputs outputs, experts_[expert].Forward(own));
      rows.push_back(outputs.at("y"));
    }
    return Joined("y", rows);
  }

  absl::StatusOr<NamedOutputs> Backward(const BackwardStep& step) {
    std::vector<Tensor> rows;
    NamedOutputs gradients;
    for (size_t expert = 0, begin = 0; expert < experts_.size(); ++expert) {
      QG_ASSIGN_OR_RETURN(const Tensor dy, RowsOf(step.grad_output, expert, begin));
      NamedOutputs outputs;
      if (dy.rows() > 0) {
        QG_ASSIGN_OR_RETURN(outputs, experts_[expert].Backward({step.microbatch, dy}));
        rows.push_back(outputs.at("dx"));
      }
      for (const auto& [name, shape] : gradient_shapes_) {
        Tensor& gradient = gradients[absl::StrCat(name, ".", expert)];
        if (dy.rows() > 0) {
          gradient = outputs.at(name);
          continue;
        }
        QG_ASSIGN_OR_RETURN(gradient, Tensor::Allocate(DType::kBF16, shape));
        for (int64_t i = 0; i < gradient.element_count(); ++i) SetValue(gradient, i, 0.0f);
      }
    }
    QG_ASSIGN_OR_RETURN(NamedOutputs outputs, Joined("dx", rows));
    outputs.merge(gradients);
    return outputs;
  }

  absl::Status Optimize() {
    for (LinearByHand& expert : experts_) QG_RETURN_IF_ERROR(expert.Optimize());
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<Tensor> RowsOf(const Tensor& batch, size_t expert, size_t& begin) const {
    const int64_t count = rows_[expert];
    const auto first = static_cast<int64_t>(begin);
    begin += static_cast<size_t>(count);
    return batch.RowRange(first, count);
  }
  absl::StatusOr<NamedOutputs> Joined(const std::string& name, const std::vector<Tensor>& rows) {
    QG_ASSIGN_OR_RETURN(const Tensor joined, reference_.ConcatenateRows(rows, nullptr));
    return NamedOutputs{{name, joined}};
  }

  Engine& reference_;
  const RowsOfExperts rows_;
  std::map<std::string, Shape> gradient_shapes_;  ///< "fc.dw", "fc.db".
  std::vector<LinearByHand> experts_;
};

}  // namespace quantgate
