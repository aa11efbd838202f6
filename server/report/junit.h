// JUnit XML with only the elements and attributes that the schemas of Ant and of Jenkins both have,
// and with all that either requires. In both, a suite has properties and a test case has none.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace quantgate {

/// Where and when a run took place.
struct JunitRun {
  std::string host;  ///< A server's address, or "localhost".
  absl::Time begin;
};

/// One test case and, where it did not pass, the element that says so.
struct JunitCase {
  std::string class_name, name;
  double seconds = 0;
  std::string element = {};  ///< failure | error | skipped; empty if it passed.
  /// Type of the element: "difference", "missed fault", "error", "left out".
  std::string type = {};
  std::string message = {};
  std::string body = {};
};

/// The suite of a file, which has no other.
struct JunitSuite {
  std::string name;
  std::vector<std::pair<std::string, std::string>> properties;  ///< Those without a value are not
                                                                ///< written.
  std::vector<JunitCase> cases;
  std::vector<std::string> notes;  ///< Lines of system-out.
};

std::string JunitText(const JunitSuite& suite, const JunitRun& run);

}  // namespace quantgate
