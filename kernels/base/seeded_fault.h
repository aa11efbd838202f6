// Known bugs of training frameworks that scenarios seed on purpose: a scenario that claims to catch
// a class of bugs is run with the bug in place and must fail (docs/scenarios.md). Code that can
// have such a bug asks `faults.Has(...)` where the bug would be; only in a scenario run is that
// true.
#pragma once

#include <set>
#include <string>

namespace quantgate {

class FaultSeeder;  // In kernels/validate/scenarios; only it can make a set that is not empty.

/// The names of the faults in place. The set is empty everywhere outside scenario runs.
class SeededFaults {
 public:
  SeededFaults() = default;
  bool Has(const std::string& name) const { return names_.count(name) != 0; }
  bool empty() const { return names_.empty(); }

 private:
  friend class FaultSeeder;
  std::set<std::string> names_;
};

}  // namespace quantgate
