// The RunSpec that run, compare and verify send: that of --spec, with the options in its place
// where they are given.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/options/layer_options.h"
#include "client/connection.h"
#include "client/tensor_source.h"
#include "quantgate/v1/report.pb.h"

namespace quantgate {

/// Whether a --spec names a run that the server keeps: "run:ID".
bool NamesRun(const std::string& spec);
/// The report of that run. FAILED_PRECONDITION where it has no request, NOT_FOUND where the server
/// no longer has a tensor of it.
absl::StatusOr<v1::RunReport> FetchRun(Connection& connection, const std::string& spec);
/// DATA_LOSS where an input with one name, source and digest in both runs has two fingerprints.
absl::Status CheckSameInputs(const v1::RunReport& first, const v1::RunReport& again);

/// Checks the options, on top of `base`, as far as that needs neither a server nor a tensor.
absl::Status CheckLayerOptions(const LayerOptions& options, v1::RunSpec base);

/// Uploads what is needed and describes the run. A layer that the server does not have is
/// INVALID_ARGUMENT with the list of those it has.
absl::StatusOr<v1::RunSpec> BuildRunSpec(Connection& connection, const LayerOptions& options,
                                         v1::RunSpec base, TensorSources& sources);

/// Sets the fields of `layer` that options give.
absl::Status SetLayer(const LayerOptions& options, v1::Layer& layer);

}  // namespace quantgate
