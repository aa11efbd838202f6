// What the ranks of a variant or of a session's step did, as text.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "quantgate/v1/report.pb.h"

namespace quantgate {

using RankReports = google::protobuf::RepeatedPtrField<v1::RankReport>;

/// Prints the part of every output that each rank had, the times of its stages, and the time of its
/// communication that no GEMM hid.
void PrintRankReports(const RankReports& ranks, bool uses_colour, std::ostream& out);

/// The notes of the ranks' GEMMs, each once: "ranks 0, 1: wgrad dw: x: quantized twice, ...".
std::vector<std::string> GemmNotes(const RankReports& ranks);

/// One row for each quantization of a rank whose record names the group over which its amax was
/// reduced: rank, tensor, group, amax, scale_inv. No rows where no record names one.
std::vector<std::vector<std::string>> AmaxGroupRows(const RankReports& ranks);
std::vector<std::string> AmaxGroupHead();

/// The names of the figures of a stage that communicates beside its GEMMs, and the figures of one.
std::vector<std::string> OverlapHead();
std::vector<std::string> OverlapRow(const v1::OverlapReport& overlap);

}  // namespace quantgate
