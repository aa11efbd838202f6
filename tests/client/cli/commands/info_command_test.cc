// What `quantgate info` says of cuBLASLt's algorithms, against the table of docs/tensor-cores.md
// section 3.6, which was written from the survey's log.
#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/client/cli/commands/command_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using Json = nlohmann::json;
using ::testing::HasSubstr;

using InfoCommandTest = CommandTest;

/// Cells of the table's rows: operands, id, slices, request, arithmetic, then counts.
std::vector<std::vector<std::string>> DocumentedClasses() {
  std::ifstream file(QUANTGATE_SOURCE_DIR "/docs/tensor-cores.md");
  std::vector<std::vector<std::string>> rows;
  bool is_inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("| operands | id |", 0) == 0) is_inside = true;
    if (!is_inside) continue;
    if (line.empty()) break;
    std::vector<std::string> cells;
    for (const auto cell : absl::StrSplit(line, '|')) {
      cells.emplace_back(absl::StripAsciiWhitespace(cell));
    }
    cells.erase(cells.begin());  // Nothing is left of the first bar, or right of the last.
    cells.pop_back();
    rows.push_back(cells);
  }
  if (rows.size() > 2) rows.erase(rows.begin(), rows.begin() + 2);
  return rows;
}

const char* const kCounts[] = {"first_choices", "returned", "equal", "differing", "not_run"};

TEST_F(InfoCommandTest, JsonHasTheDocumentedClassesAndTheirSums) {
  const auto rows = DocumentedClasses();
  ASSERT_GT(rows.size(), 1u);
  const Json inventory = QuantgateJson({"info"})["cublaslt"];
  const Json& classes = inventory["classes"];
  ASSERT_EQ(classes.size(), rows.size() - 1);  // The last row is the sum.
  for (size_t i = 0; i < classes.size(); ++i) {
    const Json& c = classes[i];
    const std::string arithmetic =
        c["arithmetic"] == "" ? "not modelled" : c["arithmetic"].get<std::string>();
    std::vector<std::string> cells = {c["operands"], absl::StrCat(c["algorithm_id"].get<int>()),
                                      c["slices"], c["request"], arithmetic};
    for (const char* count : kCounts) cells.push_back(absl::StrCat(c[count].get<int64_t>()));
    EXPECT_EQ(absl::StrJoin(cells, " | "), absl::StrJoin(rows[i], " | "));
  }
  for (size_t i = 1; i < std::size(kCounts); ++i) {
    const std::string sum = absl::StrCat(inventory[kCounts[i]].get<int64_t>());
    EXPECT_EQ(sum, rows.back()[5 + i]) << kCounts[i];
  }
  EXPECT_EQ(inventory["device"], "NVIDIA H200");
  EXPECT_EQ(inventory["driver"], "580.159.04");
  EXPECT_EQ(inventory["cublaslt"], "13.1.0");
  EXPECT_EQ(inventory["date"], "2026-11-20");
}

TEST_F(InfoCommandTest, TableHasEveryLimit) {
  const Json limits = QuantgateJson({"info"})["limits"];
  EXPECT_EQ(limits.size(), 13u);
  const ProcessResult table = Quantgate({"info"});
  ASSERT_EQ(table.exit_code, 0);
  // Numbers in the table as the JSON has them; those of bytes have units there.
  for (const auto& [count, words] :
       std::map<std::string, std::string>{{"rank_max", " dims"},
                                          {"find_missing_max", " digests a FindMissing"},
                                          {"variants_max", " variants a run"},
                                          {"queue_capacity", " runs waiting"},
                                          {"sessions_max", " sessions of "},
                                          {"session_lease_seconds_max", " s, "},
                                          {"trace_steps_max", " steps a trace"}}) {
    const Json& value = limits[count];
    const std::string number = value.is_string() ? value.get<std::string>() : value.dump();
    EXPECT_THAT(table.out, HasSubstr(absl::StrCat(" ", number, words))) << count;
  }
  for (const char* of_bytes :
       {" a tensor,", " a blob,", " inline,", " a message,", " a chunk,", " together,"}) {
    EXPECT_THAT(table.out, HasSubstr(of_bytes));
  }
}

TEST_F(InfoCommandTest, TableListsWhatIsNotModelled) {
  const auto rows = DocumentedClasses();
  ASSERT_GT(rows.size(), 1u);
  for (const Where where : {Where::kInProcess, Where::kServer}) {
    const ProcessResult result = Quantgate({"info", "--format", "table"}, where);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    // Lines with their cells one space apart.
    std::vector<std::string> lines;
    for (const auto line : absl::StrSplit(result.out, '\n')) {
      lines.push_back(absl::StrJoin(absl::StrSplit(line, ' ', absl::SkipEmpty()), " "));
    }
    for (size_t i = 0; i + 1 < rows.size(); ++i) {
      std::vector<std::string> cells = rows[i];
      const bool is_modelled = cells[4] != "not modelled";
      cells.erase(cells.begin() + 4);
      const auto count = std::count(lines.begin(), lines.end(), absl::StrJoin(cells, " "));
      EXPECT_EQ(count, is_modelled ? 0 : 1) << absl::StrJoin(rows[i], " | ");
    }
    EXPECT_THAT(result.out, HasSubstr(absl::StrCat("of ", rows.back()[6], " that the heuristic")));
    EXPECT_THAT(result.out,
                HasSubstr("NVIDIA H200, driver 580.159.04, cuBLASLt 13.1.0, 2026-11-20"));
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
