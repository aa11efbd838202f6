// JUnit XML, of the elements and attributes that the schemas of Ant and of Jenkins both have, with
// what each needs. Test cases have no properties there; the suite has.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace quantgate {

/// Where and when a run was.
struct JunitRun {
  std::string host;  ///< A server's address, or "localhost".
  absl::Time begin;
};

/// One test case and, where it is not good, what follows it.
struct JunitCase {
  std::string class_name, name;
  double seconds = 0;
  std::string element = {};  ///< failure | error | skipped; empty: good.
  std::string type = {};     ///< Of that: "difference", "missed fault", "error", "left out".
  std::string message = {};
  std::string body = {};
};

/// A file of one suite.
struct JunitSuite {
  std::string name;
  std::vector<std::pair<std::string, std::string>> properties;  ///< Those without a value are not
                                                                ///< written.
  std::vector<JunitCase> cases;
  std::vector<std::string> notes;  ///< Lines of system-out.
};

std::string JunitText(const JunitSuite& suite, const JunitRun& run);

}  // namespace quantgate
