// What somebody meets who uses `quantgate` for the first time: refusals in the words of the command
// line, names of other libraries, slips of the fingers.
#include <gmock/gmock.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/client/cli/commands/command_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Arguments = std::vector<std::string>;

class FirstUseTest : public CommandTest {
 protected:
  struct Case {
    Arguments arguments;
    std::string words;
  };

  /// Each is refused with exit code 2 and these words on stderr.
  void ExpectRefused(const std::vector<Case>& cases) {
    for (const Case& one : cases) {
      std::string line = "quantgate";
      for (const std::string& argument : one.arguments) line += " " + argument;
      SCOPED_TRACE(line);
      const ProcessResult result = Quantgate(one.arguments);
      EXPECT_EQ(result.exit_code, 2) << result.err;
      EXPECT_THAT(result.err, HasSubstr(one.words));
      EXPECT_THAT(result.err, AllOf(Not(HasSubstr("spec.")), Not(HasSubstr("field: "))));
    }
  }

  static Arguments Run(const Arguments& more) {
    return Arguments{"run", "--input", "gen:normal,shape=16x32", "--weight",
                     "gen:normal,seed=1,shape=16x32"} +
           more;
  }
};

/// The safetensors file with a tensor "mask" of dtype BOOL [3] at its end, as a checkpoint has.
void AddMask(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  uint64_t length;
  ASSERT_GE(bytes.size(), sizeof length);
  std::memcpy(&length, bytes.data(), sizeof length);
  const std::string data = bytes.substr(sizeof length + length);
  nlohmann::json header = nlohmann::json::parse(bytes.substr(sizeof length, length));
  header["mask"] = {
      {"dtype", "BOOL"}, {"shape", {3}}, {"data_offsets", {data.size(), data.size() + 3}}};
  const std::string text = header.dump();
  length = text.size();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&length), sizeof length);
  out << text << data << std::string(3, '\1');
}

// A dtype that QuantGate has not closes no file to those who ask for its other tensors.
TEST_F(FirstUseTest, AMaskBesideTensorsIsLeftAlone) {
  const std::string q = Path("q.safetensors"), y = Path("y.safetensors");
  const Arguments layer = LayerArguments() + Arguments{"--recipe", "mxfp8"};
  ASSERT_EQ(
      Quantgate({"quantize", Sample("fc1.x"), "--recipe", "mxfp8", "--role", "input", "-o", q})
          .exit_code,
      0);
  ASSERT_EQ(Quantgate(Arguments{"run"} + layer + Arguments{"-o", y}).exit_code, 0);
  AddMask(q);
  AddMask(y);
  const Arguments codes = {"--codes", q + ":rowwise_data", "--scale-inv", q + ":rowwise_scale_inv"};
  const ProcessResult explained =
      Quantgate(Arguments{"explain", "--source", Sample("fc1.x")} + codes);
  EXPECT_EQ(explained.exit_code, 0) << explained.err;
  const ProcessResult dequantized = Quantgate({"dequantize", q, "-o", Path("x.safetensors")});
  EXPECT_EQ(dequantized.exit_code, 0) << dequantized.err;
  const ProcessResult verified = Quantgate(Arguments{"verify", "--subject", y} + layer);
  EXPECT_EQ(verified.exit_code, 0) << verified.err;
  EXPECT_THAT(verified.out, HasSubstr("no output of this layer: mask"));
  // Where each tensor counts, one that cannot be read is named.
  for (const Arguments& whole : {Arguments{"diff", y, y}, Arguments{"tensor", "put", y}}) {
    const ProcessResult refused = Quantgate(whole);
    EXPECT_EQ(refused.exit_code, 2) << refused.out;
    EXPECT_THAT(refused.err, HasSubstr("tensor \"mask\": dtype is \"BOOL\""));
  }
}

TEST_F(FirstUseTest, RefusalsNameTheOptionThatWasTyped) {
  const std::string fc1 = Sample("fc1.x");
  ExpectRefused({
      {{"run", "--input", "gen:gauss,shape=16x32", "--weight", "gen:normal,shape=16x32", "--recipe",
        "bf16"},
       "--input: distribution is \"gauss\": known"},
      {{"run", "--input", "gen:normal,shape=16x31", "--weight", "gen:normal,shape=16x31",
        "--recipe", "fp8_current"},
       "--recipe is fp8_current: --input is bf16[16x31]: K is 31"},
      {{"run", "--input", "gen:normal,shape=16x32", "--weight", "gen:normal,shape=16x48",
        "--recipe", "bf16"},
       "--input is bf16[16x32]: its last dim must be K = 48"},
      {Run({"--recipe", "bf16", "--gamma", "gen:normal,shape=32"}), "--gamma is "},
      {Run({"--recipe", "bf16", "--layer", "layernorm_linear"}), "--gamma is "},
      {Run({"--recipe", "bf16", "--param", "gamma=gen:normal,shape=32"}),
       "--param gamma is bf16[32]"},
      {Run({"--recipe", "bf16", "--grad-output", "gen:normal,shape=16x9"}),
       "--grad-output is bf16[16x9]"},
      {Run({"--recipe", "fp9"}), "--recipe is \"fp9\""},
      {Run({"--recipe", "fp8_current:margin=1"}), "--recipe: knobs[\"margin\"] is \"1\""},
      {Run({"--recipe", "bf16", "--arithmetic", "sm91"}), "--arithmetic"},
      {Run({"--recipe", "bf16", "--backward-override", "maybe"}),
       "--backward-override is \"maybe\""},
      {Run({"--recipe", "bf16", "--layer", "layernorm_linear", "--norm", "batchnorm"}),
       "--norm: kind is \"batchnorm\""},
      {Run({"--recipe", "bf16", "--layer", "layernorm_mlp", "--activation", "mish"}),
       "--activation: kind is \"mish\""},
      {Run({"--recipe", "bf16", "--layer", "grouped_linear", "--m-splits", "17"}), "--m-splits"},
      {{"gemm", "--a", fc1, "--b", fc1, "--out-dtype", "f7"}, "--out-dtype is \"f7\""},
      {{"gemm", "--a", fc1, "--b", fc1, "--a-scaling", "mx99"}, "--a-scaling is \"mx99\""},
      {{"gemm", "--a", "gen:gauss,shape=16x32", "--b", fc1}, "--a: distribution"},
      {{"quantize", "gen:gauss,shape=16x32", "--recipe", "mxfp8", "--role", "input"},
       "TENSOR: distribution"},
      {{"quantize", fc1, "--recipe", "fp8_current", "--role", "input", "--seed", "1"}, "--seed is"},
      {{"diff", "gen:gauss,shape=4", "gen:normal,shape=4"}, "A: distribution"},
      {{"tensor", "gen", "gauss,shape=4"}, "TENSOR: distribution"},
      {Run({"--recipe", "bf16", "--backward-override", "none,none"}),
       "--backward-override: \"none\" is given twice"},
      {Run({"--recipe", "fp8_delayed", "--backward-override", "dequantized"}),
       "--backward-override is dequantized: delayed scaling has no backward override"},
      {Run({"--recipe", "bf16", "--layer", "grouped_linear", "--m-splits", "8,8"}),
       "--weight is bf16[16x32]: its shape must be [E][N][K], with E = 2, the number of experts; "
       "or give one "
       "for each expert"},
      {Run({"--recipe", "bf16", "--layer", "grouped_linear", "--m-splits", "8,8", "--weight",
            "gen:normal,shape=16x32", "--bias", "gen:normal,shape=16"}),
       "--m-splits: \"8,8\" is of 2 experts, and --bias is given 1 time"},
      {Run({"--recipe", "bf16:overflow=nan"}),
       "not of bf16; 0.1.0 ignored it: leave it out; knobs of bf16: backward_override, "
       "activation_dtype"},
      {{"dequantize", fc1}, "this names one tensor, and a whole FILE.safetensors is read here"},
      {Arguments{"verify", "--subject", Path("y.npy")} + LayerArguments() +
           Arguments{"--recipe", "bf16"},
       "--subject: \"" + Path("y.npy") + "\": this names one tensor"},
      {Run({"--recipe", "bf16", "--recipe", "mxfp8"}), "--recipe: given 2 times; it takes one"},
      {{"tensor", "stat", Path("x.npy@fp8")}, "did you mean f8_e4m3 or f8_e5m2"},
      {{"tensor", "gen", "normal,shape=4,dtype=float8"}, "did you mean f8_e4m3 or f8_e5m2"},
  });
}

TEST_F(FirstUseTest, AFieldOfASpecFileKeepsItsPath) {
  WriteFile(Path("spec.json"), R"({"step": {"x": {"generate": {"distribution": "gauss",
      "type": {"dtype": "bf16", "shape": [16, 32]}}}}})");
  const Arguments run = {
      "run", "--spec", Path("spec.json"), "--weight", "gen:normal,shape=16x32", "--recipe", "bf16"};
  EXPECT_THAT(Quantgate(run).err, HasSubstr("spec.step.x.generate.distribution is \"gauss\""));
  EXPECT_THAT(Quantgate(run + Arguments{"--input", "gen:gauss,shape=16x32"}).err,
              HasSubstr("--input: distribution is \"gauss\""));
}

TEST_F(FirstUseTest, SlipsOfTheFingersAreTold) {
  const std::string fc1 = Sample("fc1.x");
  ExpectRefused({
      {{"compair"}, "did you mean compare?"},
      {{"tensor", "gte"}, "did you mean get?"},
      {Run({"--recipe", "bf16", "--json"}), "did you mean --format json?"},
      {Run({"--recipe", "bf16", "--cuda"}), "did you mean --device cuda?"},
      {{"session", "step", "ID", "forward"}, "did you mean train?"},
      {{"session", "step", "ID", "change_recipe"}, "did you mean recipe?"},
      {{"run", "--imput", fc1}, "did you mean --input?"},
      {Run({"--recipe", "bf16", "--backwards-override", "none"}),
       "did you mean --backward-override?"},
      {Run({"--recipe", "bf16", "--timeot", "3"}), "did you mean --timeout?"},
      {Run({"--recipe", "bf16", "--format", "jsno"}), "did you mean json?"},
      {Run({"--recipe", "fp8_curent"}), "did you mean fp8_current?"},
      {Run({"--recipe", "bf16", "--layer", "layrnorm_linear"}), "did you mean layernorm_linear?"},
      {{"gemm", "--a", fc1, "--b", fc1, "--out-dtype", "bf61"}, "did you mean bf16?"},
      {{"scenario", "run", "hadamard-cancels-in-wgard"}, "did you mean hadamard-cancels-in-wgrad?"},
      {Run({"--recipe", "fp8_current:power2_scales=true"}), "did you mean power_2_scales?"},
      {Run({"--recipe", "fp8_current:power_2_scales=ture"}), "did you mean true?"},
      {Run({"--recipe", "mxfp8:scale_rule=cel"}), "did you mean ceil?"},
      {Run({"--recipe", "nvfp4:nvfp4_4over6_err_mode=mea"}), "did you mean mae?"},
      {Run({"--recipe", "hybrid:fprop=mxpf8"}), "did you mean mxfp8?"},
      {Run({"--recipe", R"(custom:rules=[{"quantizer":{"format":"mxpf8"}}])"}),
       "did you mean mxfp8?"},
      {Run({"--recipe", "bf16", "--arithmetic", "exat"}), "did you mean exact?"},
      {Run({"--recipe", "bf16", "--arithmetic", "sm90:splt"}), "did you mean split?"},
      {Run({"--recipe", "bf16", "--arithmetic", "sm90:splitkk=2"}), "did you mean splitk?"},
      {{"run", "--input", "gen:normal,sed=1,shape=16x32", "--weight", fc1, "--recipe", "bf16"},
       "did you mean seed?"},
      {{"run", "--input", "gen:norml,shape=16x32", "--weight", fc1, "--recipe", "bf16"},
       "did you mean normal?"},
      {Run({"--recipe", "bf16", "--layer", "layernorm_linear", "--norm", "rmsnrm"}),
       "did you mean rmsnorm?"},
      {Run({"--recipe", "bf16", "--layer", "layernorm_linear", "--norm", "rmsnorm,epz=1"}),
       "did you mean eps?"},
      {Run({"--recipe", "bf16", "--layer", "layernorm_mlp", "--activation", "swigl"}),
       "did you mean swiglu?"},
      {Run({"--recipe", "bf16", "--layer", "layernorm_mlp", "--activation",
            "clamped_swiglu,limt=3"}),
       "did you mean limit?"},
      {Run({"--recipe", "bf16", "--requires-grad", "x,wieght"}), "did you mean weight?"},
      {Run({"--recipe", "bf16", "--tp", "2", "--overlap", "colum_fprop=x"}),
       "did you mean column_fprop?"},
  });
  for (const Arguments& far : {Arguments{"frobnicate"}, Arguments{"run", "--colour", "red"}}) {
    EXPECT_THAT(Quantgate(far).err, Not(HasSubstr("did you mean")));
  }
}

TEST_F(FirstUseTest, NamesOfOtherLibrariesAreAccepted) {
  const std::string as_torch = Path("torch.npy"), as_here = Path("here.npy");
  ASSERT_EQ(
      Quantgate({"tensor", "gen", "normal,shape=8x32,dtype=float16", "-o", as_torch}).exit_code, 0);
  ASSERT_EQ(Quantgate({"tensor", "gen", "normal,shape=8x32,dtype=f16", "-o", as_here}).exit_code,
            0);
  EXPECT_EQ(ReadFile(as_torch), ReadFile(as_here));
  const std::string bytes = "gen:normal,shape=8x32,dtype=torch.float8_e4m3fn";
  const ProcessResult gemm =
      Quantgate({"gemm", "--a", bytes, "--b", bytes, "--out-dtype", "torch.bfloat16"});
  EXPECT_EQ(gemm.exit_code, 0) << gemm.err;
  EXPECT_THAT(gemm.out, HasSubstr("d  bf16[8x8]"));
  const auto quantize = [&](const std::string& rule) {
    return Quantgate({"quantize", "gen:normal,shape=32x32", "--recipe", "mxfp8:scale_rule=" + rule,
                      "--role", "input", "--format", "json"});
  };
  EXPECT_EQ(quantize("rceil").exit_code, 0);
  EXPECT_EQ(quantize("rceil").out, quantize("round_up").out);
}

// FP8 codes as the bytes that files of other libraries have.
TEST_F(FirstUseTest, BytesThatMayBeCodesAreAskedForTheirType) {
  const std::string file = Path("t.safetensors");
  const std::vector<uint8_t> bytes(16 * 32, 0x38);
  const auto of = [&](DType dtype) {
    return *Tensor::FromBytes(dtype, {16, 32}, std::as_bytes(std::span(bytes)));
  };
  const float one = 1;
  const Tensor scale = *Tensor::FromBytes(DType::kF32, {1}, std::as_bytes(std::span(&one, 1)));
  ASSERT_TRUE(
      WriteSafetensors(
          file, {{"bytes", of(DType::kU8)}, {"codes", of(DType::kF8E4M3)}, {"scale", scale}}, {})
          .ok());
  ExpectRefused({
      {{"diff", file + ":bytes", file + ":codes"}, "append @f8_e4m3"},
      {{"gemm", "--a", file + ":bytes", "--a-scale-inv", file + ":scale", "--b", file + ":codes",
        "--b-scale-inv", file + ":scale"},
       "--a is u8[16x32]: u8 is no operand dtype; if these are codes, say of which type (append "
       "@f8_e4m3"},
      {{"gemm", "--a", file + ":codes", "--b", file + ":bytes"}, "--b is u8[16x32]"},
      {{"tensor", "stat", file + ":bytes"}, "append @f8_e4m3"},
  });
  EXPECT_EQ(Quantgate({"diff", file + ":bytes@f8_e4m3", file + ":codes"}).exit_code, 0);
}

/// As np.save writes an array of ml_dtypes' float8_e4m3fn: the type is lost.
TEST_F(FirstUseTest, ArraysWhoseTypeNumpyLostAreAskedForIt) {
  std::string header = "{'descr': '<V1', 'fortran_order': False, 'shape': (16, 32), }";
  header.resize(117, ' ');
  const std::string file = Path("codes.npy");
  WriteFile(file, std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + "\n" +
                      std::string(16 * 32, '\x38'));
  ExpectRefused({{{"tensor", "stat", file}, "append @f8_e4m3 (float8_e4m3fn)"},
                 {{"tensor", "stat", file + "@f4_e2m1x2"}, "has one code a byte"}});
  const ProcessResult stat = Quantgate({"tensor", "stat", file + "@f8_e4m3"});
  EXPECT_EQ(stat.exit_code, 0) << stat.err;
  EXPECT_THAT(stat.out, HasSubstr("f8_e4m3[16x32]"));
}

/// `amax(axis=1, keepdims=True)` and a number of no dims give scales of [M][1] and [].
TEST_F(FirstUseTest, ScalesWithKeptDimsAreRead) {
  const std::string codes = "gen:normal,shape=64x256,dtype=f8_e4m3";
  const auto gemm = [&](const char* scale) {
    const std::string scales = std::string("gen:uniform,seed=5,dtype=f32,shape=") + scale;
    return Quantgate({"gemm", "--a", codes, "--b", codes, "--a-scale-inv", scales, "--b-scale-inv",
                      scales, "--format", "json"});
  };
  for (const auto& [kept, plain] :
       {std::pair("64x1", "64"), std::pair("1x1", "1"), std::pair("scalar", "1")}) {
    const ProcessResult result = gemm(kept);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const auto json = nlohmann::json::parse(result.out),
               same = nlohmann::json::parse(gemm(plain).out);
    EXPECT_EQ(json["d"]["fingerprint"], same["d"]["fingerprint"]) << kept;
  }
}

TEST_F(FirstUseTest, StochasticRoundingSaysItsSeed) {
  EXPECT_THAT(Quantgate({"quantize", "--help"}).out, HasSubstr("0 unless given"));
  const std::string file = Path("codes.safetensors");
  const auto quantize = [&](const Arguments& more) {
    return Quantgate(Arguments{"quantize", "gen:normal,shape=32x32", "--recipe", "nvfp4"} + more);
  };
  const Arguments gradient = {"--role", "grad_output"};
  EXPECT_THAT(quantize(gradient).out, HasSubstr("stochastic rounding: seed 0, call id 2\n"));
  EXPECT_THAT(quantize(gradient + Arguments{"--seed", "7"}).out, HasSubstr("seed 7, call id 2\n"));
  EXPECT_THAT(quantize({"--role", "input"}).out, Not(HasSubstr("seed")));
  const auto json = QuantgateJson({"quantize", "gen:normal,shape=32x32", "--recipe", "nvfp4",
                                   "--role", "grad_output", "-o", file});
  EXPECT_EQ(json["record"]["seed"], 0);
  EXPECT_EQ(json["record"]["call_id"], 2);
  const auto written = ReadSafetensors(file);
  ASSERT_TRUE(written.ok()) << written.status();
  EXPECT_EQ(written->metadata.at("quantgate.seed"), "0");
  EXPECT_EQ(written->metadata.at("quantgate.call_id"), "2");
  const ProcessResult run =
      Quantgate(Run({"--recipe", "nvfp4", "--grad-output", "gen:normal,shape=16x16"}));
  EXPECT_THAT(run.out, HasSubstr("Stochastic rounding by seed 0."));
  // 0 replaces what a spec says, as any other seed does.
  WriteFile(Path("spec.json"), R"({"seed": 7, "variants": [{"recipe": {"name": "nvfp4"}}]})");
  for (const char* seed : {"0", "3"}) {
    const auto replaced = QuantgateJson(Run(
        {"--spec", Path("spec.json"), "--grad-output", "gen:normal,shape=16x16", "--seed", seed}));
    EXPECT_EQ(std::to_string(replaced["run"]["request"]["seed"].get<int>()), seed);
  }
}

TEST_F(FirstUseTest, DoctorSaysThatThereIsNoGpu) {
  const ProcessResult result = Quantgate({"--device", "cuda:99", "doctor", "--gpu"});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.out, ::testing::ContainsRegex("GPU +FAILED +[A-Z_]+: .*"
                                                   "or ask a server that has a GPU"));
  EXPECT_THAT(result.out, ::testing::ContainsRegex("store +ok"));
}

/// A file with `scale_inv` of [2][3][K / 32] in place of [6][K / 32], as other libraries have it.
TEST_F(FirstUseTest, ScalesOfThreeDimsAreRead) {
  const std::string ours = Path("ours.safetensors"), theirs = Path("theirs.safetensors");
  const std::string source = "gen:normal,seed=3,shape=2x16x64";
  ASSERT_EQ(
      Quantgate({"quantize", source, "--recipe", "mxfp8", "--role", "input", "-o", ours}).exit_code,
      0);
  TensorFile file = *ReadSafetensors(ours);
  for (NamedTensor& tensor : file.tensors) {
    if (tensor.name != "rowwise_scale_inv") continue;
    ASSERT_EQ(tensor.tensor.shape(), (Shape{32, 2}));
    tensor.tensor = *tensor.tensor.Reinterpret(DType::kF8E8M0, {2, 16, 2});
  }
  ASSERT_TRUE(WriteSafetensors(theirs, file.tensors, {}).ok());
  for (const std::string& path : {ours, theirs}) {
    const ProcessResult result = Quantgate({"dequantize", path, "-o", path + ".safetensors"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
  }
  EXPECT_EQ(BytesOf(ours + ".safetensors", "data"), BytesOf(theirs + ".safetensors", "data"));
  EXPECT_THAT(ContentsOf(theirs + ".safetensors"), ::testing::ElementsAre("data f32[2x16x64]"));
  const auto explain = [&](const std::string& path) {
    return Quantgate({"explain", "--source", source, "--codes", path + ":rowwise_data",
                      "--scale-inv", path + ":rowwise_scale_inv", "--format", "json"});
  };
  const ProcessResult explained = explain(theirs);
  EXPECT_EQ(explained.exit_code, 0) << explained.err;
  EXPECT_THAT(explained.out, HasSubstr("\"scale_rule\": "));
  // A GEMM takes operands as layers take x: [..., K].
  for (const std::string& path : {ours, theirs}) {
    const ProcessResult gemm =
        Quantgate({"gemm", "--a", path + ":rowwise_data", "--a-scale-inv",
                   path + ":rowwise_scale_inv", "--b", ours + ":rowwise_data", "--b-scale-inv",
                   ours + ":rowwise_scale_inv", "-o", path + ".d.safetensors"});
    ASSERT_EQ(gemm.exit_code, 0) << gemm.err;
  }
  EXPECT_THAT(ContentsOf(theirs + ".d.safetensors"), ::testing::ElementsAre("d f32[32x32]"));
  EXPECT_EQ(BytesOf(ours + ".d.safetensors", "d"), BytesOf(theirs + ".d.safetensors", "d"));
  // Leading dims that are not those of the codes say something else.
  for (NamedTensor& tensor : file.tensors) {
    if (tensor.name != "rowwise_scale_inv") continue;
    tensor.tensor = *tensor.tensor.Reinterpret(DType::kF8E8M0, {4, 8, 2});
  }
  ASSERT_TRUE(WriteSafetensors(theirs, file.tensors, {}).ok());
  const ProcessResult refused = Quantgate({"dequantize", theirs});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr(theirs + ":rowwise_scale_inv is f8_e8m0[4x8x2]"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
