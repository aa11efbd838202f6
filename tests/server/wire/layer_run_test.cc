#include "server/wire/layer_run.h"

#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "absl/strings/escaping.h"
#include "server/errors.h"
#include "server/wire/convert_layer.h"

namespace quantgate {
namespace QG_TEST_FILE {

TensorReference GeneratedReference(const std::string& field, uint64_t seed, Shape shape) {
  TensorReference reference;
  reference.kind = TensorReference::Kind::kGenerated;
  reference.field = field;
  reference.generator.seed = seed;
  reference.generator.shape = shape;
  reference.type = TensorType{DType::kBF16, std::move(shape)};
  return reference;
}

Variant MakeVariant(const char* recipe, BackwardOverride mode, const char* arithmetic) {
  return {Recipe::Parse(recipe).value().WithBackwardOverride(mode),
          Arithmetic::Parse(arithmetic).value()};
}

LayerRun MakeRun() {
  LayerRun run;
  run.tensors["x"] = GeneratedReference("spec.step.x", 1, {32, 64});
  run.request.step.parameters["weight"];
  run.tensors["parameters[weight]"] =
      GeneratedReference("spec.step.parameters[\"weight\"]", 2, {16, 64});
  run.request.variants = {MakeVariant("bf16", BackwardOverride::kNone, "sm90")};
  return run;
}

TEST(KeptRequestTest, BytesAreNamedByTheirDigest) {
  LayerRun run = MakeRun();
  run.tensors["x"].kind = TensorReference::Kind::kStored;
  run.tensors["x"].digest = {Sha256Of({}), 4096};
  run.tensors["parameters[weight]"].kind = TensorReference::Kind::kInline;
  run.tensors["parameters[weight]"].digest = {Sha256Of({}), 2048};
  v1::RunSpec spec;
  spec.set_seed(7);
  spec.mutable_step()->mutable_x()->mutable_stored();  // Of a type that the tensor store knows.
  v1::TensorSource& weight = (*spec.mutable_step()->mutable_parameters())["weight"];
  weight.mutable_inline_()->set_data(std::string(2048, 'x'));
  v1::TensorSource& subject = (*spec.mutable_subjects())["y"];
  subject.mutable_generate()->set_seed(5);
  run.tensors["subjects[y]"] = GeneratedReference("spec.subjects[\"y\"]", 5, {32, 16});
  const v1::RunSpec kept = KeptRequest(spec, run);
  v1::RunSpec expected = spec;
  for (v1::TensorSource* source : {expected.mutable_step()->mutable_x(),
                                   &(*expected.mutable_step()->mutable_parameters())["weight"]}) {
    v1::StoredTensor& stored = *source->mutable_stored();
    // SHA-256 of nothing.
    stored.mutable_digest()->set_sha256(
        absl::HexStringToBytes("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"));
    stored.mutable_type()->set_dtype("bf16");
  }
  v1::StoredTensor& x = *expected.mutable_step()->mutable_x()->mutable_stored();
  x.mutable_digest()->set_size(4096);
  x.mutable_type()->add_shape(32);
  x.mutable_type()->add_shape(64);
  v1::StoredTensor& w =
      *(*expected.mutable_step()->mutable_parameters())["weight"].mutable_stored();
  w.mutable_digest()->set_size(2048);
  w.mutable_type()->add_shape(16);
  w.mutable_type()->add_shape(64);
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(kept, expected))
      << kept.DebugString();
}

TEST(OutlineLayerRunTest, ChecksShapesWithoutMemory) {
  LayerRun run = MakeRun();
  // 2^46 bytes, which nobody has.
  run.tensors["x"] = GeneratedReference("spec.step.x", 1, {int64_t{1} << 39, 64});
  EXPECT_TRUE(OutlineLayerRun(run).ok());
  run.tensors["parameters[weight]"] =
      GeneratedReference("spec.step.parameters[\"weight\"]", 2, {16, 32});
  const absl::Status status = OutlineLayerRun(run).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(error::DetailOf(status).field, "spec.step.x");
  run = MakeRun();
  run.request.reference = 4;
  EXPECT_EQ(error::DetailOf(OutlineLayerRun(run).status()).field, "spec.reference");
}

/// mxfp8 codes of a [32][64] tensor, in bytes of zeros.
v1::QuantizedSource Mxfp8Source(const std::string& scale_layout = "") {
  v1::QuantizedSource source;
  const auto add = [&](const char* name, const char* dtype, std::initializer_list<int64_t> shape) {
    v1::InlineTensor& tensor = *(*source.mutable_tensors())[name].mutable_inline_();
    tensor.mutable_type()->set_dtype(dtype);
    size_t bytes = 1;
    for (const int64_t dim : shape) {
      tensor.mutable_type()->add_shape(dim);
      bytes *= static_cast<size_t>(dim);
    }
    tensor.set_data(std::string(bytes, '\0'));
  };
  const bool is_padded = !scale_layout.empty();
  add("rowwise_data", "f8_e4m3", {32, 64});
  // Padded to multiples of 128 rows and 4 columns.
  add("rowwise_scale_inv", "u8", {is_padded ? 128 : 32, is_padded ? 4 : 2});
  source.set_source_dtype("bf16");
  source.mutable_description()->set_scale_layout(scale_layout);
  source.mutable_description()->mutable_rowwise()->set_format("mxfp8");
  return source;
}

v1::RunSpec SpecOfCodes(const v1::QuantizedSource& x) {
  v1::RunSpec spec;
  spec.mutable_step()->mutable_layer()->set_kind("linear");
  *spec.mutable_step()->mutable_x()->mutable_quantized() = x;
  v1::GeneratorSpec& weight =
      *(*spec.mutable_step()->mutable_parameters())["weight"].mutable_generate();
  weight.set_distribution("normal");
  weight.mutable_type()->set_dtype("bf16");
  weight.mutable_type()->add_shape(32);
  weight.mutable_type()->add_shape(64);
  spec.add_variants()->mutable_recipe()->set_name("mxfp8");
  return spec;
}

// Codes, their values, and scales in a layout that is not read as it is twice.
TEST(LoadedBytesTest, CountsCodesScalesAndValues) {
  const auto bytes_of = [](const v1::QuantizedSource& source) {
    const auto reference = QuantizedReferenceFromProto(source, "x.quantized", true, 1 << 20);
    EXPECT_TRUE(reference.ok()) << reference.status();
    const absl::StatusOr<int64_t> bytes = LoadedBytesOf(*reference);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    return bytes.value_or(0);
  };
  constexpr int64_t kCodes = 32 * 64, kScales = 32 * 2, kPadded = 128 * 4, kValues = 32 * 64 * 2;
  EXPECT_EQ(bytes_of(Mxfp8Source()), kCodes + kScales + kValues);
  EXPECT_EQ(bytes_of(Mxfp8Source("padded")), kCodes + kPadded + kScales + kValues);
  v1::QuantizedSource of_f32 = Mxfp8Source();
  of_f32.set_source_dtype("f32");
  EXPECT_EQ(bytes_of(of_f32), kCodes + kScales + 2 * kValues);
}

constexpr int64_t kTensorBytesMax = 1 << 20;

TEST(CodesOfARunTest, AreOutlinedInEveryLayoutAndKeptByTheirDigests) {
  for (const char* layout : {"", "padded", "swizzled"}) {
    const v1::RunSpec spec = SpecOfCodes(Mxfp8Source(layout));
    auto run = LayerRunFromProto(spec, kTensorBytesMax);
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(run->references().size(), 3u);
    const absl::StatusOr<Plan> plan = OutlineLayerRun(*run);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const LayerRequest& step = plan->request().step;
    EXPECT_EQ(TensorText(step.x), "bf16[32x64]");
    EXPECT_EQ(TensorText(step.codes.at("x").rowwise->scale_inv), "f8_e8m0[32x2]");
    const v1::RunSpec kept = KeptRequest(spec, *run);
    const auto& parts = kept.step().x().quantized().tensors();
    EXPECT_EQ(parts.at("rowwise_data").stored().digest().size(), 32 * 64);
    EXPECT_EQ(parts.at("rowwise_scale_inv").stored().type().dtype(), "u8");
    EXPECT_EQ(kept.step().x().quantized().source_dtype(), "bf16");
  }
}

TEST(CodesOfARunTest, WhatIsWrongIsRefusedByItsField) {
  const auto field_of = [](const std::function<void(v1::RunSpec&)>& spoil) {
    v1::RunSpec spec = SpecOfCodes(Mxfp8Source());
    spoil(spec);
    const auto run = LayerRunFromProto(spec, kTensorBytesMax);
    if (!run.ok()) return error::DetailOf(run.status()).field;
    return error::DetailOf(OutlineLayerRun(*run).status()).field;
  };
  const auto quantized = [](v1::RunSpec& spec) -> v1::QuantizedSource& {
    return *spec.mutable_step()->mutable_x()->mutable_quantized();
  };
  EXPECT_EQ(field_of([&](v1::RunSpec& spec) { quantized(spec).clear_source_dtype(); }),
            "spec.step.x.quantized.source_dtype");
  EXPECT_EQ(field_of([&](v1::RunSpec& spec) {
              quantized(spec).mutable_description()->mutable_rowwise()->set_format("nope");
            }),
            "spec.step.x.quantized.description.rowwise.format");
  EXPECT_EQ(field_of([&](v1::RunSpec& spec) {
              quantized(spec).mutable_tensors()->erase("rowwise_scale_inv");
            }),
            "spec.step.x.quantized.tensors[\"rowwise_scale_inv\"]");
  EXPECT_EQ(field_of([&](v1::RunSpec& spec) {
              (*quantized(spec).mutable_tensors())["rowwise_data"].mutable_quantized();
            }),
            "spec.step.x.quantized.tensors[\"rowwise_data\"]");
  EXPECT_EQ(field_of([&](v1::RunSpec& spec) {
              *(*spec.mutable_step()->mutable_main_grads())["weight"].mutable_quantized() =
                  Mxfp8Source();
            }),
            "spec.step.main_grads[\"weight\"]");
  EXPECT_EQ(field_of([&](v1::RunSpec& spec) {
              spec.mutable_variants(0)->mutable_recipe()->set_name("fp8_current");
            }),
            "spec.variants[0].recipe");
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
