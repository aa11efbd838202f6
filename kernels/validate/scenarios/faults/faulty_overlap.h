// Overlapped calls with a bug of comm_faults.h in them, for scenarios to catch. Nothing of it is in
// production code.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "kernels/base/seeded_fault.h"
#include "kernels/comm/overlap/overlap.h"

namespace quantgate {

/// What a bug remembers of each buffer, by its name, for as long as there are the buffers.
struct BufferMemories {
  std::map<std::string, Tensor> last;      ///< A copy of the operand that was gathered last.
  std::map<std::string, DType> precision;  ///< Of the first one.
};

/// `overlap` with these faults, which outlive it; itself where there are none. `buffers`: its own.
/// Shards are of equal rows.
std::unique_ptr<Overlap> OverlapWith(const SeededFaults& faults, std::unique_ptr<Overlap> overlap,
                                     OverlapBuffers& buffers, BufferMemories& memories);

}  // namespace quantgate
