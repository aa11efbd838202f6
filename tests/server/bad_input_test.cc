// Bad requests, one row each: refused with the right code, naming field, value and rule, and the
// server goes on serving.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>
#include <functional>
#include <limits>

#include "tests/server/test_server.h"

namespace quantgate {
namespace {

using testing::HasSubstr;

constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();

/// What a refusal must say. Empty texts are not looked at.
struct Refusal {
  grpc::StatusCode code;
  std::string field;
  std::string value;
  std::string rule;
};

class BadInputTest : public testing::Test {
 protected:
  grpc::Status Execute(const v1::ExecuteRequest& request) {
    grpc::ClientContext context;
    const auto reader = server_.engine().Execute(&context, request);
    v1::RunEvent event;
    while (reader->Read(&event)) {
    }
    return reader->Finish();
  }
  grpc::Status ExecuteSpec(const std::function<void(v1::RunSpec&)>& spoil) {
    v1::ExecuteRequest request;
    *request.mutable_spec() = LinearSpec(32, 48, 64);
    *request.mutable_spec()->add_variants() = MakeVariant("fp8_current", "none", "sm90");
    spoil(*request.mutable_spec());
    return Execute(request);
  }
  template <typename Request, typename Response>
  grpc::Status Unary(grpc::Status (v1::Engine::Stub::*method)(grpc::ClientContext*, const Request&,
                                                              Response*),
                     const Request& request) {
    Response response;
    grpc::ClientContext context;
    return (server_.engine().*method)(&context, request, &response);
  }

  void ExpectRefused(const grpc::Status& status, const Refusal& expected) {
    EXPECT_EQ(status.error_code(), expected.code) << status.error_message();
    const v1::ErrorDetail detail = DetailOf(status);
    EXPECT_EQ(detail.field(), expected.field) << status.error_message();
    EXPECT_THAT(detail.value(), HasSubstr(expected.value));
    EXPECT_THAT(detail.rule(), HasSubstr(expected.rule));
    EXPECT_FALSE(detail.rule().empty()) << status.error_message();
    // The text says it too, for people.
    EXPECT_THAT(status.error_message(), HasSubstr(expected.value));
    ExpectServing();
  }

  void ExpectServing() {
    v1::Capabilities capabilities;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    EXPECT_TRUE(server_.info().GetCapabilities(&context, {}, &capabilities).ok());
  }

  static int64_t PeakResidentBytes() {
    rusage usage;
    ::getrusage(RUSAGE_SELF, &usage);
    return int64_t{usage.ru_maxrss} * 1024;
  }

  TestServer server_;
};

using SpoilSpec = std::function<void(v1::RunSpec&)>;
struct SpecRow {
  const char* name;
  SpoilSpec spoil;
  Refusal refusal;
};

v1::TensorDescriptor* TypeOfX(v1::RunSpec& spec) {
  return spec.mutable_linear()->mutable_x()->mutable_generate()->mutable_type();
}

const std::vector<SpecRow>& SpecRows() {
  constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
  static const std::vector<SpecRow> rows = {
      {"negative dim",
       [](v1::RunSpec& s) { TypeOfX(s)->set_shape(1, -64); },
       {kInvalid, "spec.linear.x.generate.type.shape[1]", "-64", "not negative"}},
      {"element count overflows",
       [](v1::RunSpec& s) {
         TypeOfX(s)->set_shape(0, int64_t{1} << 40), TypeOfX(s)->set_shape(1, int64_t{1} << 40);
       },
       {kInvalid, "spec.linear.x.generate.type.shape", "1099511627776x1099511627776", "63 bits"}},
      {"byte count overflows",
       [](v1::RunSpec& s) { TypeOfX(s)->set_shape(0, kInt64Max / 64); },
       {kInvalid, "spec.linear.x.generate.type.shape", "", "63 bits"}},
      {"overflow beside a zero dim",
       [](v1::RunSpec& s) {
         TypeOfX(s)->set_shape(0, 0), TypeOfX(s)->set_shape(1, kInt64Max), TypeOfX(s)->add_shape(3);
       },
       {kInvalid, "spec.linear.x.generate.type.shape", "0x9223372036854775807x3", "63 bits"}},
      {"huge tensor to generate",
       [](v1::RunSpec& s) { TypeOfX(s)->set_shape(0, int64_t{1} << 40); },
       {kInvalid, "spec.linear.x.generate.type.shape", "140737488355328 bytes", "at most"}},
      {"rank 9",
       [](v1::RunSpec& s) {
         for (int i = 0; i < 7; ++i) TypeOfX(s)->add_shape(1);
       },
       {kInvalid, "spec.linear.x.generate.type.shape", "rank 9", "at most 8"}},
      {"rank 0",
       [](v1::RunSpec& s) { TypeOfX(s)->clear_shape(); },
       {kInvalid, "spec.linear.x", "bf16[scalar]", "rank"}},
      {"zero K",
       [](v1::RunSpec& s) {
         TypeOfX(s)->set_shape(1, 0);
         s.mutable_linear()->mutable_weight()->mutable_generate()->mutable_type()->set_shape(1, 0);
       },
       {kInvalid, "spec.linear.weight", "bf16[48x0]", "K"}},
      {"zero N",
       [](v1::RunSpec& s) {
         s.mutable_linear()->mutable_weight()->mutable_generate()->mutable_type()->set_shape(0, 0);
       },
       {kInvalid, "spec.linear.weight", "bf16[0x64]", "N"}},
      {"unknown dtype",
       [](v1::RunSpec& s) { TypeOfX(s)->set_dtype("f7"); },
       {kInvalid, "spec.linear.x.generate.type.dtype", "\"f7\"",
        "known dtypes are f64, f32, bf16"}},
      {"dtype that a layer does not take",
       [](v1::RunSpec& s) { TypeOfX(s)->set_dtype("f8_e4m3"); },
       {kInvalid, "spec.linear.x", "f8_e4m3[32x64]", "f32, bf16 or f16"}},
      {"dtype that cannot be generated",
       [](v1::RunSpec& s) { TypeOfX(s)->set_dtype("i64"); },
       {kInvalid, "spec.linear.x.generate.type.dtype", "i64", "can be generated"}},
      {"unknown distribution",
       [](v1::RunSpec& s) {
         s.mutable_linear()->mutable_x()->mutable_generate()->set_distribution("cauchy");
       },
       {kInvalid, "spec.linear.x.generate.distribution", "\"cauchy\"", "normal"}},
      {"infinite generator scale",
       [](v1::RunSpec& s) {
         s.mutable_linear()->mutable_x()->mutable_generate()->set_scale(
             std::numeric_limits<float>::infinity());
       },
       {kInvalid, "spec.linear.x.generate.scale", "inf", "finite"}},
      {"too few inline bytes",
       [](v1::RunSpec& s) {
         *s.mutable_linear()->mutable_x() = Inline("bf16", {32, 64}, std::string(4095, 'x'));
       },
       {kInvalid, "spec.linear.x.inline.data", "4095 bytes", "bf16[32x64] has 4096 bytes"}},
      {"negative dim inline",
       [](v1::RunSpec& s) {
         *s.mutable_linear()->mutable_x() = Inline("bf16", {32, -1}, "xx");
       },
       {kInvalid, "spec.linear.x.inline.type.shape[1]", "-1", "not negative"}},
      {"too many inline bytes",
       [](v1::RunSpec& s) {
         *s.mutable_linear()->mutable_x() = Inline("bf16", {1, 524289}, std::string(1048578, 'x'));
       },
       {kInvalid, "spec.linear.x.inline.data", "1048578 bytes", "at most 1048576"}},
      {"no tensor",
       [](v1::RunSpec& s) { s.mutable_linear()->clear_x(); },
       {kInvalid, "spec.linear.x", "", "give inline, stored or generate"}},
      {"no layer",
       [](v1::RunSpec& s) { s.clear_linear(); },
       {kInvalid, "spec.layer", "", "linear"}},
      {"short digest",
       [](v1::RunSpec& s) {
         s.mutable_linear()->mutable_x()->mutable_stored()->mutable_digest()->set_sha256("short");
       },
       {kInvalid, "spec.linear.x.stored.digest.sha256", "5 bytes", "32 bytes"}},
      {"negative blob size",
       [](v1::RunSpec& s) {
         auto* digest = s.mutable_linear()->mutable_x()->mutable_stored()->mutable_digest();
         digest->set_sha256(std::string(32, 'x'));
         digest->set_size(-1);
       },
       {kInvalid, "spec.linear.x.stored.digest.size", "-1", "not negative"}},
      {"blob size against shape",
       [](v1::RunSpec& s) {
         auto* stored = s.mutable_linear()->mutable_x()->mutable_stored();
         *stored->mutable_digest() = DigestFor(std::string(100, 'x'));
         stored->mutable_type()->set_dtype("bf16");
         stored->mutable_type()->add_shape(32);
         stored->mutable_type()->add_shape(64);
       },
       {kInvalid, "spec.linear.x.stored.digest.size", "100", "bf16[32x64] has 4096 bytes"}},
      {"x and weight do not fit",
       [](v1::RunSpec& s) { TypeOfX(s)->set_shape(1, 128); },
       {kInvalid, "spec.linear.x", "bf16[32x128]", "64"}},
      {"grad_output does not fit",
       [](v1::RunSpec& s) {
         s.mutable_linear()->mutable_grad_output()->mutable_generate()->mutable_type()->set_shape(
             0, 16);
       },
       {kInvalid, "spec.linear.grad_output", "bf16[16x48]", "32x48"}},
      {"bias does not fit",
       [](v1::RunSpec& s) {
         *s.mutable_linear()->mutable_bias() = Generated("normal", 4, "bf16", {47});
       },
       {kInvalid, "spec.linear.bias", "bf16[47]", "48"}},
      {"main_grad of the wrong dtype",
       [](v1::RunSpec& s) {
         *s.mutable_linear()->mutable_main_grad() = Generated("zero", 4, "bf16", {48, 64});
       },
       {kInvalid, "spec.linear.main_grad", "bf16[48x64]", "f32"}},
      {"K that FP8 cannot take",
       [](v1::RunSpec& s) {
         TypeOfX(s)->set_shape(1, 72);
         s.mutable_linear()->mutable_weight()->mutable_generate()->mutable_type()->set_shape(1, 72);
       },
       {kInvalid, "spec.variants[0].recipe", "K = 72", "multiple of 16"}},
      {"unknown recipe",
       [](v1::RunSpec& s) { s.mutable_variants(0)->mutable_recipe()->set_name("fp9"); },
       {kInvalid, "spec.variants[0].recipe.name", "\"fp9\"", "bf16, fp8_current"}},
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
    auto* stored = spec.mutable_linear()->mutable_x()->mutable_stored();
    *stored->mutable_digest() = missing;
    stored->mutable_type()->set_dtype("bf16");
    stored->mutable_type()->add_shape(32);
    stored->mutable_type()->add_shape(64);
  });
  ExpectRefused(status,
                {grpc::StatusCode::FAILED_PRECONDITION, "spec.linear.x", "/4096", "stored"});
  ASSERT_EQ(DetailOf(status).missing_size(), 1);
  EXPECT_EQ(DetailOf(status).missing(0).SerializeAsString(), missing.SerializeAsString());
}

TEST_F(BadInputTest, StoredTensorsWithoutAType) {
  const std::string bytes = TestBytes(4096);
  ASSERT_TRUE(WriteBlob(server_.blobs(), "u1", bytes).status.ok());
  const auto spoil = [&](v1::RunSpec& spec) {
    *spec.mutable_linear()->mutable_x()->mutable_stored()->mutable_digest() = DigestFor(bytes);
  };
  ExpectRefused(ExecuteSpec(spoil), {grpc::StatusCode::INVALID_ARGUMENT,
                                     "spec.linear.x.stored.type", "", "registered under no type"});
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
  ExpectRefused(ExecuteSpec(spoil),
                {grpc::StatusCode::INVALID_ARGUMENT, "spec.linear.x.stored.type", "",
                 "f32[32x32] and bf16[32x64]"});
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

TEST_F(BadInputTest, Quantize) {
  v1::QuantizeRequest good;
  *good.mutable_tensor() = Generated("normal", 1, "bf16", {32, 64});
  good.mutable_recipe()->set_name("fp8_current");
  good.set_role("input");
  good.set_rowwise(true);
  const auto refuse = [&](const std::function<void(v1::QuantizeRequest&)>& spoil,
                          const Refusal& refusal) {
    v1::QuantizeRequest request = good;
    spoil(request);
    ExpectRefused(Unary(&v1::Engine::Stub::Quantize, request), refusal);
  };
  constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
  refuse([](auto& r) { r.clear_tensor(); }, {kInvalid, "tensor", "", "give inline"});
  refuse([](auto& r) { r.set_role("output"); }, {kInvalid, "role", "\"output\"", "grad_output"});
  refuse([](auto& r) { r.set_rowwise(false); },
         {kInvalid, "rowwise", "", "rowwise, columnwise or both"});
  refuse([](auto& r) { r.set_seed(1); }, {kInvalid, "seed", "1", "stochastically"});
  refuse([](auto& r) { r.mutable_recipe()->set_name("x"); },
         {kInvalid, "recipe.name", "\"x\"", "bf16"});
  refuse(
      [](auto& r) {
        *r.mutable_tensor() = Generated("normal", 1, "f8_e5m2", {4, 4});
      },
      {kInvalid, "tensor", "f8_e5m2[4x4]", "are quantized"});
  EXPECT_TRUE(Unary(&v1::Engine::Stub::Quantize, good).ok());
}

TEST_F(BadInputTest, Gemm) {
  v1::GemmRequest good;
  *good.mutable_a()->mutable_tensor() = Generated("normal", 1, "f8_e4m3", {16, 32});
  *good.mutable_b()->mutable_tensor() = Generated("normal", 2, "f8_e4m3", {32, 32});
  *good.mutable_a()->mutable_scale_inv() = Generated("uniform", 3, "f32", {16});
  *good.mutable_b()->mutable_scale_inv() = Generated("uniform", 4, "f32", {32});
  good.set_arithmetic("sm90");
  const auto refuse = [&](const std::function<void(v1::GemmRequest&)>& spoil,
                          const Refusal& refusal) {
    v1::GemmRequest request = good;
    spoil(request);
    ExpectRefused(Unary(&v1::Engine::Stub::Gemm, request), refusal);
  };
  constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
  refuse([](auto& r) { r.set_layout("tt"); }, {kInvalid, "layout", "\"tt\"", "tn, nn or nt"});
  refuse([](auto& r) { r.set_out_dtype("i32"); }, {kInvalid, "out_dtype", "\"i32\"", "bf16"});
  refuse([](auto& r) { r.mutable_a()->set_scaling("1x128"); },
         {kInvalid, "a.scaling", "\"1x128\"", "outer"});
  refuse([](auto& r) { *r.mutable_a()->mutable_scale_inv() = Generated("uniform", 3, "f32", {5}); },
         {kInvalid, "a.scaling", "", "neither tensor nor outer"});
  refuse(
      [](auto& r) {
        *r.mutable_a()->mutable_tensor() = Generated("normal", 1, "f8_e4m3", {1, 32});
        *r.mutable_a()->mutable_scale_inv() = Generated("uniform", 3, "f32", {1});
      },
      {kInvalid, "a.scaling", "", "tensor and outer"});
  refuse(
      [](auto& r) {
        *r.mutable_b()->mutable_tensor() = Generated("normal", 2, "f8_e4m3", {32, 48});
      },
      {kInvalid, "b", "f8_e4m3[32x48]", "32"});
  refuse([](auto& r) { r.set_beta(1); }, {kInvalid, "c", "absent", "beta"});
  EXPECT_TRUE(Unary(&v1::Engine::Stub::Gemm, good).ok());
}

TEST_F(BadInputTest, DequantizeAndCompare) {
  v1::DequantizeRequest dequantize;
  (*dequantize.mutable_tensors())["colour"] = Generated("normal", 1, "f32", {1});
  ExpectRefused(Unary(&v1::Engine::Stub::Dequantize, dequantize),
                {grpc::StatusCode::INVALID_ARGUMENT, "tensors[\"colour\"]", "", "not a name"});
  dequantize.clear_tensors();
  (*dequantize.mutable_tensors())["rowwise_data"] = Generated("normal", 1, "f8_e4m3", {8, 8});
  ExpectRefused(
      Unary(&v1::Engine::Stub::Dequantize, dequantize),
      {grpc::StatusCode::INVALID_ARGUMENT, "tensors[\"rowwise_scale_inv\"]", "", "give inline"});
  v1::CompareRequest compare;
  *compare.mutable_subject() = Generated("normal", 1, "f32", {8, 8});
  *compare.mutable_reference() = Generated("normal", 1, "f32", {64});
  ExpectRefused(Unary(&v1::Engine::Stub::Compare, compare),
                {grpc::StatusCode::INVALID_ARGUMENT, "subject", "f32[8x8]", "f32[64]"});
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
         {spec.mutable_linear()->mutable_x(), spec.mutable_linear()->mutable_weight(),
          spec.mutable_linear()->mutable_grad_output()}) {
      source->mutable_generate()->set_distribution("specials");
    }
    spec.set_requirement(v1::REQUIREMENT_BOUND);
  };
  EXPECT_TRUE(ExecuteSpec(spoil).ok());
  for (const char* distribution : {"subnormal_heavy", "zero", "one_huge"}) {
    EXPECT_TRUE(ExecuteSpec([&](v1::RunSpec& spec) {
                  spec.mutable_linear()->mutable_x()->mutable_generate()->set_distribution(
                      distribution);
                }).ok());
  }
}

TEST_F(BadInputTest, NoRowsAreAValidTensor) {
  EXPECT_TRUE(
      ExecuteSpec([](v1::RunSpec& spec) {
        TypeOfX(spec)->set_shape(0, 0);
        spec.mutable_linear()->mutable_grad_output()->mutable_generate()->mutable_type()->set_shape(
            0, 0);
      }).ok());
}

}  // namespace
}  // namespace quantgate
