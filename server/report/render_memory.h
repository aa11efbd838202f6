// What a session holds for the backwards of microbatches in flight, as text.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "quantgate/v1/sessions_service.pb.h"

namespace quantgate {

/// The sums of a session's memory for backward, under the names of MemoryHead.
std::vector<std::string> MemoryRow(const v1::SessionMemory& memory);
std::vector<std::string> MemoryHead();

/// Prints the sums, and what is saved by rank, microbatch and layer. Nothing where a session has
/// never saved anything.
void PrintSessionMemory(const v1::SessionMemory& memory, bool uses_colour, std::ostream& out);

}  // namespace quantgate
