// Results of scenarios as JUnit XML: a test case for every scenario and for every fault. Of the
// elements and attributes that the schemas of Ant and of Jenkins both have, with what each needs.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "quantgate/v1/scenarios_service.pb.h"

namespace quantgate {

/// "dw (0, 7)" and "is 0x3f80 (1), expected 0x3f81 (1.0078125)".
std::string PlaceText(const v1::ScenarioDifference& difference);
std::string ValuesText(const v1::ScenarioDifference& difference);

/// "fp8_current, step 3: dw (0, 7) is 0x3f80 (1), expected 0x3f81 (1.0078125)".
std::string DifferenceText(const v1::ScenarioDifference& difference);

/// Where and when a run was.
struct JunitRun {
  std::string host;  ///< A server's address, or "localhost".
  absl::Time begin;
};

/// Digests and the environment are properties of the suite: test cases have none in the schemas.
/// What scenarios noted, and by what they caught their faults, is its system-out.
std::string ScenarioJunit(const std::vector<v1::ScenarioEvent>& events, const JunitRun& run);

}  // namespace quantgate
