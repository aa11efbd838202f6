// --tp: a layer on several ranks beside one, as run, compare and verify show and judge it.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "tests/client/cli/commands/command_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;
using Arguments = std::vector<std::string>;
using Json = nlohmann::json;

Arguments Layer(const std::string& mode) {
  return {"--input",         "gen:normal,shape=64x128",
          "--weight",        "gen:normal,seed=1,shape=128x128",
          "--grad-output",   "gen:normal,seed=2,shape=64x128",
          "--parallel-mode", mode};
}

class ParallelCommandTest : public CommandTest {};

TEST_F(ParallelCommandTest, VerifyPassesWhereSeveralRanksHaveTheBitsOfOne) {
  const ProcessResult result =
      Quantgate(Arguments{"verify", "--tp", "2", "--recipe", "mxfp8", "--requires-grad", "w"} +
                Layer("column"));
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("PASS"), HasSubstr("mxfp8 / none / auto / tp2"),
                                HasSubstr("Ranks of mxfp8 / none / auto / tp2")));
}

TEST_F(ParallelCommandTest, ExpertsWeightsAreDivided) {
  const Arguments command = {"--layer",
                             "grouped_linear",
                             "--m-splits",
                             "32,0,64",
                             "--input",
                             "gen:normal,shape=96x64",
                             "--weight",
                             "gen:normal,seed=1,shape=128x64",
                             "--weight",
                             "gen:normal,seed=2,shape=128x64",
                             "--weight",
                             "gen:normal,seed=3,shape=128x64",
                             "--grad-output",
                             "gen:normal,seed=4,shape=96x128",
                             "--recipe",
                             "mxfp8",
                             "--parallel-mode",
                             "column",
                             "--tp",
                             "4",
                             "--sequence-parallel"};
  const ProcessResult result = Quantgate(Arguments{"verify", "--requires-grad", "w"} + command);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("PASS"), HasSubstr("mxfp8 / none / auto / tp4 sp")));
  const Json ranks = QuantgateJson(Arguments{"run"} + command)["run"]["variants"][1]["ranks"];
  ASSERT_EQ(ranks.size(), 4u);
  EXPECT_EQ(ranks[3]["outputs"][0]["type"]["shape"], Json({96, 32}));
  EXPECT_EQ(ranks[3]["outputs"][1]["name"], "dx");
  EXPECT_EQ(ranks[3]["outputs"][1]["type"]["shape"], Json({24, 64}));
}

/// Of `path` a copy in which one bit of `name` is another.
std::string WithOneBitFlipped(const std::string& path, const std::string& name,
                              const std::string& copy) {
  TensorFile file = *ReadSafetensors(path);
  for (NamedTensor& tensor : file.tensors) {
    if (tensor.name != name) continue;
    Tensor changed =
        *Tensor::FromBytes(tensor.tensor.dtype(), tensor.tensor.shape(), tensor.tensor.bytes());
    changed.as<uint16_t>()[129] ^= 1;
    tensor.tensor = changed;
  }
  EXPECT_TRUE(WriteSafetensors(copy, file.tensors, file.metadata).ok());
  return copy;
}

TEST_F(ParallelCommandTest, VerifyTakesWhatRunWroteOfSeveralRanks) {
  const std::string path = Path("ranks.safetensors");
  for (const char* mode : {"column", "row"}) {
    for (const bool sequence_parallel : {false, true}) {
      SCOPED_TRACE(absl::StrCat(mode, sequence_parallel ? " sp" : ""));
      Arguments layer = Layer(mode) + Arguments{"--tp", "2", "--recipe", "mxfp8"};
      if (sequence_parallel) layer.push_back("--sequence-parallel");
      ASSERT_EQ(Quantgate(Arguments{"run", "-o", path} + layer).exit_code, 0);
      const TensorFile written = *ReadSafetensors(path);
      ASSERT_TRUE(written.Find("y").ok());
      ASSERT_TRUE(written.Find("rank1.dw").ok());
      const auto verify = [&](const std::string& subject, const Arguments& more = {}) {
        return Quantgate(Arguments{"verify", "--subject", subject} + layer + more);
      };
      ProcessResult result = verify(path);
      EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
      EXPECT_THAT(result.out, HasSubstr("PASS"));
      EXPECT_THAT(result.out,
                  HasSubstr(absl::StrCat(written.tensors.size(), " tensors equal bit for bit")));
      for (const char* name : {"dw", "rank1.dw"}) {
        const std::string other = WithOneBitFlipped(path, name, Path("other.safetensors"));
        result = verify(other);
        EXPECT_EQ(result.exit_code, 1) << result.out << result.err;
        EXPECT_THAT(result.out, HasSubstr(absl::StrCat(name, " differs in 1 of ")));
        EXPECT_EQ(verify(other, {"--only", "y"}).exit_code, 0);
        EXPECT_EQ(verify(other, {"--only", name}).exit_code, 1);
      }
      result = verify(path, {"--require", "bound"});
      EXPECT_EQ(result.exit_code, 2);
      EXPECT_THAT(result.err, HasSubstr("--require: bound, given with --subject and --tp"));
    }
  }
  // One rank's outputs alone lack those of several.
  const Arguments alone = {"--input",  "gen:normal,shape=64x128",
                           "--weight", "gen:normal,seed=1,shape=128x128",
                           "--recipe", "mxfp8"};
  ASSERT_EQ(Quantgate(Arguments{"run", "-o", path} + alone).exit_code, 0);
  const ProcessResult result = Quantgate(
      Arguments{"verify", "--subject", path, "--tp", "2", "--parallel-mode", "column"} + alone);
  EXPECT_EQ(result.exit_code, 1) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("rank0.y"));
}

TEST_F(ParallelCommandTest, VerifyFailsWhereEachRankHasScalesOfItsOwn) {
  const Arguments command =
      Arguments{"verify", "--tp", "2", "--recipe", "fp8_current"} + Layer("column");
  ProcessResult result = Quantgate(command);
  EXPECT_EQ(result.exit_code, 1) << result.out << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("FAIL"), HasSubstr("y of fp8_current / none / auto / tp2 differs")));
  result = Quantgate(command + Arguments{"--require", "bound"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
}

TEST_F(ParallelCommandTest, VerifyHoldsOneRecipeAgainstItsTwin) {
  const ProcessResult result = Quantgate(
      Arguments{"verify", "--tp", "2", "--recipe", "fp8_current,mxfp8"} + Layer("column"));
  EXPECT_EQ(result.exit_code, 2) << result.out;
  EXPECT_THAT(result.err, HasSubstr("--recipe: 2 variants; verify takes one"));
}

// docs/ranks.md section 4.1: what VerifyFailsWhereEachRankHasScalesOfItsOwn lacks.
TEST_F(ParallelCommandTest, VerifyPassesUnderTheAmaxOfAllRanks) {
  const std::string html = Path("amax.html");
  const Arguments command = Arguments{"verify",
                                      "--tp",
                                      "2",
                                      "--recipe",
                                      "fp8_current",
                                      "--requires-grad",
                                      "w",
                                      "--amax-group",
                                      "weight=tensor",
                                      "--amax-group",
                                      "grad_output=tensor"} +
                            Layer("column");
  ProcessResult result = Quantgate(command + Arguments{"--report", html});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("PASS"), HasSubstr("tp2 amax:weight=tensor,grad_output=tensor"),
                    HasSubstr("amax over"), HasSubstr("tensor (ranks 0, 1)"),
                    HasSubstr("reduce amax of weight over tensor")));
  EXPECT_THAT(ReadFile(html),
              AllOf(HasSubstr("<h4>Amaxes over groups</h4>"), HasSubstr("tensor (ranks 0, 1)")));
  const Json json = QuantgateJson(command)["run"];
  const Json& casts = json["variants"][1]["ranks"][1]["quantizations"];
  EXPECT_EQ(casts[0]["tensor"], "x");
  EXPECT_EQ(casts[0]["amax_group"], "");
  EXPECT_EQ(casts[1]["tensor"], "weight");
  EXPECT_EQ(casts[1]["amax_group"], "tensor (ranks 0, 1)");
}

TEST_F(ParallelCommandTest, CodesUnderOtherScalesAreNotJoined) {
  const ProcessResult result =
      Quantgate(Arguments{"run", "--tp", "2", "--sequence-parallel", "--recipe", "fp8_current",
                          "--amax-group", "input=none"} +
                Layer("column"));
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("amax_groups[input]: none"), HasSubstr("tensor (ranks 0, 1)"),
                    HasSubstr("scale_inv differs between ranks: rank 0 has"),
                    Not(HasSubstr("accepted plan"))));
}

TEST_F(ParallelCommandTest, AmaxGroupsThatCannotBeAreRefused) {
  const auto refusal = [&](const Arguments& options) {
    const ProcessResult result = Quantgate(Arguments{"run"} + options + Layer("column"));
    EXPECT_EQ(result.exit_code, 2) << result.out;
    return result.err;
  };
  const Arguments fp8 = {"--tp", "2", "--recipe", "fp8_current"};
  EXPECT_THAT(refusal({"--recipe", "fp8_current", "--amax-group", "input=world"}),
              HasSubstr("--amax-group: given without --tp"));
  EXPECT_THAT(refusal(fp8 + Arguments{"--amax-group", "world"}),
              HasSubstr("--amax-group: world; it is ROLE=GROUP"));
  EXPECT_THAT(refusal(fp8 + Arguments{"--amax-group", "input=none", "--amax-group", "input=world"}),
              HasSubstr("input has a group already"));
  EXPECT_THAT(refusal(fp8 + Arguments{"--amax-group", "x=world"}),
              HasSubstr("amaxes are reduced by role: input, weight or grad_output"));
  EXPECT_THAT(refusal(fp8 + Arguments{"--amax-group", "input=everyone"}),
              HasSubstr("known: default, none, tensor, data, world, or lists of ranks"));
  EXPECT_THAT(refusal(fp8 + Arguments{"--amax-group", "input=0/2"}),
              HasSubstr("the lists must have every rank from 0 to 1 once"));
  EXPECT_THAT(refusal({"--tp", "2", "--recipe", "mxfp8", "--amax-group", "input=world"}),
              HasSubstr("recipe mxfp8 has no amax of a whole input tensor"));
}

TEST_F(ParallelCommandTest, ReportsHaveEachRank) {
  const std::string html = Path("ranks.html");
  const Json json = QuantgateJson(
      Arguments{"run", "--tp", "2", "--sequence-parallel", "--recipe", "bf16", "--report", html} +
      Layer("row"))["run"];
  EXPECT_EQ(json["reference"], 0);
  EXPECT_TRUE(json["variants"][0]["ranks"].empty());
  const Json& ranks = json["variants"][1]["ranks"];
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[1]["rank"], 1);
  EXPECT_EQ(ranks[1]["outputs"][0]["name"], "y");
  EXPECT_EQ(ranks[1]["outputs"][0]["type"]["shape"], Json({32, 128}));
  EXPECT_NE(ranks[0]["outputs"][0]["fingerprint"], ranks[1]["outputs"][0]["fingerprint"]);
  std::vector<std::string> stages;
  for (const Json& stage : ranks[0]["stages"]) stages.push_back(stage["stage"]);
  EXPECT_THAT(stages, ::testing::Contains(HasSubstr("reduce-scatter y")));
  const std::string page = ReadFile(html);
  EXPECT_THAT(page, AllOf(HasSubstr("<h4>Ranks</h4>"), HasSubstr("Time by stage of rank 1"),
                          HasSubstr(ranks[1]["outputs"][0]["fingerprint"].get<std::string>())));
}

// What a recipe cannot overlap runs without, beside a variant that asks for none.
TEST_F(ParallelCommandTest, OverlapsStandBesideEachOther) {
  const Arguments command =
      Arguments{"compare",        "--tp",      "2",    "--sequence-parallel", "--recipe",
                "bf16,fp8_block", "--overlap", "none", "--overlap",           "default"} +
      Layer("column");
  const Json variants = QuantgateJson(command)["run"]["variants"];
  std::vector<std::string> labels;
  for (const Json& variant : variants) labels.push_back(variant["label"]);
  EXPECT_THAT(labels, ElementsAre("bf16 / none / auto", "bf16 / none / auto / tp2 sp",
                                  "bf16 / none / auto / tp2 sp overlap:default",
                                  "fp8_block / none / auto", "fp8_block / none / auto / tp2 sp",
                                  "fp8_block / none / auto / tp2 sp overlap:default"));
  const auto fingerprint = [&](size_t variant, const char* output) {
    for (const Json& each : variants[variant]["outputs"]) {
      if (each["tensor"]["name"] == output) return each["tensor"]["fingerprint"].dump();
    }
    return std::string("absent");
  };
  for (const char* output : {"y", "dx", "dw"}) {
    EXPECT_NE(fingerprint(1, output), "absent");
    EXPECT_EQ(fingerprint(1, output), fingerprint(2, output)) << output;
    EXPECT_EQ(fingerprint(4, output), fingerprint(5, output)) << output;
  }
  EXPECT_EQ(variants[2]["ranks"][0]["overlaps"].size(), 3u);
  EXPECT_TRUE(variants[5]["ranks"][0]["overlaps"].empty());
  EXPECT_THAT(variants[5]["notes"].dump(),
              HasSubstr("fprop, dgrad, wgrad run without overlap: recipe is fp8_block"));
  EXPECT_THAT(variants[2].value("notes", Json()).dump(), Not(HasSubstr("without overlap")));
}

TEST_F(ParallelCommandTest, OutputsOfRanksAreWrittenWholeAndInParts) {
  const std::string path = Path("ranks.safetensors"), parts = Path("sp.safetensors");
  const Arguments run = Arguments{"run", "--tp", "2", "--recipe", "mxfp8"} + Layer("column");
  ASSERT_EQ(Quantgate(run + Arguments{"-o", path}).exit_code, 0);
  ASSERT_EQ(Quantgate(run + Arguments{"--sequence-parallel", "-o", parts}).exit_code, 0);
  EXPECT_EQ(ReadSafetensors(path)->metadata.at("quantgate.ranks"), "2");
  // Without sequence parallelism every rank has all of dx: that is the whole.
  const auto names = [](const std::string& of) {
    const TensorFile file = *ReadSafetensors(of);
    std::vector<std::string> all;
    for (const NamedTensor& tensor : file.tensors) all.push_back(tensor.name);
    return all;
  };
  EXPECT_THAT(names(path),
              UnorderedElementsAre("y", "dx", "dw", "rank0.y", "rank0.dw", "rank1.y", "rank1.dw"));
  EXPECT_THAT(names(parts), UnorderedElementsAre("y", "dx", "dw", "rank0.y", "rank0.dx", "rank0.dw",
                                                 "rank1.y", "rank1.dx", "rank1.dw"));
  // Rows of dx and of dw follow each other, rank by rank; y is divided along its columns.
  for (const std::string name : {"dx", "dw"}) {
    EXPECT_EQ(BytesOf(parts, "rank0." + name) + BytesOf(parts, "rank1." + name),
              BytesOf(parts, name));
  }
  const std::string y = BytesOf(parts, "y");
  const size_t half = y.size() / 64 / 2;  // Of a row.
  std::string joined;
  for (size_t row = 0; row < 64; ++row) {
    for (const std::string rank : {"rank0.y", "rank1.y"}) {
      joined += BytesOf(parts, rank).substr(row * half, half);
    }
  }
  EXPECT_EQ(joined, y);
}

TEST_F(ParallelCommandTest, OnlyTwinsOfOneVariantAreWritten) {
  const ProcessResult result =
      Quantgate(Arguments{"run", "--tp", "2", "--recipe", "mxfp8", "--overlap", "none", "--overlap",
                          "default", "--sequence-parallel", "-o", Path("out.safetensors")} +
                Layer("column"));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("3 variants; it takes the outputs of one"));
}

TEST_F(ParallelCommandTest, AGemmSaysThatItsOperandWasQuantizedTwice) {
  const std::string json_path = Path("hybrid.json"), html_path = Path("hybrid.html");
  const ProcessResult result =
      Quantgate(Arguments{"run", "--tp", "2", "--sequence-parallel", "--recipe",
                          "hybrid:fprop=mxfp8,dgrad=mxfp8,wgrad=fp8_block", "--report", json_path,
                          "--report", html_path} +
                Layer("column"));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string note =
      "x: quantized twice, the ranks' fp8_block (f8_e4m3 columnwise codes) are dequantized, "
      "gathered "
      "and quantized again";
  EXPECT_THAT(result.out, HasSubstr("GEMM of ranks 0, 1: wgrad dw: " + note));
  EXPECT_THAT(ReadFile(html_path), HasSubstr("ranks 0, 1: wgrad dw: x: quantized twice"));
  const Json json = Json::parse(ReadFile(json_path));
  const Json& gemms = json["run"]["variants"][1]["ranks"][1]["gemms"];
  EXPECT_EQ(gemms.back()["output"], "dw");
  EXPECT_EQ(gemms.back()["note"], note);
  EXPECT_EQ(json["run"]["variants"][0]["gemms"].back()["note"], "");
}

TEST_F(ParallelCommandTest, OverlapIsShownAsNumbersAndAsAPicture) {
  const std::string html = Path("overlap.html");
  const Arguments command =
      Arguments{"run",     "--tp",     "2", "--sequence-parallel", "--recipe", "bf16", "--overlap",
                "default", "--report", html} +
      Layer("row");
  const Json json = QuantgateJson(command)["run"];
  EXPECT_EQ(json["variants"][1]["label"], "bf16 / none / auto / tp2 sp overlap:default");
  const Json& overlaps = json["variants"][1]["ranks"][1]["overlaps"];
  ASSERT_EQ(overlaps.size(), 2u);
  EXPECT_EQ(overlaps[0]["stage"], "fprop");
  EXPECT_GT(overlaps[0]["total_seconds"], 0);
  EXPECT_TRUE(overlaps[0].contains("exposed_seconds_bits"));
  EXPECT_FALSE(overlaps[0]["tasks"].empty());
  const std::string page = ReadFile(html);
  EXPECT_THAT(page, AllOf(HasSubstr("Communication beside GEMMs: fprop"),
                          HasSubstr("aria-label=\"tasks over time by rank\""),
                          HasSubstr("title=\"rank 1, compute, ")));
  const ProcessResult text = Quantgate(command);
  EXPECT_THAT(text.out, AllOf(HasSubstr("Communication beside GEMMs"), HasSubstr("exposed"),
                              HasSubstr("efficiency")));
}

TEST_F(ParallelCommandTest, ComparePutsATwinBehindEachVariant) {
  const Json json =
      QuantgateJson(Arguments{"compare", "--tp", "4", "--reduction-profile", "ub_p2p", "--recipe",
                              "bf16,mxfp8", "--reference", "mxfp8/none/auto/tp4 ub_p2p"} +
                    Layer("column"))["run"];
  ASSERT_EQ(json["variants"].size(), 4u);
  EXPECT_EQ(json["variants"][0]["label"], "bf16 / none / auto");
  EXPECT_EQ(json["variants"][1]["label"], "bf16 / none / auto / tp4 ub_p2p");
  EXPECT_EQ(json["reference"], 3);
}

TEST_F(ParallelCommandTest, ExpertsOnSeveralRanksHaveTheBitsOfOne) {
  Arguments experts = {"--layer",       "grouped_linear",
                       "--m-splits",    "32,0,96",
                       "--input",       "gen:normal,shape=128x64",
                       "--grad-output", "gen:normal,seed=2,shape=128x96",
                       "--recipe",      "mxfp8"};
  for (const char* seed : {"3", "4", "5"}) {
    experts =
        experts + Arguments{"--weight", absl::StrCat("gen:normal,seed=", seed, ",shape=96x64")};
  }
  const ProcessResult result = Quantgate(Arguments{"verify", "--ep", "3"} + experts);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("PASS"), HasSubstr("mxfp8 / none / auto / ep3"), HasSubstr("dw.2")));
  const ProcessResult many = Quantgate(Arguments{"run", "--ep", "4"} + experts);
  EXPECT_EQ(many.exit_code, 2);
  EXPECT_THAT(many.err, HasSubstr("--ep is 4: each rank has an expert at least, of 3"));
  const ProcessResult both = Quantgate(Arguments{"run", "--ep", "2", "--tp", "2"} + experts);
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.err, HasSubstr("with --ep the ranks of a copy divide experts alone"));
}

/// Two experts, each on two of four ranks.
const Arguments kCopiesOfExperts = {"--ep",          "2",
                                    "--dp",          "2",
                                    "--layer",       "grouped_linear",
                                    "--m-splits",    "64,128",
                                    "--input",       "gen:normal,shape=192x64",
                                    "--grad-output", "gen:normal,seed=2,shape=192x96",
                                    "--weight",      "gen:normal,seed=3,shape=96x64",
                                    "--weight",      "gen:normal,seed=4,shape=96x64"};

TEST_F(ParallelCommandTest, CopiesOfExpertsSumTheirGradients) {
  const ProcessResult result = Quantgate(Arguments{"run"} + kCopiesOfExperts +
                                         Arguments{"--recipe", "mxfp8", "--require", "bound"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("mxfp8 / none / auto / ep2 dp2"), HasSubstr("dw.1"),
                    HasSubstr("a sum over the ranks that hold the expert, rank_asc_fp32")));
}

// docs/ranks.md section 4.1: rows of every expert on two copies under the amax of all.
TEST_F(ParallelCommandTest, CopiesOfExpertsShareTheAmaxOfTheirRows) {
  const Arguments experts =
      kCopiesOfExperts + Arguments{"--recipe", "fp8_current", "--requires-grad", "x"};
  const Arguments named = {"--amax-group", "input=data", "--amax-group", "grad_output=data"};
  EXPECT_EQ(Quantgate(Arguments{"verify"} + experts).exit_code, 1);
  const ProcessResult result = Quantgate(Arguments{"verify"} + experts + named);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("PASS"), HasSubstr("ep2 dp2 amax:input=data,grad_output=data"),
                    HasSubstr("data (ranks 1, 3)"), HasSubstr("reduce amax of x over data")));
  const ProcessResult apart =
      Quantgate(Arguments{"run"} + experts + Arguments{"--amax-group", "input=0,1/2,3"});
  EXPECT_EQ(apart.exit_code, 2);
  EXPECT_THAT(apart.err,
              HasSubstr("--amax-group input is 0,1/2,3: each expert is whole on its rank"));
}

/// The words of a command that a report prints, without the program's name; none needs quotes.
Arguments WordsOf(const Json& run) {
  std::istringstream words(run["reproduce"].get<std::string>());
  Arguments arguments;
  for (std::string word; words >> word;) arguments.push_back(word);
  EXPECT_EQ(arguments.empty() ? "" : arguments[0], "quantgate");
  if (!arguments.empty()) arguments.erase(arguments.begin());
  return arguments;
}

TEST_F(ParallelCommandTest, RepeatedRunsHaveTheSameRanks) {
  const Arguments experts = {"--layer",       "grouped_linear",
                             "--m-splits",    "64,128",
                             "--input",       "gen:normal,shape=192x64",
                             "--grad-output", "gen:normal,seed=2,shape=192x96",
                             "--weight",      "gen:normal,seed=3,shape=96x64",
                             "--weight",      "gen:normal,seed=4,shape=96x64",
                             "--recipe",      "bf16"};
  const Arguments cases[] = {{"--ep", "2", "--dp", "2"},
                             {"--dp", "3", "--ep", "2", "--reduction-profile", "ub_p2p"},
                             {"--tp", "3", "--parallel-mode", "column", "--sequence-parallel"}};
  for (const Arguments& ranks : cases) {
    SCOPED_TRACE(ranks[0]);
    const Json first = QuantgateJson(Arguments{"run"} + ranks + experts, Where::kServer)["run"];
    const Json again = QuantgateJson(WordsOf(first), Where::kServer)["run"];
    EXPECT_NE(again["run_id"], first["run_id"]);
    EXPECT_EQ(again["request"], first["request"]);
    EXPECT_EQ(again["reference"], first["reference"]);
    ASSERT_EQ(first["variants"].size(), 2u);
    EXPECT_EQ(first["variants"][1]["ranks"].size(), again["variants"][1]["ranks"].size());
    ASSERT_EQ(again["variants"].size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      const Json &mine = again["variants"][i], &theirs = first["variants"][i];
      EXPECT_EQ(mine["label"], theirs["label"]);
      ASSERT_EQ(mine["outputs"].size(), theirs["outputs"].size());
      for (size_t output = 0; output < mine["outputs"].size(); ++output) {
        EXPECT_EQ(mine["outputs"][output]["tensor"], theirs["outputs"][output]["tensor"]);
      }
    }
  }
}

TEST_F(ParallelCommandTest, BadInput) {
  const Arguments run = Arguments{"run", "--recipe", "bf16"} + Layer("column");
  const auto refusal = [&](const Arguments& more) {
    const ProcessResult result = Quantgate(run + more);
    EXPECT_EQ(result.exit_code, 2) << result.out << result.err;
    return result.err;
  };
  EXPECT_THAT(refusal({"--tp", "9"}), HasSubstr("--tp"));
  EXPECT_THAT(refusal({"--sequence-parallel"}),
              HasSubstr("--sequence-parallel: given without --tp"));
  EXPECT_THAT(refusal({"--tp", "3"}), HasSubstr("multiple of 3"));
  EXPECT_THAT(refusal({"--dp", "2"}), HasSubstr("--dp is 2: only sessions, whose optimizer sums"));
  EXPECT_THAT(refusal({"--overlap", "default"}), HasSubstr("--overlap: given without --tp"));
  EXPECT_THAT(refusal({"--tp", "2", "--overlap", "fprop=none"}),
              HasSubstr("\"fprop=none\" is none of column_fprop"));
  EXPECT_THAT(refusal({"--tp", "2", "--overlap", "default"}),
              HasSubstr("--sequence-parallel is false"));
  EXPECT_THAT(refusal({"--tp", "2", "--reduction-profile", "fast"}), HasSubstr("rank_asc_fp32"));
  EXPECT_THAT(refusal({"--tp", "2", "--parallel-backend", "nccl"}), HasSubstr("needs a GPU"));
  EXPECT_THAT(refusal({}), HasSubstr("no variant is parallel"));
  const ProcessResult verify = Quantgate(Arguments{"verify", "--recipe", "bf16"} + Layer("column"));
  EXPECT_EQ(verify.exit_code, 2);
  EXPECT_THAT(verify.err, HasSubstr("--subject: absent"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
