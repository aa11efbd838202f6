// How CPU work runs: instruction set, thread count, cancellation. Passed down explicitly, so that
// tests can run one body over every instruction set and thread count in one process.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/base/cancellation.h"

namespace quantgate {

/// Code paths of the CPU engine, in increasing order of need. All give the same bits.
enum class Isa {
  kScalar,  ///< Portable C++.
  kAvx2,    ///< AVX2 with FMA and F16C.
  kAvx512,  ///< AVX-512 F, BW, DQ, VL, VBMI and VNNI.
};

std::string_view IsaName(Isa isa);

/// The best path this processor can run, by CPUID.
Isa BestIsa();

/// Every path this processor can run, slowest first, for whoever compares them.
std::vector<Isa> RunnableIsas();

/// CPUs that this process may run on (its affinity mask), at least 1.
int AvailableCpus();

struct ExecutionContext {
  Isa isa = BestIsa();
  int threads = AvailableCpus();
  const Cancellation* cancellation = nullptr;  ///< Not owned; null: cannot be cancelled.

  absl::Status CheckCancelled() const {
    return cancellation == nullptr ? absl::OkStatus() : cancellation->Check();
  }
};

/// Calls body(begin, end) over disjoint pieces of [0, count), each a multiple of `grain` long
/// except the last, on at most context.threads threads. Workers run with IEEE subnormals (no FTZ,
/// no DAZ) and round to nearest even, whatever the calling thread has set. Pieces not yet started
/// are skipped once the context is cancelled; the caller must look at context.CheckCancelled()
/// afterwards.
void ParallelFor(const ExecutionContext& context, int64_t count, int64_t grain,
                 absl::FunctionRef<void(int64_t begin, int64_t end)> body);

/// Sets IEEE subnormals and rounding to nearest even for the current scope; restores on exit.
class ScopedIeeeEnvironment {
 public:
  ScopedIeeeEnvironment();
  ~ScopedIeeeEnvironment();
  ScopedIeeeEnvironment(const ScopedIeeeEnvironment&) = delete;
  ScopedIeeeEnvironment& operator=(const ScopedIeeeEnvironment&) = delete;

 private:
  unsigned saved_control_;
};

}  // namespace quantgate
