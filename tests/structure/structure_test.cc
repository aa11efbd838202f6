// The architecture as a test: include direction, containment of third parties, banned words, size
// of files, citations of documents.
#include <gtest/gtest.h>
#include <re2/re2.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string>

#include "tests/structure/source_tree.h"
#include "tests/structure/unnamed_names.h"

namespace quantgate {
namespace QG_TEST_FILE {

const std::vector<std::string> kCode = {".h", ".cc", ".cu", ".cuh"};

bool StartsWith(const std::string& text, const std::string& prefix) {
  return text.rfind(prefix, 0) == 0;
}

/// Height of a folder: a file may include its own height or below, never above. Quantize, gemm,
/// compare and ops stand side by side.
int HeightOf(const std::string& path) {
  static const std::vector<std::pair<std::string, int>> kHeights = {
      {"kernels/base/", 0},     {"kernels/numerics/", 1}, {"kernels/tensor/", 2},
      {"kernels/quantize/", 3}, {"kernels/gemm/", 3},     {"kernels/compare/", 3},
      {"kernels/ops/", 3},      {"kernels/engine/", 4},   {"kernels/comm/", 5},
      {"kernels/layer/", 6},    {"kernels/training/", 7}, {"kernels/validate/", 8},
      {"server/", 9},           {"client/", 10},
  };
  for (const auto& [prefix, height] : kHeights) {
    if (StartsWith(path, prefix)) return height;
  }
  return -1;
}

TEST(StructureTest, SourcesAreFound) { EXPECT_GT(ReadSources(kCode).size(), 30u); }

TEST(StructureTest, IncludesPointDown) {
  for (const SourceFile& file : ReadSources(kCode)) {
    const int height = HeightOf(file.path);
    if (height < 0) continue;
    for (const std::string& include : QuotedIncludes(file)) {
      EXPECT_LE(HeightOf(include), height) << file.path << " includes " << include;
      if (height == 3 && HeightOf(include) == 3) {
        const auto folder = [](const std::string& path) {
          return path.substr(0, path.find('/', 8));
        };
        EXPECT_EQ(folder(include), folder(file.path)) << file.path << " includes " << include;
      }
    }
  }
}

TEST(StructureTest, ClientSeesTheServerOnlyThroughItsFront) {
  for (const SourceFile& file : ReadSources(kCode)) {
    if (!StartsWith(file.path, "client/")) continue;
    for (const std::string& include : QuotedIncludes(file)) {
      if (StartsWith(include, "server/")) {
        // What computes in the client's process stands on the same libraries as a server.
        const bool is_in_process = StartsWith(file.path, "client/in_process.") ||
                                   StartsWith(file.path, "client/local_connection.") ||
                                   StartsWith(file.path, "client/memory_connection.") ||
                                   StartsWith(file.path, "client/python/local_engine.");
        const bool is_front = is_in_process || include == "server/server.h" ||
                              include == "server/store/local_store.h" ||
                              StartsWith(include, "server/report/");
        EXPECT_TRUE(is_front) << file.path << " includes " << include;
      }
    }
  }
}

// Wire stands below runs, runs below sessions, sessions below rpc; stores know none of them.
TEST(StructureTest, PartsOfTheServerPointDown) {
  const std::vector<std::string> parts = {"server/store/", "server/wire/", "server/runs/",
                                          "server/sessions/", "server/rpc/"};
  const auto height = [&](const std::string& path) {
    const auto part = std::find_if(parts.begin(), parts.end(), [&](const std::string& prefix) {
      return StartsWith(path, prefix);
    });
    return part == parts.end() ? -1 : static_cast<int>(part - parts.begin());
  };
  // A server's own ways with runs; the libraries know neither queues nor the database.
  const std::set<std::string> of_server = {"server/runs/run_events.", "server/runs/run_job.",
                                           "server/runs/runs."};
  for (const SourceFile& file : ReadSources(kCode)) {
    const bool is_of_server =
        std::any_of(of_server.begin(), of_server.end(),
                    [&](const std::string& prefix) { return StartsWith(file.path, prefix); });
    for (const std::string& include : QuotedIncludes(file)) {
      if (height(file.path) < 0 || is_of_server) continue;
      EXPECT_LE(height(include), height(file.path)) << file.path << " includes " << include;
      const bool is_library = height(file.path) > 0 && height(file.path) < 4;
      EXPECT_FALSE(is_library && StartsWith(include, "server/store/"))
          << file.path << " includes " << include;
    }
  }
}

TEST(StructureTest, ReportsNeedNoServer) {
  size_t count = 0;
  for (const SourceFile& file : ReadSources(kCode)) {
    if (!StartsWith(file.path, "server/report/")) continue;
    for (const std::string& include : QuotedIncludes(file)) {
      const bool is_other =
          StartsWith(include, "server/") && !StartsWith(include, "server/report/");
      EXPECT_FALSE(is_other) << file.path << " includes " << include;
      ++count;
    }
  }
  EXPECT_GT(count, 30u);
}

TEST(StructureTest, ThirdPartiesAreContained) {
  // What an #include line contains -> the paths that may have it.
  const std::map<std::string, std::vector<std::string>> allowed = {
      {"prometheus/",
       {"server/metrics/metrics.", "server/metrics/series_families.",
        "tests/server/metrics/rank_series_test."}},
      {"grpcpp/",
       {"server/rpc/", "server/server.", "client/channel_", "client/live_calls.",
        "client/cli/commands/bench_wire.", "tests/"}},
      {"nanobind/", {"client/python/"}},
      {"mustache.hpp", {"server/report/render_html.cc"}},
      {".pb.h",
       {"proto/", "server/report/", "server/rpc/", "server/runs/", "server/server.",
        "server/sessions/", "server/wire/", "client/", "tests/"}},
      {"cublasLt.h", {"kernels/gemm/cublaslt/gemm_cublaslt.", "tests/hardware/"}},
      {"nccl.h", {"kernels/comm/nccl/"}},
      {"sqlite3.h", {"server/store/", "tests/server/store/full_disk."}},
  };
  for (const SourceFile& file : ReadSources(kCode)) {
    for (const std::string& line : file.lines) {
      if (!StartsWith(line, "#include")) continue;
      for (const auto& [what, places] : allowed) {
        if (line.find(what) == std::string::npos) continue;
        bool is_allowed = false;
        for (const std::string& place : places) is_allowed |= StartsWith(file.path, place);
        EXPECT_TRUE(is_allowed) << file.path << ": " << line;
      }
    }
  }
}

// gRPC swallows what they throw, and the call is never answered, or as if its message were
// malformed: without memory the process is to end.
TEST(StructureTest, NothingIsThrownIntoGrpc) {
  static const std::regex kOverride(R"((\w+)\(([^()]*)\)\s*(noexcept\s+)?override)");
  int count = 0;
  for (const SourceFile& file : ReadSources(kCode)) {
    if (!StartsWith(file.path, "server/rpc/")) continue;
    std::string text;
    for (const std::string& line : file.lines) text += line + "\n";
    std::replace(text.begin(), text.end(), '\\', ' ');  // Of macros of several lines.
    for (std::sregex_iterator found(text.begin(), text.end(), kOverride), end; found != end;
         ++found) {
      const std::string name = found->str(1);
      const bool is_called_back = std::regex_match(name, std::regex("On[A-Z]\\w*")) ||
                                  found->str(2).find("CallbackServerContext*") != std::string::npos;
      if (!is_called_back) continue;
      ++count;
      EXPECT_TRUE((*found)[3].matched) << file.path << ": " << name;
    }
  }
  EXPECT_GT(count, 30);
}

struct Ban {
  const char* pattern;
  const char* where;  // Path prefix; "" is everywhere.
  const char* instead;
};

// What decides by the words of an error or of a stage's name changes with them.
constexpr char kReadsText[] =
    R"(message\(\)\.(find|starts_with|ends_with|contains)|)"
    R"((StrContains|StartsWith|EndsWith|ConsumePrefix|ConsumeSuffix)\([^;]*message\(\)|)"
    R"(message\(\) (==|!=))";
constexpr char kReadsStage[] =
    R"(\bstage(\(\))?\.(find|starts_with|ends_with)|)"
    R"((StrContains|StartsWith|EndsWith)\([^;]*\bstage\b|\bstage(\(\))? (==|!=) ")";

TEST(StructureTest, BannedWords) {
  // This file spells the words it bans, so it is left out.
  static const Ban kBans[] = {
      {R"(\bTODO\b|\bFIXME\b|\bXXX\b)", "", "finish it, or open an issue"},
      {R"(\bEXPECT_NEAR\b|\bASSERT_NEAR\b|EXPECT_FLOAT_EQ|EXPECT_DOUBLE_EQ)", "tests/",
       "exact equality, or a derived bound"},
      {R"(sleep_for|usleep\()", "tests/", "wait for the event itself"},
      {R"(\bGTEST_SKIP\b)", "tests/", "a ctest label"},
      {R"(std::(exp|exp2|log|log2|log10|pow|tanh|sin|cos|erf)\()", "kernels/",
       "kernels/numerics: no libm, same bits everywhere"},
      {R"(\b(expf|logf|powf|tanhf)\()", "kernels/",
       "kernels/numerics: no libm, same bits everywhere"},
      {R"(-ffast-math|use_fast_math|Ofast)", "", "IEEE arithmetic"},
      {R"(/work/|/root/|/home/)", "", "a path relative to the repository"},
      {R"(\busing namespace\b)", "", "qualified names"},
      {"absl::InvalidArgumentError", "kernels/", "Refuse: field, value and rule"},
      {R"(QuantizerFormat::k(Fp8Tensor|Fp8Block|Mxfp8|Nvfp4))", "kernels/",
       "what ScalingTraits says of it"},
      {R"(QuantizerFormat::k(Fp8Tensor|Fp8Block|Mxfp8|Nvfp4))", "server/",
       "what ScalingTraits says of it"},
      {kReadsText, "kernels/", "RefusalOf, or a payload"},
      {kReadsText, "server/", "RefusalOf, or a payload"},
      {kReadsStage, "kernels/", "StageKind"},
      {kReadsStage, "server/", "StageKind"},
  };
  for (const SourceFile& file :
       ReadSources({".h", ".cc", ".cu", ".py", ".sh", ".proto", ".txt", ".cmake"})) {
    if (file.path == "tests/structure/structure_test.cc") continue;
    if (StartsWith(file.path, "tests/data/")) continue;
    for (const Ban& ban : kBans) {
      if (!StartsWith(file.path, ban.where)) continue;
      // A scenario's subject is what its seeded bug says.
      const bool is_scenario = StartsWith(file.path, "kernels/validate/scenarios/");
      if (is_scenario && ban.pattern == kReadsText) continue;
      // The table of formats, recipes, scenarios and the search of one format name their subjects.
      const bool names_formats = is_scenario ||
                                 StartsWith(file.path, "kernels/tensor/quantizer_format.") ||
                                 file.path == "kernels/quantize/recipe/recipe_quantizers.cc" ||
                                 file.path == "kernels/validate/explain/explain_nvfp4.cc";
      if (names_formats && StartsWith(ban.pattern, "QuantizerFormat")) continue;
      // Files say what is wrong with them by their path; a scenario's seeded bug has words of its
      // own.
      const bool has_own_words = is_scenario || StartsWith(file.path, "kernels/tensor/");
      if (has_own_words && std::string_view(ban.pattern) == "absl::InvalidArgumentError") continue;
      const RE2 pattern(ban.pattern);
      for (size_t i = 0; i < file.lines.size(); ++i) {
        EXPECT_FALSE(RE2::PartialMatch(file.lines[i], pattern))
            << file.path << ":" << i + 1 << ": " << file.lines[i] << "\n  instead: " << ban.instead;
      }
    }
  }
}

/// The folder whose library a source belongs to, its rooms included; empty where sources are
/// compiled one by one.
std::string LibraryOf(const std::string& path) {
  if (HeightOf(path) < 0 || path.find("cuda") != std::string::npos) return "";
  for (const char* library : {"kernels/validate/scenarios/", "server/report/", "server/store/",
                              "server/", "client/cli/", "client/"}) {
    if (StartsWith(path, library)) return library;
  }
  return path.substr(0, path.find('/', sizeof("kernels/") - 1) + 1);
}

TEST(StructureTest, UnnamedNamespacesOfALibraryShareNoNames) {
  std::set<std::string> alone;
  for (const SourceFile& file : ReadSources({".txt"})) alone.merge(SourcesWithOptions(file));
  EXPECT_GT(alone.size(), 20u);
  std::map<std::pair<std::string, std::string>, std::string> owners;  // By library and name.
  for (const SourceFile& file : ReadSources({".cc"})) {
    const std::string library = LibraryOf(file.path);
    if (library.empty() || alone.contains(file.path)) continue;
    for (const std::string& name : UnnamedNamespaceNames(file)) {
      const auto [owner, is_first] = owners.try_emplace({library, name}, file.path);
      EXPECT_TRUE(is_first) << file.path << ": " << owner->second << " has " << name
                            << " too, and QUANTGATE_ONE_SHOT compiles both at once";
    }
  }
  EXPECT_GT(owners.size(), 500u);
}

// Two types of one name: a program that has both takes one's destructor for the other's. Device
// code too: tests and benchmarks link it with the host's.
TEST(StructureTest, TypesOfHeadersHaveNamesOfTheirOwn) {
  static const std::regex kDefinition(
      R"(^(?:class|struct|union|enum|enum class) (\w+)(?: final)?(?: :.*)? \{.*$)");
  std::map<std::string, std::string> owners;
  for (const SourceFile& file : ReadSources({".h"})) {
    if (HeightOf(file.path) < 0) continue;
    bool is_unnamed = false;
    for (const std::string& line : file.lines) {
      if (line == "namespace {") is_unnamed = true;
      std::smatch match;
      if (is_unnamed || !std::regex_match(line, match, kDefinition)) continue;
      const auto [owner, is_first] = owners.try_emplace(match[1], file.path);
      EXPECT_TRUE(is_first) << file.path << ": " << owner->second << " has " << match[1] << " too";
    }
  }
  EXPECT_GT(owners.size(), 300u);
}

TEST(StructureTest, FilesStaySmall) {
  for (const SourceFile& file : ReadSources(kCode)) {
    EXPECT_LE(file.lines.size(), 650u) << file.path;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      EXPECT_LE(file.lines[i].size(), 120u) << file.path << ":" << i + 1;
    }
  }
}

// A folder that is longer has rooms in it: kernels/gemm has exact, bound, models and cublaslt.
TEST(StructureTest, FoldersStaySmall) {
  std::map<std::string, int> counts;
  for (const std::string& path : AllFiles()) ++counts[path.substr(0, path.rfind('/') + 1)];
  EXPECT_GT(counts.size(), 60u);
  for (const auto& [folder, count] : counts) {
    if (StartsWith(folder, "tests/data/")) continue;
    EXPECT_LE(count, 40) << folder;
  }
}

TEST(StructureTest, CitedSectionsExist) {
  size_t section_count = 0;
  for (const SourceFile& file : ReadTexts()) {
    for (const Citation& citation : Citations(file)) {
      const std::string path = FindDocument(file.path, citation.document);
      EXPECT_FALSE(path.empty()) << citation.where << " names " << citation.document
                                 << ", which is not in the repository";
      if (path.empty() || citation.sections.empty()) continue;
      const std::vector<std::string> headings = NumberedHeadings(path);
      for (const std::string& section : citation.sections) {
        EXPECT_EQ(std::count(headings.begin(), headings.end(), section), 1)
            << citation.where << " cites section " << section << " of " << path
            << ", which has no such heading";
        ++section_count;
      }
    }
  }
  EXPECT_GT(section_count, 400u);  // Else the pattern no longer sees how code cites.
}

TEST(StructureTest, SectionsAreNumberedWithoutHoles) {
  size_t count = 0;
  for (const SourceFile& file : ReadDocuments()) {
    if (!StartsWith(file.path, "docs/")) continue;
    int section = 0, part = 0;
    for (const std::string& number : NumberedHeadings(file.path)) {
      const bool is_part = number.find('.') != std::string::npos;
      part = is_part ? part + 1 : 0;
      section += is_part ? 0 : 1;
      const std::string next =
          std::to_string(section) + (is_part ? "." + std::to_string(part) : std::string());
      EXPECT_EQ(number, next) << file.path;
      ++count;
    }
  }
  EXPECT_GT(count, 100u);
}

TEST(StructureTest, TheFrontPageIsShort) {
  for (const SourceFile& file : ReadDocuments()) {
    if (file.path != "README.md") continue;
    EXPECT_LE(file.lines.size(), 200u) << "what a newcomer can do without goes to docs/";
    return;
  }
  FAIL() << "there is no README.md";
}

TEST(StructureTest, WhatDocumentsNameExists) {
  static const std::regex kName(
      R"(`([\w./-]+\.(?:h|cc|cu|inc|proto|sh|py|html)|)"
      R"((?:kernels|server|client|proto|tests|deploy|cmake)(?:/[\w-]+)+/?)`)");
  static const std::regex kExample("(.*/)?(NAME|negate).*");
  std::string paths = "\n";  // Files and folders, each between line breaks.
  for (const std::string& path : AllFiles()) {
    paths += "/" + path + "\n";
    for (size_t end = path.find('/'); end != std::string::npos; end = path.find('/', end + 1)) {
      paths += "/" + path.substr(0, end) + "\n/" + path.substr(0, end + 1) + "\n";
    }
  }
  size_t count = 0;
  for (const SourceFile& file : ReadDocuments()) {
    for (const std::string& line : file.lines) {
      for (std::sregex_iterator match(line.begin(), line.end(), kName), end; match != end;
           ++match) {
        if (std::regex_match(match->str(1), kExample)) continue;
        EXPECT_TRUE(paths.find("/" + match->str(1) + "\n") != std::string::npos)
            << file.path << " names " << match->str();
        ++count;
      }
    }
  }
  EXPECT_GT(count, 80u);
}

TEST(StructureTest, LinksOfDocumentsLeadSomewhere) {
  static const std::regex kLink(R"(\]\(([^)#:]+)\))");  // Not of the web.
  size_t count = 0;
  for (const SourceFile& file : ReadDocuments()) {
    const std::filesystem::path folder =
        (std::filesystem::path(QUANTGATE_SOURCE_DIR) / file.path).parent_path();
    for (const std::string& line : file.lines) {
      for (std::sregex_iterator match(line.begin(), line.end(), kLink), end; match != end;
           ++match) {
        if (match->str(1).ends_with(".png")) continue;  // Pictures are taken by a program.
        EXPECT_TRUE(std::filesystem::exists(folder / match->str(1)))
            << file.path << " links to " << match->str(1);
        ++count;
      }
    }
  }
  EXPECT_GT(count, 40u);
}

TEST(StructureTest, HeadersSayWhatTheyAre) {
  for (const SourceFile& file : ReadSources({".h"})) {
    ASSERT_FALSE(file.lines.empty()) << file.path;
    EXPECT_TRUE(StartsWith(file.lines[0], "// "))
        << file.path << " opens without a word on what it is";
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
