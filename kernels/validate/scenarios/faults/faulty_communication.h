// Communication between ranks with the bugs of comm_faults.h seeded into it, for scenarios to
// catch: calls of a group, and calls that overlap with a GEMM. Production code uses none of this.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "kernels/base/seeded_fault.h"
#include "kernels/comm/group/transport.h"
#include "kernels/comm/overlap/overlap.h"

namespace quantgate {

/// A WorldOptions::make_transport that makes transports with `faults`, which must outlive it. Null,
/// which stands for MakeTransport, if there are no faults. `communicators`: as MakeTransport's.
TransportFactory TransportWith(const SeededFaults& faults, CommunicatorCache* communicators);

/// What a seeded bug remembers of each shared buffer, by the buffer's name, while buffers exist.
struct BufferMemories {
  std::map<std::string, Tensor> last;      ///< A copy of the operand that was gathered last.
  std::map<std::string, DType> precision;  ///< The dtype of the operand that was gathered first.
};

/// `overlap`, whose buffers are `buffers`, with `faults`; all three must outlive the result.
/// Returns `overlap` itself if there are no faults. Every rank's shard must have the same number of
/// rows.
std::unique_ptr<Overlap> OverlapWith(const SeededFaults& faults, std::unique_ptr<Overlap> overlap,
                                     OverlapBuffers& buffers, BufferMemories& memories);

}  // namespace quantgate
