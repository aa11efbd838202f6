// What the ranks of a variant or of a session's step did, as text.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "quantgate/v1/report.pb.h"

namespace quantgate {

using RankReports = google::protobuf::RepeatedPtrField<v1::RankReport>;

/// What each rank had of every output, how long its stages took, and what of its communication no
/// GEMM hid.
void PrintRankReports(const RankReports& ranks, bool uses_colour, std::ostream& out);

/// One row for each quantization of a rank over whose amax a group says: rank, tensor, group, amax,
/// scale_inv; none where no group does.
std::vector<std::vector<std::string>> AmaxGroupRows(const RankReports& ranks);
std::vector<std::string> AmaxGroupHead();

/// Figures of a stage that communicates beside its GEMMs, and their names.
std::vector<std::string> OverlapHead();
std::vector<std::string> OverlapRow(const v1::OverlapReport& overlap);

}  // namespace quantgate
