#include "server/wire/layer_run.h"

#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "server/errors.h"

namespace quantgate {
namespace {

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

}  // namespace
}  // namespace quantgate
