// The main job on real data: sample tensors of a trained model through upload, run and report,
// under eight variants.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/tensor/files/tensor_file.h"
#include "tests/server/test_server.h"

namespace quantgate {
namespace QG_TEST_FILE {

class SampleRunTest : public testing::Test {
 protected:
  v1::TensorSource Upload(const std::string& name) {
    const Tensor tensor = file_.Find(name).value();
    const std::string bytes(reinterpret_cast<const char*>(tensor.data()), tensor.byte_size());
    std::string upload_id = name;
    std::replace(upload_id.begin(), upload_id.end(), '.', '-');
    const WriteOutcome outcome = WriteBlob(server_.blobs(), upload_id, bytes);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    v1::TensorSource source;
    *source.mutable_stored()->mutable_digest() = DigestFor(bytes);
    source.mutable_stored()->mutable_type()->set_dtype(std::string(DTypeName(tensor.dtype())));
    for (const int64_t dim : tensor.shape())
      source.mutable_stored()->mutable_type()->add_shape(dim);
    return source;
  }

  TestServer server_;
  TensorFile file_ =
      ReadSafetensors(QUANTGATE_SOURCE_DIR "/data/bytegpt_block1.safetensors").value();
};

TEST_F(SampleRunTest, EightVariantsOfALayer) {
  v1::ExecuteRequest request;
  v1::RunSpec& spec = *request.mutable_spec();
  spec.mutable_step()->mutable_layer()->set_kind("linear");
  *spec.mutable_step()->mutable_x() = Upload("fc1.x");
  (*spec.mutable_step()->mutable_parameters())["weight"] = Upload("fc1.weight");
  (*spec.mutable_step()->mutable_parameters())["bias"] = Upload("fc1.bias");
  *spec.mutable_step()->mutable_grad_output() = Upload("fc1.dy");
  *spec.add_variants() = MakeVariant("bf16", "none", "sm90");
  *spec.add_variants() = MakeVariant("bf16", "none", "fp32");
  for (const char* mode : {"default", "unquant", "dequant"}) {
    *spec.add_variants() = MakeVariant("fp8_current", mode, "sm90");
    *spec.add_variants() = MakeVariant("fp8_current", mode, "sm90:split");
  }
  spec.set_reference(0);
  spec.set_requirement(v1::REQUIREMENT_BOUND);

  grpc::ClientContext context;
  const auto reader = server_.engine().Execute(&context, request);
  std::vector<v1::VariantReport> variants(8);
  v1::RunEvent event;
  int steps = 0;
  while (reader->Read(&event)) {
    if (event.has_variant()) variants.at(event.variant().index()) = event.variant().report();
    if (event.has_progress()) {
      EXPECT_GE(event.progress().step(), steps);
      steps = event.progress().step();
      EXPECT_LE(steps, event.progress().step_count());
    }
  }
  const grpc::Status status = reader->Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_TRUE(event.has_finished());
  ASSERT_EQ(event.finished().state(), v1::RUN_STATE_SUCCEEDED) << event.finished().status_message();
  const v1::RunReport& report = event.finished().report();
  EXPECT_TRUE(report.verdict().pass()) << report.verdict().finding();
  EXPECT_EQ(report.inputs_size(), 4);
  EXPECT_THAT(report.reproduce(), testing::StartsWith("quantgate run --spec run:"));
  for (size_t i = 0; i < variants.size(); ++i) {
    const v1::VariantReport& variant = variants[i];
    ASSERT_EQ(variant.outputs_size(), 4) << variant.label();
    EXPECT_EQ(variant.against_reference_size(), i == 0 ? 0 : 4);
    for (const auto& output : variant.outputs()) {
      EXPECT_GT(output.against_unquantized().sqnr_db(), 20)
          << variant.label() << " " << output.tensor().name();
    }
  }
  // Overrides are reported by their canonical names, and those that ask for high precision quantize
  // less.
  EXPECT_EQ(variants[4].backward_override(), "high_precision");
  EXPECT_EQ(variants[6].backward_override(), "dequantized");
  EXPECT_EQ(variants[2].quantizations_size(), 3);
  EXPECT_EQ(variants[4].quantizations_size(), 2);
}

TEST_F(SampleRunTest, InProcessGivesTheSameBits) {
  v1::ExecuteRequest request;
  v1::RunSpec& spec = *request.mutable_spec();
  spec.mutable_step()->mutable_layer()->set_kind("linear");
  *spec.mutable_step()->mutable_x() = Upload("fc1.x");
  (*spec.mutable_step()->mutable_parameters())["weight"] = Upload("fc1.weight");
  *spec.add_variants() = MakeVariant("fp8_current", "none", "sm90");
  std::vector<std::string> fingerprints;
  for (const auto& channel : {server_.channel(), server_.server().InProcessChannel()}) {
    const auto stub = v1::Engine::NewStub(channel);
    grpc::ClientContext context;
    const auto reader = stub->Execute(&context, request);
    v1::RunEvent event;
    while (reader->Read(&event)) {
      if (event.has_variant()) {
        fingerprints.push_back(
            event.variant().report().outputs(0).tensor().fingerprint().SerializeAsString());
      }
    }
    ASSERT_TRUE(reader->Finish().ok());
  }
  ASSERT_EQ(fingerprints.size(), 2u);
  EXPECT_EQ(fingerprints[0], fingerprints[1]);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
