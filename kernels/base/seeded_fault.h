// Known bugs of training frameworks, to be seeded on purpose: a scenario that claims to catch a bug
// class is run with the bug in place and must fail (docs/scenarios.md). Code that can have such a
// bug asks `faults.Has(...)` where the bug would be; only a scenario run can answer yes.
#pragma once

#include <set>
#include <string>

namespace quantgate {

class FaultSeeder;  // In run_scenarios.cc: it alone can make a set with faults.

/// The faults in place, by name. Everything outside scenario runs has the empty set.
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
