// FaultSeeder: the only way to a set of seeded faults that is not empty. Only the runner of
// scenarios includes this file; a test checks it.
#pragma once

#include <string>

#include "kernels/base/seeded_fault.h"

namespace quantgate {

class FaultSeeder {
 public:
  static SeededFaults With(const std::string& name) {
    SeededFaults faults;
    faults.names_.insert(name);
    return faults;
  }
};

}  // namespace quantgate
