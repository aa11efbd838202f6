// Experts' weights that are given as one tensor, "weight" [E][N][K], in place of "weight.0", ...
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"
#include "kernels/layer/layer.h"

namespace quantgate {

/// Puts "weight.0", "weight.1", ... in the place of a "weight" of a grouped_linear: [N][K] each, in
/// the same memory. Changes nothing where there is none, or for another layer. `field` is
/// "parameters" or "main_grads". INVALID_ARGUMENT naming it: its shape is not [E][N][K] with one
/// entry for each expert, or weights of experts are given beside it. `word`: "main_grad" for main
/// gradients that have names of their own.
absl::Status UnstackExperts(const LayerSpec& layer, const std::string& field,
                            std::map<std::string, Tensor>& tensors,
                            const std::string& word = "weight");

/// One expert's part [N][K] of [E][N][K], in the same memory.
absl::StatusOr<Tensor> ExpertOfStack(const Tensor& stack, int64_t expert);

/// The inverse: [E][N][K] of the experts' [N][K], in order.
absl::StatusOr<Tensor> StackExperts(Engine& engine, const std::vector<Tensor>& experts,
                                    const Cancellation* cancellation);

}  // namespace quantgate
