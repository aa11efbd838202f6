// Linear: y = x w^T + bias, forward and backward under a recipe (quantizers.md sections 9
// and 10.3, 10.4). x [..., K], weight [N][K], bias [N], grad_output [..., N]; M is the product of
// x's leading dims.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/engine/engine.h"
#include "kernels/quantize/recipe.h"
#include "kernels/tensor/tensor_file.h"

namespace quantgate {

struct RequiresGrad {
  bool x = true;
  bool weight = true;
  bool bias = true;  ///< Ignored without a bias.
};

struct LinearRequest {
  Tensor x;            ///< f32, bf16 or f16.
  Tensor weight;       ///< High precision; may differ in dtype from x.
  Tensor bias;         ///< Absent: no bias.
  Tensor grad_output;  ///< Absent: forward only.
  Tensor main_grad;    ///< f32 [N][K]; wgrad accumulates into a copy of it, returned as "main_grad"
                       ///< in place of "dw".
  RequiresGrad requires_grad;
};

/// Checks a request against a recipe and says what is wrong before anything is computed:
/// INVALID_ARGUMENT naming field, value and rule. With a quantized recipe: K % 16 == 0, M % 8 == 0,
/// N % 8 == 0, and what the FP8 backward GEMMs need.
absl::Status CheckLinear(const LinearRequest& request, const Recipe& recipe);

/// A GEMM that the layer did, with its operands, so that it can be done again under another
/// arithmetic.
struct GemmRecord {
  GemmRole role = GemmRole::kFprop;
  std::string output;  ///< "y", "dx", "dw" or "main_grad".
  GemmDesc desc;
  std::string a_source;  ///< What operand a was: "x quantized rowwise", "grad_output", "weight
                         ///< dequantized".
  std::string b_source;
  GemmResult result;
};

/// One operand kept between forward and backward; equal fingerprints show that nobody wrote to it.
struct SavedOperand {
  std::string name;     ///< "x", "weight".
  std::string content;  ///< "f8_e4m3 columnwise codes", "bf16 as given", "f8_e4m3 rowwise codes".
  Fingerprint at_save;
  Fingerprint at_use;
  bool used = false;  ///< False: saved by the mode's rule but read by no GEMM.
};

/// One quantization that the layer did.
struct QuantizationRecord {
  TensorRole role = TensorRole::kInput;
  Usages usages;
  std::string quantizer;  ///< QuantizerText: the rule.
  float amax = 0;
  float scale = 0;
  float scale_inv = 0;
  QuantizationCounts counts;
};

struct StageTime {
  std::string stage;  ///< "quantize x", "fprop", "bias gradient", ...
  double seconds = 0;
};

struct LinearResult {
  std::vector<NamedTensor> outputs;  ///< "y"; "dx", "dw" (or "main_grad"), "db" as asked for.
  std::vector<GemmRecord> gemms;
  std::vector<SavedOperand> saved;
  std::vector<QuantizationRecord> quantizations;
  std::vector<StageTime> stages;
  std::vector<std::string>
      notes;  ///< "backward_override has no effect without a quantized recipe".
};

/// Runs forward and, with a grad_output, backward. A numerical oddity is a result, never an error.
absl::StatusOr<LinearResult> RunLinear(Engine& engine, const LinearRequest& request,
                                       const Recipe& recipe, const Arithmetic& arithmetic,
                                       const Cancellation* cancellation);

}  // namespace quantgate
