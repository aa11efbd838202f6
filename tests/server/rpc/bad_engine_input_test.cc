// Bad unary requests of the engine: quantize, dequantize, gemm, compare.
#include <functional>

#include "tests/server/rpc/bad_input_fixture.h"

namespace quantgate {
namespace QG_TEST_FILE {

v1::TensorSource Bytes(const std::string& dtype, const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return Inline(dtype, shape, std::string(count * (dtype == "f32" ? 4 : 1), '\x38'));
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
  refuse([](auto& r) { *r.mutable_scale() = Generated("uniform", 1, "f32", {1}); },
         {kInvalid, "scale", "given", "only fp8_delayed takes it"});
  refuse(
      [](auto& r) {
        r.mutable_recipe()->set_name("fp8_delayed");
        *r.mutable_scale() = Generated("uniform", 1, "f32", {1});
      },
      {kInvalid, "amax_history", "absent", "f32[L]"});
  refuse(
      [](auto& r) {
        r.mutable_recipe()->set_name("mxfp8");
        *r.mutable_tensor() = Generated("normal", 1, "bf16", {32, 48});
      },
      {kInvalid, "tensor", "bf16[32x48]", "multiples of 32"});
  refuse(
      [](auto& r) {
        r.mutable_recipe()->set_name("nvfp4");
        *r.mutable_tensor() = Generated("normal", 1, "f32", {32, 64});
        r.set_columnwise(true);
      },
      {kInvalid, "tensor", "f32[32x64]", "hadamard"});
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
  refuse([](auto& r) { r.mutable_a()->set_scaling("2x128"); },
         {kInvalid, "a.scaling", "\"2x128\"", "none, tensor, outer, 1x128, 128x128, mx32 or nv16"});
  refuse([](auto& r) { r.mutable_a()->set_scaling("1x128"); },
         {kInvalid, "a.scale_inv", "f32[16]", "f32[16x1]"});
  // One row of one block: a scale that may be of rows of 128 or of tiles.
  refuse(
      [](auto& r) {
        *r.mutable_a()->mutable_tensor() = Generated("normal", 1, "f8_e4m3", {1, 128});
        *r.mutable_a()->mutable_scale_inv() = Generated("uniform", 3, "f32", {1, 1});
      },
      {kInvalid, "a.scaling", "", "1x128 and 128x128; say which"});
  refuse(
      [](auto& r) {
        for (auto* side : {r.mutable_a(), r.mutable_b()}) side->set_scaling("mx32");
      },
      {kInvalid, "a.scale_inv", "f32[16]", "f8_e8m0[16x1]"});
  refuse([](auto& r) { *r.mutable_a()->mutable_amax() = Generated("uniform", 3, "f32", {1}); },
         {kInvalid, "a.amax", "f32[1]", "only nv16 operands have one"});
  refuse([](auto& r) { r.mutable_b()->set_e4m3_max(256); },
         {kInvalid, "b.e4m3_max", "256", "only nv16 operands have one"});
  refuse([](auto& r) { *r.mutable_a()->mutable_scale_inv() = Generated("uniform", 3, "f32", {5}); },
         {kInvalid, "a.scaling", "", "fits no scaling; say which of tensor, outer, 1x128"});
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
  for (const char* arithmetic : {"sm90", "exact", "auto", ""}) {
    refuse(
        [&](auto& r) {
          r.set_arithmetic(arithmetic);
          r.set_every_algorithm(true);
        },
        {kInvalid, "every_algorithm", "true", "cublaslt alone has algorithms to choose from"});
  }
  refuse(
      [](auto& r) {
        r.set_arithmetic("cublaslt:algorithm=2");
        r.set_every_algorithm(true);
      },
      {kInvalid, "every_algorithm", "true", "cublaslt:algorithm=2, which names one of them"});
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
  ExpectRefused(Unary(&v1::Engine::Stub::Dequantize, dequantize),
                {grpc::StatusCode::INVALID_ARGUMENT, "tensors[\"rowwise_scale_inv\"]", "",
                 "codes need their scales"});
  v1::CompareRequest compare;
  *compare.mutable_subject() = Generated("normal", 1, "f32", {8, 8});
  *compare.mutable_reference() = Generated("normal", 1, "f32", {64});
  ExpectRefused(Unary(&v1::Engine::Stub::Compare, compare),
                {grpc::StatusCode::INVALID_ARGUMENT, "subject", "f32[8x8]", "f32[64]"});
}

TEST_F(BadInputTest, PartsOfQuantizedTensors) {
  constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
  v1::DequantizeRequest good;  // nvfp4, 32x64, as a file has it.
  auto& tensors = *good.mutable_tensors();
  tensors["rowwise_data"] = Bytes("u8", {32, 32});
  tensors["rowwise_scale_inv"] = Bytes("f8_e4m3", {32, 4});
  tensors["amax_rowwise"] = Bytes("f32", {1});
  good.mutable_description()->mutable_rowwise()->set_format("nvfp4");
  EXPECT_TRUE(Unary(&v1::Engine::Stub::Dequantize, good).ok());
  const auto refuse = [&](const std::function<void(v1::DequantizeRequest&)>& spoil,
                          const Refusal& refusal) {
    v1::DequantizeRequest request = good;
    spoil(request);
    ExpectRefused(Unary(&v1::Engine::Stub::Dequantize, request), refusal);
  };
  refuse([](auto& r) { r.clear_description(); },
         {kInvalid, "description.rowwise", "", "bound by 448 or by 256; say format"});
  refuse([](auto& r) { r.mutable_description()->mutable_rowwise()->set_format("fp7"); },
         {kInvalid, "description.rowwise.format", "\"fp7\"", "mxfp8, nvfp4"});
  refuse([](auto& r) { r.mutable_description()->mutable_rowwise()->set_element("bf15"); },
         {kInvalid, "description.rowwise.element", "\"bf15\"", "dtype"});
  refuse([](auto& r) { r.mutable_description()->mutable_rowwise()->set_block_dim(3); },
         {kInvalid, "description.rowwise", "nvfp4", "block_dim is 3"});
  refuse([](auto& r) { r.mutable_description()->mutable_rowwise()->set_e4m3_max(300); },
         {kInvalid, "description.rowwise", "nvfp4", "e4m3_max is 300"});
  refuse([](auto& r) { r.mutable_description()->add_shape(64); },
         {kInvalid, "description.shape", "64", "the codes are of 32x64"});
  refuse(
      [](auto& r) {
        (*r.mutable_tensors())["rowwise_scale_inv"] = Bytes("f8_e4m3", {32, 5});
      },
      {kInvalid, "tensors[\"rowwise_scale_inv\"]", "f8_e4m3[32x5]", "expected f8_e4m3[32x4]"});
  refuse([](auto& r) { (*r.mutable_tensors())["amax_rowwise"] = Bytes("f32", {3}); },
         {kInvalid, "tensors[\"amax_rowwise\"]", "f32[3]", "expected f32[32]"});
  refuse([](auto& r) { r.mutable_description()->mutable_rowwise()->set_format("mxfp8"); },
         {kInvalid, "tensors[\"rowwise_scale_inv\"]", "f8_e4m3[32x4]", "expected f8_e8m0"});
  refuse(
      [](auto& r) {
        (*r.mutable_tensors())["columnwise_data"] = Bytes("u8", {64, 16});
        (*r.mutable_tensors())["columnwise_scale_inv"] = Bytes("u8", {64, 2});
        (*r.mutable_tensors())["amax_columnwise"] = Bytes("f32", {1});
        *r.mutable_description()->mutable_columnwise() = r.description().rowwise();
        r.set_usage("columnwise");
      },
      {grpc::StatusCode::UNIMPLEMENTED, "usage", "", "Transformer Engine"});
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
