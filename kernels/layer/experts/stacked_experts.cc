#include "kernels/layer/experts/stacked_experts.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
absl::Status UnstackExperts(const LayerSpec& layer, const std::string& field,
                            std::map<std::string, Tensor>& tensors, const std::string& word) {
  const auto found = tensors.find(word);
  if (!layer.traits().has_experts || found == tensors.end() || !found->second.has_value()) {
    return absl::OkStatus();
  }
  const Tensor stack = found->second;
  const std::string name = absl::StrCat(field, "[", word, "]");
  const auto experts = static_cast<int64_t>(layer.m_splits.size());
  for (int64_t expert = 0; expert < experts; ++expert) {
    const std::string own = absl::StrCat(word, ".", expert);
    if (!tensors.contains(own)) continue;
    return Refuse(name, TensorText(stack),
                  absl::StrCat(field, "[", own,
                               "] is given too: give one tensor for all experts, "
                               "or one for each"));
  }
  if (stack.rank() != 3 || stack.shape()[0] != experts) {
    return Refuse(name, TensorText(stack),
                  absl::StrCat("its shape must be [E][N][K], with E = ", experts,
                               ", the number of experts; or give one for each expert"));
  }
  tensors.erase(found);
  for (int64_t expert = 0; expert < experts; ++expert) {
    QG_ASSIGN_OR_RETURN(tensors[absl::StrCat(word, ".", expert)], ExpertOfStack(stack, expert));
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> ExpertOfStack(const Tensor& stack, int64_t expert) {
  QG_ASSIGN_OR_RETURN(const Tensor part, stack.RowRange(expert, 1));
  return part.Reinterpret(part.dtype(), {stack.shape()[1], stack.shape()[2]});
}

absl::StatusOr<Tensor> StackExperts(Engine& engine, const std::vector<Tensor>& experts,
                                    const Cancellation* cancellation) {
  QG_ASSIGN_OR_RETURN(const Tensor rows, engine.ConcatenateRows(experts, cancellation));
  const Shape& one = experts.front().shape();
  return rows.Reinterpret(rows.dtype(), {static_cast<int64_t>(experts.size()), one[0], one[1]});
}

}  // namespace quantgate
