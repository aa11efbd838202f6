// quantize, dequantize, gemm, diff, tensor, info, doctor and completion as processes.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/client/cli/commands/command_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Arguments = std::vector<std::string>;
using Json = nlohmann::json;

class TensorCommandTest : public CommandTest {
 protected:
  void Quantize(const std::string& tensor, const std::string& role, const std::string& path,
                Where where = Where::kInProcess) {
    const ProcessResult result = Quantgate({"quantize", tensor, "--recipe", "fp8_current", "--role",
                                            role, "--usage", "rowwise,columnwise", "-o", path},
                                           where);
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
};

TEST_F(TensorCommandTest, QuantizeWritesTheExportNames) {
  const std::string path = Path("q.safetensors");
  Quantize(Sample("fc1.x"), "input", path);
  EXPECT_THAT(ContentsOf(path),
              ::testing::UnorderedElementsAre(
                  "rowwise_data f8_e4m3[256x512]", "rowwise_scale_inv f32[1]",
                  "columnwise_data f8_e4m3[512x256]", "columnwise_scale_inv f32[1]",
                  "amax_rowwise f32[1]", "amax_columnwise f32[1]", "scale f32[1]"));
  const std::string rows = BytesOf(path, "rowwise_data"),
                    columns = BytesOf(path, "columnwise_data");
  for (int row : {0, 17, 255}) {
    for (int column : {0, 3, 511}) EXPECT_EQ(rows[row * 512 + column], columns[column * 256 + row]);
  }
  Quantize(Sample("fc1.dy"), "grad_output", Path("g.safetensors"));
  EXPECT_THAT(ContentsOf(Path("g.safetensors")),
              ::testing::Contains("rowwise_data f8_e5m2[256x2048]"));
  Quantize(Sample("fc1.x"), "input", Path("remote.safetensors"), Where::kServer);
  EXPECT_EQ(ReadFile(path), ReadFile(Path("remote.safetensors")));
}

TEST_F(TensorCommandTest, DequantizeReadsWhatQuantizeWrote) {
  const std::string codes = Path("q.safetensors");
  Quantize(Sample("fc1.x"), "input", codes);
  for (const char* usage : {"rowwise", "columnwise"}) {
    const ProcessResult result = Quantgate(
        {"dequantize", codes, "--usage", usage, "-o", Path(std::string(usage) + ".safetensors")});
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  EXPECT_THAT(ContentsOf(Path("rowwise.safetensors")), ElementsAre("data f32[256x512]"));
  EXPECT_EQ(BytesOf(Path("rowwise.safetensors"), "data"),
            BytesOf(Path("columnwise.safetensors"), "data"));
}

TEST_F(TensorCommandTest, QuantizeAndGemmMakeTheLayersForwardPass) {
  Quantize(Sample("fc1.x"), "input", Path("x.safetensors"));
  Quantize(Sample("fc1.weight"), "weight", Path("w.safetensors"));
  ProcessResult result = Quantgate({"gemm",
                                    "--a",
                                    Path("x.safetensors:rowwise_data"),
                                    "--a-scale-inv",
                                    Path("x.safetensors:rowwise_scale_inv"),
                                    "--b",
                                    Path("w.safetensors:rowwise_data"),
                                    "--b-scale-inv",
                                    Path("w.safetensors:rowwise_scale_inv"),
                                    "--bias",
                                    Sample("fc1.bias"),
                                    "--a-scaling",
                                    "tensor",
                                    "--b-scaling",
                                    "tensor",
                                    "--arithmetic",
                                    "sm90:fast",
                                    "--out-dtype",
                                    "bf16",
                                    "-o",
                                    Path("d.safetensors")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("ran: sm90:fast"));
  result = Quantgate(Arguments{"run"} + LayerArguments() +
                     Arguments{"--recipe", "fp8_current", "-o", Path("y.safetensors")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(BytesOf(Path("d.safetensors"), "d"), BytesOf(Path("y.safetensors"), "y"));
}

TEST_F(TensorCommandTest, DiffOfFilesAndTensors) {
  const std::string a = Path("a.safetensors"), b = Path("b.safetensors");
  const float values[] = {1.0f, 2.0f, 3.0f, 4.0f};
  float others[] = {1.0f, 2.0f, 3.0000002f, 4.0f};
  const auto tensor = [](const float* data) {
    return *Tensor::FromBytes(DType::kF32, {2, 2}, std::as_bytes(std::span(data, 4)));
  };
  ASSERT_TRUE(WriteSafetensors(a, {{"t", tensor(values)}}, {}).ok());
  ASSERT_TRUE(WriteSafetensors(b, {{"t", tensor(others)}}, {}).ok());

  EXPECT_EQ(Quantgate({"diff", a, a}).exit_code, 0);
  ProcessResult result = Quantgate({"diff", a, b, "--report", Path("d.json")});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(result.out, HasSubstr("first (1, 0): 3 [0x40400000] against 3.0000002 [0x40400001]"));
  const Json json = Json::parse(ReadFile(Path("d.json")));
  EXPECT_EQ(json["comparisons"][0]["parity"]["worst_ulp"], 1);
  EXPECT_EQ(Quantgate({"diff", a, b, "--max-ulp", "1"}).exit_code, 0);
  EXPECT_EQ(Quantgate({"diff", a, b, "--max-ulp", "0"}).exit_code, 1);
  EXPECT_EQ(Quantgate({"diff", a + ":t", b + ":t"}, Where::kServer).exit_code, 1);
  EXPECT_EQ(Quantgate({"diff", a + ":t@u8", a + ":t@u8"}).exit_code, 0);
  // Zeros of both signs are 0 ulp apart, and other bits.
  const float zeros[] = {0.0f, 0.0f, 0.0f, 0.0f}, signed_zeros[] = {0.0f, -0.0f, 0.0f, 0.0f};
  ASSERT_TRUE(WriteSafetensors(a, {{"t", tensor(zeros)}}, {}).ok());
  ASSERT_TRUE(WriteSafetensors(b, {{"t", tensor(signed_zeros)}}, {}).ok());
  EXPECT_EQ(Quantgate({"diff", a, b}).exit_code, 1);
  EXPECT_EQ(Quantgate({"diff", a, b, "--max-ulp", "0"}).exit_code, 0);
  EXPECT_EQ(Quantgate({"diff", "gen:normal,seed=4,shape=64x64", "gen:normal,seed=4,shape=64x64"})
                .exit_code,
            0);
  EXPECT_EQ(Quantgate({"diff", "gen:normal,seed=4,shape=64x64", "gen:normal,seed=5,shape=64x64"})
                .exit_code,
            1);

  ASSERT_TRUE(WriteSafetensors(b, {{"t", tensor(values)}, {"u", tensor(values)}}, {}).ok());
  result = Quantgate({"diff", a, b});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("u: only in " + b));
}

TEST_F(TensorCommandTest, DiffOfFilesWithoutTensorsIsRefused) {
  const std::string none = Path("none.safetensors"), some = Path("some.safetensors");
  ASSERT_TRUE(WriteSafetensors(none, {}, {}).ok());
  ASSERT_TRUE(WriteSafetensors(some, {{"t", *Tensor::FromScalar(1)}}, {}).ok());
  const ProcessResult result = Quantgate({"diff", none, none});
  EXPECT_EQ(result.exit_code, 2) << result.out;
  EXPECT_THAT(result.err, HasSubstr("nothing to compare"));
  EXPECT_EQ(Quantgate({"diff", none, some}).exit_code, 1);
  EXPECT_EQ(Quantgate({"diff", some, none}).exit_code, 1);
}

// The codes of the largest number and of infinity are neighbours, their values are not.
TEST_F(TensorCommandTest, DiffHoldsAnInfinityToBeWithinNoUlpOfANumber) {
  const auto write = [&](const char* name, uint32_t bits) {
    const Tensor tensor = *Tensor::FromBytes(DType::kF32, {1}, std::as_bytes(std::span(&bits, 1)));
    EXPECT_TRUE(WriteNpy(Path(name), tensor).ok());
    return Path(name);
  };
  const std::string max = write("max.npy", 0x7F7FFFFF), inf = write("inf.npy", 0x7F800000);
  for (const auto& [subject, reference] : {std::pair(max, inf), std::pair(inf, max)}) {
    const ProcessResult result = Quantgate({"diff", subject, reference, "--max-ulp", "1"});
    EXPECT_EQ(result.exit_code, 1) << result.out;
    EXPECT_THAT(result.out, HasSubstr("an infinity against another value"));
  }
  EXPECT_EQ(Quantgate({"diff", inf, inf, "--max-ulp", "1"}).exit_code, 0);
  EXPECT_EQ(
      Quantgate({"diff", inf, write("minus.npy", 0xFF800000), "--max-ulp", "9223372036854775806"})
          .exit_code,
      1);
}

// Integers are said as integers, and a distance beyond what is counted as "at least".
TEST_F(TensorCommandTest, DiffSaysIntegersExactly) {
  const int64_t left[] = {1234567890123456789, 7, INT64_MAX, 16777217},
                right[] = {1234567890123456788, 7, INT64_MIN, 16777216};
  const auto write = [&](const char* name, const int64_t* values, int64_t count) {
    const Tensor tensor =
        *Tensor::FromBytes(DType::kI64, {count}, std::as_bytes(std::span(values, size_t(count))));
    EXPECT_TRUE(WriteNpy(Path(name), tensor).ok());
    return Path(name);
  };
  const std::string a = write("a.npy", left, 4), b = write("b.npy", right, 4);
  const ProcessResult all = Quantgate({"diff", a, b});
  EXPECT_EQ(all.exit_code, 1);
  EXPECT_THAT(all.out, AllOf(HasSubstr("1234567890123456789 [0x112210f47de98115] against "
                                       "1234567890123456788 [0x112210f47de98114]"),
                             HasSubstr("9223372036854775807 [0x7fffffffffffffff] against "
                                       "-9223372036854775808 [0x8000000000000000]"),
                             HasSubstr("at least 9,223,372,036,854,775,806")));
  // 2^64 - 1 apart: within nothing that can be asked for.
  EXPECT_EQ(Quantgate({"diff", a, b, "--max-ulp", "9223372036854775806"}).exit_code, 1);
  const Json json = Json::parse(Quantgate({"diff", a, b, "--format", "json"}).out);
  const Json& parity = json["comparisons"][0]["parity"];
  EXPECT_EQ(parity["first"]["subject"].dump(), "1234567890123456789");
  EXPECT_EQ(parity["worst"]["reference"].dump(), "-9223372036854775808");
  // Distances that are counted are exact.
  const std::string c = write("c.npy", left, 2), d = write("d.npy", right, 2);
  EXPECT_THAT(Quantgate({"diff", c, d}).out, Not(HasSubstr("at least")));
  EXPECT_EQ(Quantgate({"diff", c, d, "--max-ulp", "1"}).exit_code, 0);
  // Nothing is looked for, and --tried says why.
  EXPECT_THAT(Quantgate({"diff", a, b, "--tried"}).out,
              HasSubstr("not tried: tensor: all: a hypothesis predicts floating-point numbers, and "
                        "the elements are i64"));
}

TEST_F(TensorCommandTest, NanAndNegativeZeroAreBits) {
  const uint32_t left[] = {0x7FC00000, 0x00000000}, right[] = {0x7FC00001, 0x80000000};
  for (const auto& [name, bits] : {std::pair{"l", left}, {"r", right}}) {
    const Tensor tensor = *Tensor::FromBytes(DType::kF32, {2}, std::as_bytes(std::span(bits, 2)));
    ASSERT_TRUE(WriteNpy(Path(std::string(name) + ".npy"), tensor).ok());
  }
  const ProcessResult result =
      Quantgate({"diff", Path("l.npy"), Path("r.npy"), "--format", "json"});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  const Json parity = Json::parse(result.out)["comparisons"][0]["parity"];
  EXPECT_EQ(parity["mismatch_count"], 2);
  EXPECT_EQ(parity["first"]["subject"], "NaN");
  EXPECT_EQ(parity["first"]["subject_bits"], "0x7fc00000");
}

TEST_F(TensorCommandTest, PutListStatGet) {
  const std::string file = QUANTGATE_SOURCE_DIR "/data/bytegpt_block1.safetensors";
  for (const Where where : {Where::kInProcess, Where::kServer}) {
    Json json = QuantgateJson({"tensor", "put", Sample("fc1.x"), Sample("fc1.bias")}, where);
    ASSERT_EQ(json["tensors"].size(), 2u);
    const std::string digest = "digest:" + json["tensors"][0]["digest"].get<std::string>();
    json = QuantgateJson({"tensor", "ls"}, where);
    ASSERT_EQ(json["tensors"].size(), 2u);
    EXPECT_EQ(json["tensors"][0]["name"], "fc1.bias");
    json = QuantgateJson({"tensor", "stat", digest}, where);
    EXPECT_EQ(json["tensors"][0]["type"]["shape"], Json({256, 512}));
    int64_t counted = json["tensors"][0]["statistics"]["zero_count"];
    for (const Json& bucket : json["tensors"][0]["statistics"]["exponent_histogram"]) {
      counted += bucket["value"].get<int64_t>();
    }
    EXPECT_EQ(counted, 256 * 512);
    const std::string copy = Path("copy.safetensors");
    ASSERT_EQ(Quantgate({"tensor", "get", digest, "-o", copy}, where).exit_code, 0);
    EXPECT_EQ(BytesOf(copy, "fc1.x"), BytesOf(file, "fc1.x"));
  }
  const ProcessResult put = Quantgate({"tensor", "put", Sample("fc1.x")});
  EXPECT_THAT(put.err, HasSubstr("0 B sent"));
}

TEST_F(TensorCommandTest, GenerateIsTheSameEverywhere) {
  const std::string spec = "specials,seed=9,shape=100x37,dtype=f16";
  const std::string local = Path("l.npy"), remote = Path("r.npy");
  ASSERT_EQ(Quantgate({"tensor", "gen", spec, "-o", local}).exit_code, 0);
  ASSERT_EQ(Quantgate({"tensor", "gen", "gen:" + spec, "-o", remote}, Where::kServer).exit_code, 0);
  EXPECT_EQ(ReadFile(local), ReadFile(remote));
  EXPECT_EQ(ReadNpy(local)->shape(), (Shape{100, 37}));
}

TEST_F(TensorCommandTest, InfoAndDoctor) {
  const Json info = QuantgateJson({"info"}, Where::kServer);
  EXPECT_EQ(info["recipes"][0]["name"], "bf16");
  EXPECT_EQ(info["layers"][0], "linear");
  const Json doctor = QuantgateJson({"doctor"});
  EXPECT_EQ(doctor["healthy"], true);
  for (const Json& check : doctor["checks"]) EXPECT_NE(check["result"], "FAILED") << check;
  const ProcessResult unreachable =
      Quantgate({"doctor", "--server", "unix:" + Path("nobody.sock")});
  EXPECT_EQ(unreachable.exit_code, 4);
  EXPECT_THAT(unreachable.out, HasSubstr("scalar = "));
}

TEST_F(TensorCommandTest, CompletionScripts) {
  const ProcessResult bash = Quantgate({"completion", "bash"});
  ASSERT_EQ(bash.exit_code, 0);
  WriteFile(Path("completion.bash"), bash.out);
  const auto complete = [&](const std::string& words, int index) {
    const std::string script = "source " + Path("completion.bash") + "; COMP_WORDS=(" + words +
                               "); COMP_CWORD=" + std::to_string(index) +
                               "; _quantgate; echo \"${COMPREPLY[@]}\"";
    const ProcessResult result = RunProcess({"/bin/bash", "-c", script});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  EXPECT_EQ(complete("quantgate comp", 1), "compare completion\n");
  EXPECT_EQ(complete("quantgate tensor ''", 2).substr(0, 20), "put get ls stat gen ");
  EXPECT_EQ(complete("quantgate run --grad", 2), "--grad-output\n");
  EXPECT_EQ(complete("quantgate quantize x --role ''", 4), "input weight grad_output\n");
  EXPECT_EQ(complete("quantgate run --format j", 3), "json jsonl\n");
  EXPECT_EQ(complete("quantgate completion ''", 2), "bash zsh fish\n");
  // Files, which bash itself completes.
  EXPECT_EQ(complete("quantgate run --input ''", 3), "\n");
  EXPECT_EQ(complete("quantgate diff ''", 2), "\n");
  EXPECT_EQ(complete("quantgate diff --max", 2), "--max-ulp\n");
  EXPECT_THAT(Quantgate({"completion", "zsh"}).out, StartsWith("#compdef quantgate"));
  EXPECT_THAT(Quantgate({"completion", "fish"}).out,
              AllOf(HasSubstr("complete -c quantgate -n __fish_use_subcommand -a run"),
                    HasSubstr("-n '__fish_seen_subcommand_from run; and not "
                              "__fish_seen_subcommand_from tensor session scenario' -l layer"),
                    HasSubstr("from completion; and not __fish_seen_subcommand_from tensor session "
                              "scenario' -f -a 'bash zsh fish'")));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
