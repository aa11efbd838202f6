// What scenarios of ranks are about, by number, and the mutations of code for ranks that they must
// catch: docs/scenarios.md sections 4 and 5.
#pragma once

#include <string>
#include <vector>

namespace quantgate {

struct RankSubject {
  std::string number;  ///< "D01".
  std::string title;
  std::vector<std::string> scenarios;
};
const std::vector<RankSubject>& RankSubjects();

struct RankMutation {
  std::string what;
  std::vector<std::string> faults;
};
const std::vector<RankMutation>& RankMutations();

}  // namespace quantgate
