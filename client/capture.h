// Captures of training steps, which quantgate.capture of the Python package writes, as the commands
// and the package read them. docs/capture.md section 4 describes the files.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/tensor/files/tensor_file.h"

namespace quantgate {

/// A tensor of a captured call, as the training step had it.
struct CapturedTensor {
  std::string dtype;  ///< "bf16".
  Shape shape;        ///< Of the whole tensor, of which the file may have some rows.
  Shape strides;      ///< In elements.
  /// The rows that the file has, all dims but the last counted as one; empty: every row.
  std::vector<int64_t> sampled_rows;
};

/// One call of one module: its operands, and what forward and backward made of them.
struct CapturedCall {
  std::string file;    ///< Path of its tensors within the capture.
  std::string module;  ///< Path in the model: "blocks.0.fc1"; empty: the model itself.
  std::string class_name;
  std::string kind;  ///< Kind of layer, as Layer.kind; empty where none is known.
  int rank = 0;
  int64_t step = 0;
  int64_t call = 0;
  /// Ticks of the rank's own clock within the step: when the forward ended, and when its backward
  /// began. Absent: it had none.
  int64_t forward_order = 0;
  std::optional<int64_t> backward_order;
  /// Names of the parameters that the module has, captured or not.
  std::vector<std::string> parameters;
  std::map<std::string, CapturedTensor> tensors;
  std::map<std::string, std::string> left_out;  ///< What was asked for and is not there, and why.
  nlohmann::json knobs;                         ///< What the module and torch were set to.

  /// "step0/rank0/blocks.0.fc1.0": the file's path without its suffix.
  std::string Name() const;
};

struct Capture {
  std::string path;                    ///< The directory, or the file of a single call.
  std::vector<std::string> manifests;  ///< Their paths.
  std::vector<CapturedCall> calls;     ///< By step, then forward_order, then rank.
  std::vector<std::string> left_out;   ///< Calls that are not there, and why.
};

/// Reads the manifests of all ranks in the directory `path`; or of one .safetensors file of a
/// capture, which has its record in its metadata. `field` is the option it came from. NOT_FOUND
/// where there is no such directory or no manifest in it; INVALID_ARGUMENT, naming file, member and
/// rule, for a manifest that is none.
absl::StatusOr<Capture> ReadCapture(std::string_view field, const std::string& path);

/// The tensors of one call. INVALID_ARGUMENT where the file has other tensors than the manifest
/// says; errors otherwise as ReadTensorFile.
absl::StatusOr<TensorFile> ReadCapturedTensors(std::string_view field, const Capture& capture,
                                               const CapturedCall& call);

/// The path of a call's tensors, as people can open it.
std::string PathOf(const Capture& capture, const CapturedCall& call);

/// Where a tensor comes in the execution of its call: operands before outputs, forward before
/// backward.
int ExecutionPlace(std::string_view tensor);
/// Whether it belongs to the backward pass: dy, dx, dw and main_grad.
bool IsOfBackward(std::string_view tensor);

}  // namespace quantgate
