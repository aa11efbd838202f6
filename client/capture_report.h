// The reports of captures: every captured layer against the engine (verify), and two captures
// against each other (diff). Both name where the first difference is in the order of execution.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/capture.h"
#include "client/connection.h"
#include "client/tensor_source.h"
#include "quantgate/v1/layer.pb.h"
#include "server/report/report_document.h"

namespace quantgate {

/// How a capture is judged.
struct CaptureCriterion {
  /// Modules whose whole path this ECMAScript expression matches; empty: every one.
  std::string layers;
  /// What layers are computed under. Without a recipe, each under the one that its module ran, and
  /// that is bf16 where it says none; without an arithmetic, f32 layers of bf16 under fp32 where
  /// TF32 was off.
  v1::Variant variant;
  /// Whether outputs must lie within their derived bounds, instead of having the engine's bits.
  bool by_bound = true;
  /// The fields that errors name.
  std::string capture_field = "capture";
  std::string layers_field = "layers";
};

/// Called before each call is compared: its name, how many were, and how many there are.
using CaptureProgress = std::function<void(const std::string& what, int64_t done, int64_t count)>;

/// Computes every captured layer from its own operands and judges what the step gave: y; dx and dw
/// from dy; main_grad. What cannot be judged is said in the layer's remark: a module without a
/// known kind, a tensor that was not captured, dw of sampled rows. INVALID_ARGUMENT where nothing
/// can be judged, and for a bad expression.
absl::StatusOr<ReportDocument> VerifyCapture(Connection& connection, TensorSources& sources,
                                             const Capture& capture,
                                             const CaptureCriterion& criterion,
                                             const CaptureProgress& progress);

/// Compares the tensors of two captures call by call, bit for bit or within `ulp_max`. A call or a
/// tensor that one of them lacks is a difference.
absl::StatusOr<ReportDocument> DiffCaptures(Connection& connection, TensorSources& sources,
                                            const Capture& subject, const Capture& reference,
                                            std::optional<int64_t> ulp_max,
                                            const CaptureProgress& progress);

}  // namespace quantgate
