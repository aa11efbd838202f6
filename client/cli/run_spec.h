// The RunSpec that run, compare and verify send: what the options say, on top of --spec.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/layer_options.h"
#include "client/connection.h"
#include "client/tensor_source.h"
#include "quantgate/v1/layer.pb.h"

namespace quantgate {

/// What is wrong with the options themselves, before a server is asked or a tensor is read.
absl::Status CheckLayerOptions(const LayerOptions& options);

/// Uploads what is needed and describes the run. A layer that the server does not have is
/// INVALID_ARGUMENT with the list of those it has.
absl::StatusOr<v1::RunSpec> BuildRunSpec(Connection& connection, const LayerOptions& options,
                                         TensorSources& sources);

/// What the options alone say of the layer, on top of `layer`.
absl::Status SetLayer(const LayerOptions& options, v1::Layer& layer);

}  // namespace quantgate
