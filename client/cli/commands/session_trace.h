// What `quantgate session run` asks of Sessions.RunTrace: the trace of a file, with the tensors
// that it names.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/connection.h"
#include "client/tensor_source.h"
#include "quantgate/v1/sessions_service.pb.h"

namespace quantgate {

/// Makes the tensors of a file, named "step2.fc1.dw", subjects of the steps that give them: those
/// of the first round, counted from 1. Each stands in `trace` under its name on the command line.
/// INVALID_ARGUMENT for a tensor of another name or of no step, and where the trace has a subject
/// of that name itself.
absl::Status AddSubjects(const std::string& path, v1::SessionTrace& trace);

/// The request that plays `trace`, with every tensor that it names: each is read and sent once.
absl::StatusOr<v1::RunTraceRequest> TraceRequestOf(const v1::SessionTrace& trace,
                                                   TensorSources& sources);

}  // namespace quantgate
