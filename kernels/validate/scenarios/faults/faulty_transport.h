// FaultyTransport: calls of ranks with a bug of comm_faults.h in them, for scenarios to catch.
// Nothing of it is in production code.
#pragma once

#include "kernels/base/seeded_fault.h"
#include "kernels/comm/group/transport.h"

namespace quantgate {

/// As WorldOptions::make_transport for ranks with these faults, which outlive it; null, which is
/// MakeTransport, where there are none. `communicators`: as MakeTransport's.
TransportFactory TransportWith(const SeededFaults& faults, CommunicatorCache* communicators);

}  // namespace quantgate
