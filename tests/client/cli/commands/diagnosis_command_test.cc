// Mistakes that a new user makes: each is answered by its cause in the first line of what the
// command prints.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "kernels/tensor/transpose.h"
#include "tests/client/cli/commands/command_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Arguments = std::vector<std::string>;

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

class DiagnosisCommandTest : public CommandTest {
 protected:
  /// A layer of x [32][64], weight [64][64] and bias [64] in files of their own.
  void SetUp() override {
    for (const auto& [name, generator] :
         {std::pair("x", "normal,seed=1,shape=32x64,dtype=bf16"),
          {"weight", "normal,seed=2,shape=64x64,dtype=bf16,scale=0.1"},
          {"bias", "normal,seed=3,shape=64,dtype=bf16"},
          {"dy", "normal,seed=4,shape=32x64,dtype=bf16"},
          {"main_grad", "normal,seed=5,shape=64x64,dtype=f32"}}) {
      const ProcessResult made = Quantgate({"tensor", "gen", generator, "-o", Of(name)});
      ASSERT_EQ(made.exit_code, 0) << made.err;
    }
  }
  std::string Of(const std::string& name) const { return Path(name + ".npy"); }
  Arguments Layer() const {
    return {"--input",       Of("x"),  "--weight", Of("weight"), "--bias",       Of("bias"),
            "--grad-output", Of("dy"), "--recipe", "bf16",       "--arithmetic", "sm90"};
  }
  /// `arguments` with another value of the option.
  static Arguments With(Arguments arguments, const std::string& option, const std::string& value) {
    *(std::find(arguments.begin(), arguments.end(), option) + 1) = value;
    return arguments;
  }
  static Arguments Without(Arguments arguments, const std::string& option) {
    const auto found = std::find(arguments.begin(), arguments.end(), option);
    arguments.erase(found, found + 2);
    return arguments;
  }
  /// What a user computed: the outputs of this layer.
  TensorFile Outputs(const Arguments& layer) {
    const std::string path = Path("outputs.safetensors");
    const ProcessResult run = Quantgate(Arguments{"run"} + layer + Arguments{"-o", path});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return *ReadSafetensors(path);
  }
  /// The first line of `verify`, which must fail.
  std::string Verified(const std::vector<NamedTensor>& tensors, const Arguments& layer) {
    const std::string path = Path("mine.safetensors");
    EXPECT_TRUE(WriteSafetensors(path, tensors, {}).ok());
    const ProcessResult result = Quantgate(Arguments{"verify", "--subject", path} + layer);
    EXPECT_EQ(result.exit_code, 1) << result.out << result.err;
    return FirstLine(result.out);
  }
  static Tensor& Named(TensorFile& file, const std::string& name) {
    for (NamedTensor& tensor : file.tensors) {
      if (tensor.name == name) return tensor.tensor;
    }
    ADD_FAILURE() << name;
    return file.tensors.front().tensor;
  }
};

TEST_F(DiagnosisCommandTest, AWrongShape) {
  TensorFile mine = Outputs(Layer());
  Tensor& y = Named(mine, "y");
  y = *y.Reinterpret(y.dtype(), {64, 32});
  EXPECT_EQ(Verified(mine.tensors, Layer()),
            "y has the expected elements under another shape: 64x32 in place of 32x64");
}

TEST_F(DiagnosisCommandTest, ATransposedWeight) {
  // One that is not square is refused; a square one gives other numbers (below).
  const ProcessResult refused =
      Quantgate(Arguments{"run"} + With(Layer(), "--weight", "gen:normal,shape=64x48,dtype=bf16"));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(FirstLine(refused.err), HasSubstr("is the weight transposed?"));
}

TEST_F(DiagnosisCommandTest, ATransposedSquareWeight) {
  const Tensor weight = ReadNpy(Of("weight")).value();
  ASSERT_TRUE(WriteNpy(Path("w_t.npy"), *Transpose2d(weight, ExecutionContext())).ok());
  EXPECT_EQ(Verified(Outputs(With(Layer(), "--weight", Path("w_t.npy"))).tensors, Layer()),
            "the weight is transposed (weight): that gives y and dx");
}

TEST_F(DiagnosisCommandTest, CodesAsBytes) {
  const std::string codes = Path("codes.safetensors");
  const std::vector<uint8_t> bytes(16 * 32, 0x38);
  const Tensor u8 = *Tensor::FromBytes(DType::kU8, {16, 32}, std::as_bytes(std::span(bytes)));
  ASSERT_TRUE(WriteSafetensors(
                  codes, {{"bytes", u8}, {"codes", *u8.Reinterpret(DType::kF8E4M3, {16, 32})}}, {})
                  .ok());
  const ProcessResult result = Quantgate({"diff", codes + ":bytes", codes + ":codes"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(FirstLine(result.err), HasSubstr("if the u8 are codes, say of what type (append "
                                               "@f8_e4m3)"));
}

TEST_F(DiagnosisCommandTest, AMissingBias) {
  const TensorFile mine = Outputs(Without(Layer(), "--bias"));
  EXPECT_EQ(Verified(mine.tensors, Layer() + Arguments{"--only", "y"}),
            "the bias is missing (bias): that gives y");
  // Who has no bias has no gradient of it either.
  EXPECT_EQ(Verified(mine.tensors, Layer()), "db is missing: not in " + Path("mine.safetensors") +
                                                 "; the bias is missing (bias): that gives y");
}

TEST_F(DiagnosisCommandTest, AGradientAccumulatedTwice) {
  const Arguments layer = Layer() + Arguments{"--main-grad", Of("main_grad")};
  TensorFile without = Outputs(Layer());
  const Tensor dw = Named(without, "dw");
  TensorFile mine = Outputs(layer);
  Tensor& sum = Named(mine, "main_grad");
  Tensor twice = *Tensor::FromBytes(sum.dtype(), sum.shape(), sum.bytes());
  for (int64_t i = 0; i < twice.element_count(); ++i) {
    const uint32_t bits = uint32_t{dw.as<uint16_t>()[i]} << 16;
    float gradient;
    std::memcpy(&gradient, &bits, sizeof gradient);
    twice.as<float>()[i] += gradient;
  }
  sum = twice;
  EXPECT_THAT(Verified(mine.tensors, layer),
              StartsWith("main_grad has the gradient accumulated twice"));
}

TEST_F(DiagnosisCommandTest, AWrongActivation) {
  const auto layer = [&](const char* activation) {
    return Arguments{
        "--layer",       "layernorm_mlp", "--activation", activation,
        "--input",       Of("x"),         "--gamma",      "gen:uniform,seed=8,shape=64,dtype=bf16",
        "--fc1-weight",  Of("weight"),    "--fc2-weight", Of("weight"),
        "--grad-output", Of("dy"),        "--norm",       "rmsnorm",
        "--recipe",      "bf16",          "--arithmetic", "sm90"};
  };
  EXPECT_THAT(Verified(Outputs(layer("silu")).tensors, layer("gelu")),
              StartsWith("another activation: silu: that gives y"));
}

TEST_F(DiagnosisCommandTest, ScalesInAnotherLayout) {
  // The result is right; the scales of a are given column after column.
  std::vector<float> scales(128 * 4), given(scales.size());
  for (size_t i = 0; i < scales.size(); ++i) scales[i] = std::exp2(float(i * 7 % 11) - 5);
  for (size_t row = 0; row < 128; ++row) {
    for (size_t block = 0; block < 4; ++block) given[block * 128 + row] = scales[row * 4 + block];
  }
  const auto tensor = [](const std::vector<float>& values) {
    return *Tensor::FromBytes(DType::kF32, {128, 4}, std::as_bytes(std::span(values)));
  };
  // Other scales than those of a, which would otherwise explain d as well.
  const std::vector<float> of_b(scales.rbegin(), scales.rend());
  const std::string file = Path("scales.safetensors"), d = Path("d.safetensors");
  ASSERT_TRUE(
      WriteSafetensors(
          file, {{"right", tensor(scales)}, {"given", tensor(given)}, {"b", tensor(of_b)}}, {})
          .ok());
  const auto operands = [&](const std::string& name) {
    return Arguments{
        "--a", "gen:normal,seed=6,shape=128x512,dtype=f8_e4m3", "--a-scale-inv", file + ":" + name,
        "--b", "gen:normal,seed=7,shape=128x512,dtype=f8_e4m3", "--b-scale-inv", file + ":b"};
  };
  const ProcessResult gemm =
      Quantgate(Arguments{"gemm"} + operands("right") + Arguments{"--out-dtype", "bf16", "-o", d});
  ASSERT_EQ(gemm.exit_code, 0) << gemm.err;
  const ProcessResult result =
      Quantgate(Arguments{"explain"} + operands("given") + Arguments{"--d", d + ":d"});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(FirstLine(result.out),
              StartsWith("the block scales of a are given K-major, not row after row"));
}

TEST_F(DiagnosisCommandTest, ANameOfADtype) {
  const ProcessResult result = Quantgate({"tensor", "stat", Of("x") + "@fp8"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(FirstLine(result.err), HasSubstr("did you mean f8_e4m3 or f8_e5m2"));
}

TEST_F(DiagnosisCommandTest, ANanInTheInput) {
  Tensor x = ReadNpy(Of("x")).value();
  Tensor with_nan = *Tensor::FromBytes(x.dtype(), x.shape(), x.bytes());
  with_nan.as<uint16_t>()[7 * 64 + 5] = 0x7FC0;
  ASSERT_TRUE(WriteNpy(Path("nan.npy"), with_nan).ok());
  const TensorFile mine = Outputs(With(Layer(), "--input", Path("nan.npy")));
  // The user's x had a NaN that the x given here has not.
  EXPECT_EQ(Verified(mine.tensors, Layer()), "x has a NaN in row 7, column 5: that gives y and dw");
  // The x given here has one that the user's had not.
  EXPECT_THAT(
      Verified(Outputs(Layer()).tensors,
               With(Layer(), "--input", Path("nan.npy")) + Arguments{"--only", "y"}),
      StartsWith("y has numbers where NaN are expected: 1 NaN in x, so 64 in the expected y"));
}

TEST_F(DiagnosisCommandTest, AMissingTensor) {
  TensorFile mine = Outputs(Layer());
  std::erase_if(mine.tensors, [](const NamedTensor& tensor) { return tensor.name == "dw"; });
  EXPECT_EQ(Verified(mine.tensors, Layer()), "dw is missing: not in " + Path("mine.safetensors"));
}

TEST_F(DiagnosisCommandTest, ReportsHaveWhatWasTried) {
  const std::string other = Path("other.npy");
  ASSERT_EQ(
      Quantgate({"tensor", "gen", "normal,seed=9,shape=32x64,dtype=bf16", "-o", other}).exit_code,
      0);
  const ProcessResult unknown = Quantgate({"diff", other, Of("x")});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(FirstLine(unknown.out), StartsWith("unknown: "));
  EXPECT_THAT(unknown.out, AllOf(HasSubstr("--tried lists them"), Not(HasSubstr("does not fit:"))));
  EXPECT_THAT(Quantgate({"diff", other, Of("x"), "--tried"}).out,
              HasSubstr("does not fit: tensor: negated"));
  const std::string json = Path("diff.json"), html = Path("diff.html"), junit = Path("diff.xml");
  Quantgate({"diff", other, Of("x"), "--report", json, "--report", html, "--junit", junit});
  const nlohmann::json report = nlohmann::json::parse(ReadFile(json));
  EXPECT_TRUE(report["diagnosis"]["is_unknown"]);
  EXPECT_GT(report["diagnosis"]["tried"].size(), 3u);
  for (const std::string& path : {html, junit}) {
    EXPECT_THAT(ReadFile(path), HasSubstr("unknown: nothing that was tried gives tensor"));
  }
  // Nothing failed, so nothing is diagnosed.
  EXPECT_TRUE(QuantgateJson({"diff", Of("x"), Of("x")})["diagnosis"].is_null());
}

TEST_F(DiagnosisCommandTest, ARunThatFailsSaysWhy) {
  const Arguments fast =
      With(With(Layer(), "--recipe", "fp8_current"), "--arithmetic", "sm90:fast");
  const ProcessResult run = Quantgate(Arguments{"run"} + fast + Arguments{"--require", "bitwise"});
  EXPECT_EQ(run.exit_code, 1) << run.err;
  EXPECT_THAT(FirstLine(run.out),
              HasSubstr("the roundings of sm90:fast, which exact has not: all within what it may"));
  const Arguments variants =
      With(Without(Layer(), "--arithmetic"), "--recipe", "bf16,fp8_current") +
      Arguments{"--arithmetic", "sm90", "--reference", "0", "--require", "bitwise"};
  const std::string json = Path("compare.json"), html = Path("compare.html"),
                    cause = "since its recipe is fp8_current and not bf16";
  for (const Where where : {Where::kInProcess, Where::kServer}) {
    const ProcessResult compared = Quantgate(
        Arguments{"compare"} + variants + Arguments{"--report", json, "--report", html}, where);
    EXPECT_EQ(compared.exit_code, 1) << compared.err;
    EXPECT_THAT(FirstLine(compared.out), HasSubstr(cause));
    const nlohmann::json report = nlohmann::json::parse(ReadFile(json));
    EXPECT_THAT(report["diagnosis"]["sentence"].get<std::string>(), HasSubstr(cause));
    EXPECT_THAT(ReadFile(html), HasSubstr(cause));
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
