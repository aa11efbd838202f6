// Bad requests, one row each: refused with the right code, naming field, value and rule, and the
// server goes on serving.
#include <fstream>
#include <functional>
#include <limits>

#include "tests/server/rpc/bad_input_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();

using SpoilSpec = std::function<void(v1::RunSpec&)>;
struct SpecRow {
  const char* name;
  SpoilSpec spoil;
  Refusal refusal;
};

v1::TensorDescriptor* TypeOfX(v1::RunSpec& spec) {
  return spec.mutable_step()->mutable_x()->mutable_generate()->mutable_type();
}

/// The first variant's recipe with one knob.
void SetKnob(v1::RunSpec& spec, const std::string& recipe, const std::string& knob,
             const std::string& value) {
  v1::Recipe& proto = *spec.mutable_variants(0)->mutable_recipe();
  proto.Clear();
  proto.set_name(recipe);
  (*proto.mutable_knobs())[knob] = value;
}

const std::vector<SpecRow>& SpecRows() {
  constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
  static const std::vector<SpecRow> rows = {
      {"negative dim",
       [](v1::RunSpec& s) { TypeOfX(s)->set_shape(1, -64); },
       {kInvalid, "spec.step.x.generate.type.shape[1]", "-64", "not negative"}},
      {"element count overflows",
       [](v1::RunSpec& s) {
         TypeOfX(s)->set_shape(0, int64_t{1} << 40), TypeOfX(s)->set_shape(1, int64_t{1} << 40);
       },
       {kInvalid, "spec.step.x.generate.type.shape", "1099511627776x1099511627776", "63 bits"}},
      {"byte count overflows",
       [](v1::RunSpec& s) { TypeOfX(s)->set_shape(0, kInt64Max / 64); },
       {kInvalid, "spec.step.x.generate.type.shape", "", "63 bits"}},
      {"overflow beside a zero dim",
       [](v1::RunSpec& s) {
         TypeOfX(s)->set_shape(0, 0), TypeOfX(s)->set_shape(1, kInt64Max), TypeOfX(s)->add_shape(3);
       },
       {kInvalid, "spec.step.x.generate.type.shape", "0x9223372036854775807x3", "63 bits"}},
      {"huge tensor to generate",
       [](v1::RunSpec& s) { TypeOfX(s)->set_shape(0, int64_t{1} << 40); },
       {kInvalid, "spec.step.x.generate.type.shape", "140737488355328 bytes", "at most"}},
      {"rank 9",
       [](v1::RunSpec& s) {
         for (int i = 0; i < 7; ++i) TypeOfX(s)->add_shape(1);
       },
       {kInvalid, "spec.step.x.generate.type.shape", "rank 9", "at most 8"}},
      {"rank 0",
       [](v1::RunSpec& s) { TypeOfX(s)->clear_shape(); },
       {kInvalid, "spec.step.x", "bf16[scalar]", "rank"}},
      {"zero K",
       [](v1::RunSpec& s) {
         TypeOfX(s)->set_shape(1, 0);
         (*s.mutable_step()->mutable_parameters())["weight"]
             .mutable_generate()
             ->mutable_type()
             ->set_shape(1, 0);
       },
       {kInvalid, "spec.step.parameters[weight]", "bf16[48x0]", "K"}},
      {"zero N",
       [](v1::RunSpec& s) {
         (*s.mutable_step()->mutable_parameters())["weight"]
             .mutable_generate()
             ->mutable_type()
             ->set_shape(0, 0);
       },
       {kInvalid, "spec.step.parameters[weight]", "bf16[0x64]", "N"}},
      {"unknown dtype",
       [](v1::RunSpec& s) { TypeOfX(s)->set_dtype("f7"); },
       {kInvalid, "spec.step.x.generate.type.dtype", "\"f7\"", "known dtypes are f64, f32, bf16"}},
      {"dtype that a layer does not take",
       [](v1::RunSpec& s) { TypeOfX(s)->set_dtype("f8_e4m3"); },
       {kInvalid, "spec.step.x", "f8_e4m3[32x64]", "f32, bf16 or f16"}},
      {"dtype that cannot be generated",
       [](v1::RunSpec& s) { TypeOfX(s)->set_dtype("i64"); },
       {kInvalid, "spec.step.x.generate.type.dtype", "i64", "can be generated"}},
      {"unknown distribution",
       [](v1::RunSpec& s) {
         s.mutable_step()->mutable_x()->mutable_generate()->set_distribution("cauchy");
       },
       {kInvalid, "spec.step.x.generate.distribution", "\"cauchy\"", "normal"}},
      {"infinite generator scale",
       [](v1::RunSpec& s) {
         s.mutable_step()->mutable_x()->mutable_generate()->set_scale(
             std::numeric_limits<float>::infinity());
       },
       {kInvalid, "spec.step.x.generate.scale", "inf", "finite"}},
      {"too few inline bytes",
       [](v1::RunSpec& s) {
         *s.mutable_step()->mutable_x() = Inline("bf16", {32, 64}, std::string(4095, 'x'));
       },
       {kInvalid, "spec.step.x.inline.data", "4095 bytes", "bf16[32x64] has 4096 bytes"}},
      {"negative dim inline",
       [](v1::RunSpec& s) {
         *s.mutable_step()->mutable_x() = Inline("bf16", {32, -1}, "xx");
       },
       {kInvalid, "spec.step.x.inline.type.shape[1]", "-1", "not negative"}},
      {"too many inline bytes",
       [](v1::RunSpec& s) {
         *s.mutable_step()->mutable_x() = Inline("bf16", {1, 524289}, std::string(1048578, 'x'));
       },
       {kInvalid, "spec.step.x.inline.data", "1048578 bytes", "at most 1048576"}},
      {"no tensor",
       [](v1::RunSpec& s) { s.mutable_step()->clear_x(); },
       {kInvalid, "spec.step.x", "", "give inline, stored or generate"}},
      {"no layer",
       [](v1::RunSpec& s) { s.clear_step(); },
       {kInvalid, "spec.step", "", "its layer and tensors"}},
      {"no kind of layer",
       [](v1::RunSpec& s) { s.mutable_step()->clear_layer(); },
       {kInvalid, "spec.step.layer.kind", "", "linear"}},
      {"an unknown layer",
       [](v1::RunSpec& s) { s.mutable_step()->mutable_layer()->set_kind("conv"); },
       {kInvalid, "spec.step.layer.kind", "\"conv\"",
        "linear, layernorm_linear, layernorm_mlp, grouped_linear, chain, attention, "
        "transformer_layer"}},
      {"short digest",
       [](v1::RunSpec& s) {
         s.mutable_step()->mutable_x()->mutable_stored()->mutable_digest()->set_sha256("short");
       },
       {kInvalid, "spec.step.x.stored.digest.sha256", "5 bytes", "32 bytes"}},
      {"negative blob size",
       [](v1::RunSpec& s) {
         auto* digest = s.mutable_step()->mutable_x()->mutable_stored()->mutable_digest();
         digest->set_sha256(std::string(32, 'x'));
         digest->set_size(-1);
       },
       {kInvalid, "spec.step.x.stored.digest.size", "-1", "not negative"}},
      {"blob size against shape",
       [](v1::RunSpec& s) {
         auto* stored = s.mutable_step()->mutable_x()->mutable_stored();
         *stored->mutable_digest() = DigestFor(std::string(100, 'x'));
         stored->mutable_type()->set_dtype("bf16");
         stored->mutable_type()->add_shape(32);
         stored->mutable_type()->add_shape(64);
       },
       {kInvalid, "spec.step.x.stored.digest.size", "100", "bf16[32x64] has 4096 bytes"}},
      {"x and weight do not fit",
       [](v1::RunSpec& s) { TypeOfX(s)->set_shape(1, 128); },
       {kInvalid, "spec.step.x", "bf16[32x128]", "64"}},
      {"grad_output does not fit",
       [](v1::RunSpec& s) {
         s.mutable_step()->mutable_grad_output()->mutable_generate()->mutable_type()->set_shape(0,
                                                                                                16);
       },
       {kInvalid, "spec.step.grad_output", "bf16[16x48]", "32x48"}},
      {"bias does not fit",
       [](v1::RunSpec& s) {
         (*s.mutable_step()->mutable_parameters())["bias"] = Generated("normal", 4, "bf16", {47});
       },
       {kInvalid, "spec.step.parameters[bias]", "bf16[47]", "48"}},
      {"main_grad of the wrong dtype",
       [](v1::RunSpec& s) {
         (*s.mutable_step()->mutable_main_grads())["weight"] =
             Generated("zero", 4, "bf16", {48, 64});
       },
       {kInvalid, "spec.step.main_grads[weight]", "bf16[48x64]", "f32"}},
      {"K that FP8 cannot take",
       [](v1::RunSpec& s) {
         TypeOfX(s)->set_shape(1, 72);
         (*s.mutable_step()->mutable_parameters())["weight"]
             .mutable_generate()
             ->mutable_type()
             ->set_shape(1, 72);
       },
       {kInvalid, "spec.variants[0].recipe", "fp8_current",
        "K is 72 and must be a multiple of 16"}},
      {"unknown recipe",
       [](v1::RunSpec& s) { s.mutable_variants(0)->mutable_recipe()->set_name("fp9"); },
       {kInvalid, "spec.variants[0].recipe.name", "\"fp9\"",
        "bf16, fp8_delayed, fp8_current, fp8_block, mxfp8, mxfp6_e2m3, mxfp6_e3m2, mxfp4, nvfp4, "
        "fp8_rowwise, int8, int4, nf4, bnb_fp4, hybrid, custom"}},
      {"unknown knob",
       [](v1::RunSpec& s) {
         (*s.mutable_variants(0)->mutable_recipe()->mutable_knobs())["colour"] = "red";
       },
       {kInvalid, "spec.variants[0].recipe.knobs[\"colour\"]", "\"red\"", "unknown knob"}},
      {"value of a knob",
       [](v1::RunSpec& s) {
         (*s.mutable_variants(0)->mutable_recipe()->mutable_knobs())["fp8_format"] = "e9m9";
       },
       {kInvalid, "spec.variants[0].recipe.knobs[\"fp8_format\"]", "\"e9m9\"", "hybrid"}},
      {"knob of another recipe",
       [](v1::RunSpec& s) {
         *s.mutable_variants(0) = MakeVariant("bf16", "", "");
         (*s.mutable_variants(0)->mutable_recipe()->mutable_knobs())["fp8_format"] = "e4m3";
       },
       {kInvalid, "spec.variants[0].recipe.knobs[\"fp8_format\"]", "\"e4m3\"", "fp8_current"}},
      {"dims off the blocks",
       [](v1::RunSpec& s) { *s.mutable_variants(0) = MakeVariant("mxfp8", "", ""); },
       {kInvalid, "spec.variants[0].recipe", "mxfp8",
        "N is 48 and must be a multiple of 32 under mxfp8"}},
      {"pure E5M2",
       [](v1::RunSpec& s) { SetKnob(s, "fp8_delayed", "fp8_format", "e5m2"); },
       {kInvalid, "spec.variants[0].recipe.knobs[\"fp8_format\"]", "\"e5m2\"", "pure E5M2"}},
      {"2-D by 2-D blocks",
       [](v1::RunSpec& s) { SetKnob(s, "fp8_block", "x_block_dim", "2"); },
       {kInvalid, "spec.variants[0].recipe", "fp8_block", "2-D by 2-D blocks"}},
      {"delayed scaling with two margins",
       [](v1::RunSpec& s) {
         SetKnob(s, "custom", "rules",
                 R"([{"tensor_type": "weight", "quantizer": "fp8_delayed"},)"
                 R"( {"quantizer": {"name": "fp8_delayed", "knobs": {"margin": 1}}}])");
       },
       {kInvalid, "spec.variants[0].recipe.knobs[\"rules\"].knobs[\"margin\"]", "1",
        "have one value"}},
      {"Hadamard on weights",
       [](v1::RunSpec& s) {
         SetKnob(s, "hybrid", "weight", R"({"columnwise": {"format": "nvfp4", "hadamard": true}})");
       },
       {kInvalid, "spec.variants[0].recipe", "hybrid", "weights are never transformed"}},
      {"4over6 with Hadamard",
       [](v1::RunSpec& s) { SetKnob(s, "nvfp4", "nvfp4_4over6", "all"); },
       {kInvalid, "spec.variants[0].recipe.knobs[\"nvfp4_4over6\"]", "all",
        "needs disable_rht=true"}},
      {"a hybrid whose sides do not match",
       [](v1::RunSpec& s) { SetKnob(s, "hybrid", "weight", R"({"columnwise": "mxfp8"})"); },
       {kInvalid, "spec.variants[0].recipe", "hybrid", "no GEMM multiplies codes"}},
      {"an unknown role in custom rules",
       [](v1::RunSpec& s) {
         SetKnob(s, "custom", "rules", R"([{"tensor_type": "bias", "quantizer": "mxfp8"}])");
       },
       {kInvalid, "spec.variants[0].recipe.knobs[\"rules\"][0].tensor_type", "bias",
        "must be one of input, weight, grad_output"}},
      {"custom rules that are no JSON",
       [](v1::RunSpec& s) { SetKnob(s, "custom", "rules", std::string(1 << 20, '[')); },
       {kInvalid, "spec.variants[0].recipe.knobs[\"rules\"]", "[[[", "at most 16384"}},
      {"delayed scaling with an override",
       [](v1::RunSpec& s) { *s.mutable_variants(0) = MakeVariant("fp8_delayed", "dequant", ""); },
       {kInvalid, "spec.variants[0].recipe", "dequantized", "no backward override"}},
      {"delayed scaling with an override as a knob",
       [](v1::RunSpec& s) { SetKnob(s, "fp8_delayed", "backward_override", "high_precision"); },
       {kInvalid, "spec.variants[0].recipe.knobs[\"backward_override\"]", "high_precision",
        "no backward override"}},
      {"a state of no role",
       [](v1::RunSpec& s) {
         (*s.mutable_step()->mutable_delayed_state())["output.scale"] =
             Generated("uniform", 1, "f32", {1});
       },
       {kInvalid, "spec.step.delayed_state[\"output.scale\"]", "given", "names are input"}},
      {"half a state",
       [](v1::RunSpec& s) {
         *s.mutable_variants(0) = MakeVariant("fp8_delayed", "", "");
         (*s.mutable_step()->mutable_delayed_state())["input.scale"] =
             Generated("uniform", 1, "f32", {1});
       },
       {kInvalid, "spec.variants[0].recipe", "fp8_delayed", "f32[L]"}},
      {"a state that no variant looks at",
       [](v1::RunSpec& s) {
         (*s.mutable_step()->mutable_delayed_state())["input.scale"] =
             Generated("uniform", 1, "f32", {1});
       },
       {kInvalid, "spec.step.delayed_state", "1 states", "no variant is fp8_delayed"}},
      {"calibration of nothing",
       [](v1::RunSpec& s) { s.mutable_step()->set_calibrate(true); },
       {kInvalid, "spec.step.calibrate", "true", "no variant is fp8_delayed"}},
      {"a seed that nothing draws from",
       [](v1::RunSpec& s) { s.set_seed(9); },
       {kInvalid, "spec.seed", "9", "no variant rounds stochastically"}},
      {"an arithmetic that does not take the recipe",
       [](v1::RunSpec& s) {
         *s.mutable_variants(0) = MakeVariant("hybrid", "", "sm90");
         SetKnob(s, "hybrid", "fprop", "nvfp4");
       },
       {grpc::StatusCode::UNIMPLEMENTED, "spec.variants[0].arithmetic", "sm90",
        "does not take hybrid:fprop=nvfp4"}},
      {"unknown override",
       [](v1::RunSpec& s) { s.mutable_variants(0)->set_backward_override("sideways"); },
       {kInvalid, "spec.variants[0].backward_override", "\"sideways\"", "high_precision"}},
      {"unknown arithmetic",
       [](v1::RunSpec& s) { s.mutable_variants(0)->set_arithmetic("sm1"); },
       {kInvalid, "spec.variants[0].arithmetic", "\"sm1\"", "sm90"}},
      {"no variants",
       [](v1::RunSpec& s) { s.clear_variants(); },
       {kInvalid, "spec.variants", "0 given", "1 to 64"}},
      {"65 variants",
       [](v1::RunSpec& s) {
         while (s.variants_size() < 65) *s.add_variants() = MakeVariant("bf16", "", "");
       },
       {kInvalid, "spec.variants", "65 variants", "at most 64"}},
      {"the same variant twice",
       [](v1::RunSpec& s) { *s.add_variants() = s.variants(0); },
       {kInvalid, "spec.variants[1]", "fp8_current", "must differ"}},
      {"reference out of range",
       [](v1::RunSpec& s) { s.set_reference(1); },
       {kInvalid, "spec.reference", "1", "index of a variant"}},
      {"negative reference",
       [](v1::RunSpec& s) { s.set_reference(-1); },
       {kInvalid, "spec.reference", "-1", "index of a variant"}},
      {"unknown requirement",
       [](v1::RunSpec& s) { s.set_requirement(static_cast<v1::Requirement>(9)); },
       {kInvalid, "spec.requirement", "9", "REQUIREMENT_BITWISE"}},
  };
  return rows;
}

TEST_F(BadInputTest, RunSpecs) {
  for (const SpecRow& row : SpecRows()) {
    SCOPED_TRACE(row.name);
    ExpectRefused(ExecuteSpec(row.spoil), row.refusal);
  }
}

TEST_F(BadInputTest, NothingLargeIsAllocatedFirst) {
  const int64_t before = PeakResidentBytes();
  for (const SpecRow& row : SpecRows()) (void)ExecuteSpec(row.spoil);
  // Requests ask for up to 2^63 bytes; 7 GiB lie within the limit on tensors, and only their shapes
  // do not fit.
  (void)ExecuteSpec([](v1::RunSpec& s) { TypeOfX(s)->set_shape(0, int64_t{7} << 23); });
  EXPECT_LT(PeakResidentBytes() - before, 256 << 20);
}

TEST_F(BadInputTest, MissingBlobsAreNamed) {
  const v1::Digest missing = DigestFor(std::string(4096, 'x'));
  const grpc::Status status = ExecuteSpec([&](v1::RunSpec& spec) {
    auto* stored = spec.mutable_step()->mutable_x()->mutable_stored();
    *stored->mutable_digest() = missing;
    stored->mutable_type()->set_dtype("bf16");
    stored->mutable_type()->add_shape(32);
    stored->mutable_type()->add_shape(64);
  });
  ExpectRefused(status, {grpc::StatusCode::FAILED_PRECONDITION, "spec.step.x", "/4096", "stored"});
  ASSERT_EQ(DetailOf(status).missing_size(), 1);
  EXPECT_EQ(DetailOf(status).missing(0).SerializeAsString(), missing.SerializeAsString());
}

TEST_F(BadInputTest, StoredTensorsWithoutAType) {
  const std::string bytes = TestBytes(4096);
  ASSERT_TRUE(WriteBlob(server_.blobs(), "u1", bytes).status.ok());
  const auto spoil = [&](v1::RunSpec& spec) {
    *spec.mutable_step()->mutable_x()->mutable_stored()->mutable_digest() = DigestFor(bytes);
  };
  ExpectRefused(ExecuteSpec(spoil), {grpc::StatusCode::INVALID_ARGUMENT, "spec.step.x.stored.type",
                                     "", "registered under no type"});
  for (const auto& [dtype, columns] : {std::pair{"bf16", 64}, {"f32", 32}}) {
    v1::PutTensorRequest put;
    auto* stored = put.mutable_tensor()->mutable_stored();
    *stored->mutable_digest() = DigestFor(bytes);
    stored->mutable_type()->set_dtype(dtype);
    stored->mutable_type()->add_shape(32);
    stored->mutable_type()->add_shape(columns);
    v1::TensorRecord record;
    grpc::ClientContext context;
    ASSERT_TRUE(server_.tensors().Put(&context, put, &record).ok());
  }
  ExpectRefused(ExecuteSpec(spoil), {grpc::StatusCode::INVALID_ARGUMENT, "spec.step.x.stored.type",
                                     "", "f32[32x32] and bf16[32x64]"});
}

TEST_F(BadInputTest, RequestIds) {
  v1::ExecuteRequest request;
  *request.mutable_spec() = LinearSpec(32, 48, 64);
  *request.mutable_spec()->add_variants() = MakeVariant("bf16", "", "");
  for (const std::string& id :
       {std::string(65, 'a'), std::string("a b"), std::string("../x"), std::string("a\0b", 3)}) {
    request.set_request_id(id);
    ExpectRefused(Execute(request),
                  {grpc::StatusCode::INVALID_ARGUMENT, "request_id", "", "1 to 64"});
  }
}

TEST_F(BadInputTest, Listings) {
  v1::ListRunsRequest request;
  v1::ListRunsResponse response;
  for (const int size : {-1, 1001}) {
    request.set_page_size(size);
    grpc::ClientContext context;
    ExpectRefused(
        server_.engine().ListRuns(&context, request, &response),
        {grpc::StatusCode::INVALID_ARGUMENT, "page_size", std::to_string(size), "1 to 1000"});
  }
  request.set_page_size(0);
  request.set_page_token("'; DROP TABLE runs");
  grpc::ClientContext context;
  ExpectRefused(server_.engine().ListRuns(&context, request, &response),
                {grpc::StatusCode::INVALID_ARGUMENT, "page_token", "DROP", "next_page_token"});
}

TEST_F(BadInputTest, MessagesAboveTheCap) {
  v1::PutTensorRequest put;
  put.set_name(std::string(5 << 20, 'x'));
  v1::TensorRecord record;
  grpc::ClientContext context;
  EXPECT_EQ(server_.tensors().Put(&context, put, &record).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  ExpectServing();
}

TEST_F(BadInputTest, BytesThatAreNoMessage) {
  v1::ExecuteRequest request;
  *request.mutable_spec() = LinearSpec(32, 48, 64);
  *request.mutable_spec()->add_variants() = MakeVariant("fp8_current", "none", "sm90");
  const std::string whole = request.SerializeAsString();
  const std::string cut = whole.substr(0, whole.size() - 1);
  for (const std::string& bytes : {cut, std::string("\xff\xff\xff")}) {
    for (const std::string name : {"Execute", "WaitRun"}) {
      std::string response;
      const grpc::Status status =
          SendBytes(server_, "/quantgate.v1.Engine/" + name, bytes, &response);
      ExpectRefused(status, {grpc::StatusCode::INVALID_ARGUMENT, "message", "malformed",
                             "quantgate.v1." + name + "Request"});
    }
  }
  EXPECT_TRUE(Execute(request).ok());
}

TEST_F(BadInputTest, NamesAndDeepOrBrokenText) {
  v1::PutTensorRequest put;
  *put.mutable_tensor() = Inline("f32", {1}, "abcd");
  v1::TensorRecord record;
  for (const std::string& name :
       {std::string(257, 'x'), std::string("a\nb"), std::string("a\0b", 3)}) {
    put.set_name(name);
    grpc::ClientContext context;
    ExpectRefused(server_.tensors().Put(&context, put, &record),
                  {grpc::StatusCode::INVALID_ARGUMENT, "name", "", "at most 256 bytes"});
  }
  put.set_name("../../etc/passwd");  // A name is only a name.
  grpc::ClientContext context;
  EXPECT_TRUE(server_.tensors().Put(&context, put, &record).ok());
}

TEST_F(BadInputTest, DeadlineAlreadyPast) {
  v1::QuantizeRequest request;
  *request.mutable_tensor() = Generated("normal", 1, "bf16", {32, 64});
  v1::QuantizeResponse response;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() - std::chrono::seconds(1));
  EXPECT_EQ(server_.engine().Quantize(&context, request, &response).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  ExpectServing();
}

TEST_F(BadInputTest, NanAndInfinityAreData) {
  const auto spoil = [](v1::RunSpec& spec) {
    for (v1::TensorSource* source :
         {spec.mutable_step()->mutable_x(), &(*spec.mutable_step()->mutable_parameters())["weight"],
          spec.mutable_step()->mutable_grad_output()}) {
      source->mutable_generate()->set_distribution("specials");
    }
    spec.set_requirement(v1::REQUIREMENT_BOUND);
  };
  EXPECT_TRUE(ExecuteSpec(spoil).ok());
  for (const char* distribution : {"subnormal_heavy", "zero", "one_huge"}) {
    EXPECT_TRUE(ExecuteSpec([&](v1::RunSpec& spec) {
                  spec.mutable_step()->mutable_x()->mutable_generate()->set_distribution(
                      distribution);
                }).ok());
  }
}

TEST_F(BadInputTest, NoRowsAreAValidTensor) {
  EXPECT_TRUE(
      ExecuteSpec([](v1::RunSpec& spec) {
        TypeOfX(spec)->set_shape(0, 0);
        spec.mutable_step()->mutable_grad_output()->mutable_generate()->mutable_type()->set_shape(
            0, 0);
      }).ok());
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
