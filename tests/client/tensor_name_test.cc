#include "client/tensor_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "kernels/tensor/files/tensor_file.h"
#include "tests/client/process.h"
#include "tests/server/temporary_directory.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kSha256(64, 'a');

TensorName Parsed(const std::string& text) {
  absl::StatusOr<TensorName> name = ParseTensorName("--input", text);
  EXPECT_TRUE(name.ok()) << name.status();
  return name.ok() ? *name : TensorName();
}

TEST(TensorNameTest, Files) {
  TensorName name = Parsed("a/model.safetensors:fc1.x");
  EXPECT_EQ(name.kind, TensorName::Kind::kSafetensors);
  EXPECT_EQ(name.path, "a/model.safetensors");
  EXPECT_EQ(name.entry, "fc1.x");
  EXPECT_FALSE(name.reinterpreted.has_value());

  name = Parsed("m.safetensors:codes@f8_e4m3");
  EXPECT_EQ(name.entry, "codes");
  EXPECT_EQ(name.reinterpreted, DType::kF8E4M3);

  name = Parsed("m.safetensors:layer:0@home");
  EXPECT_EQ(name.entry, "layer:0@home");
  EXPECT_FALSE(name.reinterpreted.has_value());

  name = Parsed("only.safetensors");
  EXPECT_EQ(name.kind, TensorName::Kind::kSafetensors);
  EXPECT_EQ(name.entry, "");

  name = Parsed("x.npy@bf16");
  EXPECT_EQ(name.kind, TensorName::Kind::kNpy);
  EXPECT_EQ(name.path, "x.npy");
  EXPECT_EQ(name.reinterpreted, DType::kBF16);
}

TEST(TensorNameTest, Generated) {
  const TensorName name = Parsed(
      "gen:lognormal_outliers,seed=18446744073709551615,shape=4096x1024,dtype=f32,scale=0.5");
  EXPECT_EQ(name.kind, TensorName::Kind::kGenerated);
  EXPECT_EQ(name.generator.distribution(), "lognormal_outliers");
  EXPECT_EQ(name.generator.seed(), 18446744073709551615u);
  EXPECT_EQ(name.generator.type().dtype(), "f32");
  EXPECT_THAT(name.generator.type().shape(), ElementsAre(4096, 1024));
  EXPECT_EQ(name.generator.scale(), 0.5f);

  const TensorName plain = Parsed("gen:normal,shape=8");
  EXPECT_EQ(plain.generator.type().dtype(), "bf16");
  EXPECT_EQ(plain.generator.seed(), 0u);
  EXPECT_FALSE(plain.generator.has_scale());
  EXPECT_EQ(Parsed("gen:zero,shape=scalar").generator.type().shape_size(), 0);
}

TEST(TensorNameTest, Digests) {
  TensorName name = Parsed("digest:" + kSha256 + "/1024");
  EXPECT_EQ(name.kind, TensorName::Kind::kDigest);
  EXPECT_EQ(name.stored.digest().size(), 1024);
  EXPECT_EQ(absl::BytesToHexString(name.stored.digest().sha256()), kSha256);
  EXPECT_FALSE(name.stored.has_type());

  name = Parsed("digest:" + kSha256 + "/1024,dtype=bf16,shape=16x32@u8");
  EXPECT_THAT(name.stored.type().shape(), ElementsAre(16, 32));
  EXPECT_EQ(name.stored.type().dtype(), "bf16");
  EXPECT_EQ(name.reinterpreted, DType::kU8);
}

TEST(TensorNameTest, ErrorsNameTheOptionTheValueAndTheRule) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "no tensor"},
      {"x.bin", "FILE.safetensors:NAME"},
      {"m.safetensors:", "no tensor name after the colon"},
      {"gen:normal", "needs shape"},
      {"gen:normal,shape=", "a shape is dims"},
      {"gen:normal,shape=4x", "a shape is dims"},
      {"gen:normal,shape=-4", "a shape is dims"},
      {"gen:normal,shape=4x4.0", "a shape is dims"},
      {"gen:normal,shape=99999999999999999999", "a shape is dims"},
      {"gen:normal,shape=4,seed=-1", "seed must be"},
      {"gen:normal,shape=4,seed=18446744073709551616", "seed must be"},
      {"gen:normal,shape=4,scale=inf", "scale must be"},
      {"gen:normal,shape=4,shape=4", "given twice"},
      {"gen:normal,shape=4,colour=red", "is none of"},
      {"gen:normal,shape=4,dtype=bf17", "bf17"},
      {"digest:abc/4", "64 hex digits"},
      {"digest:" + kSha256, "digest:SHA256/SIZE"},
      {"digest:" + kSha256 + "/-1", "digest:SHA256/SIZE"},
      {"digest:" + kSha256 + "/4,dtype=bf16", "come together"},
  };
  for (const auto& [text, rule] : cases) {
    const absl::StatusOr<TensorName> name = ParseTensorName("--input", text);
    EXPECT_TRUE(absl::IsInvalidArgument(name.status())) << text;
    EXPECT_THAT(std::string(name.status().message()), HasSubstr(rule)) << text;
  }
  EXPECT_THAT(std::string(ParseTensorName("--input", "x.bin").status().message()),
              HasSubstr("--input: \"x.bin\""));
}

TEST(TensorNameTest, ReinterpretationKeepsTheBytes) {
  EXPECT_EQ(*ReinterpretedShape({4, 8}, DType::kU8, DType::kF8E4M3), (Shape{4, 8}));
  EXPECT_EQ(*ReinterpretedShape({4, 8}, DType::kU8, DType::kBF16), (Shape{4, 4}));
  EXPECT_EQ(*ReinterpretedShape({4, 8}, DType::kF32, DType::kU8), (Shape{4, 32}));
  EXPECT_FALSE(ReinterpretedShape({4, 7}, DType::kU8, DType::kBF16).ok());
  EXPECT_FALSE(ReinterpretedShape({}, DType::kF32, DType::kU8).ok());
}

class TensorFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const uint8_t bytes[] = {0x7E, 0xFE, 0x01, 0x80};
    const Tensor codes = *Tensor::FromBytes(DType::kU8, {2, 2}, std::as_bytes(std::span(bytes)));
    const Tensor other = *Tensor::FromScalar(2.5f);
    ASSERT_TRUE(WriteSafetensors(two_, {{"codes", codes}, {"scale", other}}, {}).ok());
    ASSERT_TRUE(WriteSafetensors(one_, {{"codes", codes}}, {}).ok());
  }
  TemporaryDirectory directory_;
  const std::string two_ = directory_.Path("two.safetensors");
  const std::string one_ = directory_.Path("one.safetensors");
};

TEST_F(TensorFileTest, LoadsAndReinterprets) {
  const absl::StatusOr<Tensor> codes = LoadTensor(Parsed(two_ + ":codes@f8_e4m3"));
  ASSERT_TRUE(codes.ok()) << codes.status();
  EXPECT_EQ(codes->dtype(), DType::kF8E4M3);
  EXPECT_EQ(codes->shape(), (Shape{2, 2}));
  EXPECT_EQ(codes->as<uint8_t>()[1], 0xFE);
  EXPECT_TRUE(LoadTensor(Parsed(one_)).ok());
}

TEST_F(TensorFileTest, SaysWhatTheFileHas) {
  const absl::Status ambiguous = LoadTensor(Parsed(two_)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(ambiguous));
  EXPECT_THAT(std::string(ambiguous.message()), HasSubstr("codes, scale"));
  const absl::Status missing = LoadTensor(Parsed(two_ + ":code")).status();
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_THAT(std::string(missing.message()), HasSubstr("codes"));
  const absl::Status misspelt = LoadTensor(Parsed(two_ + ":codes@f8_e4m4")).status();
  EXPECT_TRUE(absl::IsNotFound(misspelt));
  EXPECT_THAT(std::string(misspelt.message()), HasSubstr("\"f8_e4m4\" is no dtype"));
  EXPECT_TRUE(absl::IsNotFound(LoadTensor(Parsed(directory_.Path("no.npy"))).status()));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
