// Engine.Gemm with every_algorithm, over a real channel: algorithms that agree and one with a wrong
// bit are told apart, and the bit is found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "tests/engine/pretend_hardware.h"
#include "tests/server/test_server.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

/// A server whose one device is the engine; `engine` is valid while the server lives.
struct Hardware {
  PretendHardware* engine = nullptr;
  TestServer server{[this](ServerOptions& options) {
    options.make_engines = [this]() -> absl::StatusOr<std::vector<std::unique_ptr<Engine>>> {
      auto made = std::make_unique<PretendHardware>();
      engine = made.get();
      std::vector<std::unique_ptr<Engine>> engines;
      engines.push_back(std::move(made));
      return engines;
    };
  }};

  v1::GemmResponse Gemm(const v1::GemmRequest& request) {
    v1::GemmResponse response;
    grpc::ClientContext context;
    const grpc::Status status = server.engine().Gemm(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
};

constexpr int64_t kRows = 16, kColumns = 32, kK = 64;

v1::GemmRequest Fp8Request() {
  v1::GemmRequest request;
  *request.mutable_a()->mutable_tensor() = Generated("normal", 1, "f8_e4m3", {kRows, kK});
  *request.mutable_b()->mutable_tensor() = Generated("normal", 2, "f8_e4m3", {kColumns, kK});
  for (auto* side : {request.mutable_a(), request.mutable_b()}) {
    *side->mutable_scale_inv() = Generated("uniform", 3, "f32", {1});
    side->set_scaling("tensor");
  }
  request.set_arithmetic("cublaslt:fast");
  request.set_out_dtype("bf16");
  request.set_every_algorithm(true);
  return request;
}

TEST(GemmAlgorithmsTest, EqualAlgorithmsAreEqual) {
  Hardware hardware;
  const v1::GemmResponse response = hardware.Gemm(Fp8Request());
  ASSERT_EQ(response.algorithms_size(), 2);
  for (int i = 0; i < 2; ++i) {
    const v1::AlgorithmResult& one = response.algorithms(i);
    EXPECT_EQ(one.index(), i);
    EXPECT_THAT(one.description(), HasSubstr(i == 0 ? "id=66 tile=20" : "id=66 tile=26"));
    EXPECT_EQ(one.arithmetic(), "cublaslt:fast");
    EXPECT_TRUE(one.equal_to_first());
    EXPECT_EQ(one.mismatch_count(), 0);
    EXPECT_FALSE(one.has_first_difference());
    EXPECT_EQ(one.model(), "sm90:fast");
    EXPECT_TRUE(one.equal_to_model());
    EXPECT_FALSE(one.has_first_model_difference());
    EXPECT_EQ(one.fingerprint().high(), response.d().fingerprint().high());
    EXPECT_EQ(one.fingerprint().low(), response.d().fingerprint().low());
  }
  EXPECT_EQ(response.arithmetic(), "cublaslt:fast");
  ASSERT_EQ(response.environment().devices_size(), 1);
  EXPECT_EQ(response.environment().devices(0).sm_clock_mhz(), 1980);
  EXPECT_EQ(response.environment().devices(0).stage_clock(), "CUDA events");
  EXPECT_EQ(response.environment().cublaslt(), "13.1.0");
}

TEST(GemmAlgorithmsTest, AWrongBitIsFoundWhereItIs) {
  Hardware hardware;
  hardware.engine->whole.push_back(PretendHardware::AlgorithmOf(2, 66, 30));
  hardware.engine->spoilt_algorithm = 1;
  hardware.engine->spoilt_element = 5 * kColumns + 7;
  const v1::GemmResponse response = hardware.Gemm(Fp8Request());
  ASSERT_EQ(response.algorithms_size(), 3);
  for (const int i : {0, 2}) {
    EXPECT_TRUE(response.algorithms(i).equal_to_first());
    EXPECT_TRUE(response.algorithms(i).equal_to_model());
  }
  const v1::AlgorithmResult& wrong = response.algorithms(1);
  EXPECT_FALSE(wrong.equal_to_first());
  EXPECT_FALSE(wrong.equal_to_model());
  EXPECT_EQ(wrong.mismatch_count(), 1);
  EXPECT_EQ(wrong.model_mismatch_count(), 1);
  for (const v1::ElementPair* pair : {&wrong.first_difference(), &wrong.first_model_difference()}) {
    EXPECT_THAT(pair->coordinate(), testing::ElementsAre(5, 7));
    EXPECT_EQ(pair->subject_bits() ^ pair->reference_bits(), 1u);
    // The reference's bits are those of d, which the first algorithm gave.
    uint16_t bits = 0;
    std::memcpy(&bits, response.d().data().data() + 2 * (5 * kColumns + 7), sizeof(bits));
    EXPECT_EQ(pair->reference_bits(), bits);
  }
  EXPECT_NE(wrong.fingerprint().low(), response.d().fingerprint().low());
}

TEST(GemmAlgorithmsTest, AWrongFirstAlgorithmIsSeenByItsModel) {
  Hardware hardware;
  hardware.engine->spoilt_algorithm = 0;
  const v1::GemmResponse response = hardware.Gemm(Fp8Request());
  ASSERT_EQ(response.algorithms_size(), 2);
  EXPECT_TRUE(response.algorithms(0).equal_to_first());
  EXPECT_FALSE(response.algorithms(0).equal_to_model());
  EXPECT_FALSE(response.algorithms(1).equal_to_first());
  EXPECT_TRUE(response.algorithms(1).equal_to_model());
}

TEST(GemmAlgorithmsTest, SlicesOfKAreHeldAgainstTheirOwnModel) {
  Hardware hardware;
  v1::GemmRequest request = Fp8Request();
  // Three slices, and values of any size: other sums than in one chain.
  *request.mutable_a()->mutable_tensor() = Generated("lognormal_outliers", 1, "f8_e4m3", {64, 384});
  *request.mutable_b()->mutable_tensor() = Generated("lognormal_outliers", 2, "f8_e4m3", {64, 384});
  request.set_out_dtype("f32");
  request.set_arithmetic("cublaslt:fast,splitk=any");
  const v1::GemmResponse response = hardware.Gemm(request);
  ASSERT_EQ(response.algorithms_size(), 2);
  EXPECT_EQ(response.algorithms(0).model(), "sm90:fast,splitk=3");
  EXPECT_EQ(response.algorithms(1).model(), "sm90:fast");
  for (const v1::AlgorithmResult& one : response.algorithms()) EXPECT_TRUE(one.equal_to_model());
  EXPECT_FALSE(response.algorithms(1).equal_to_first());
  EXPECT_GT(response.algorithms(1).mismatch_count(), 0);
}

TEST(GemmAlgorithmsTest, AnAlgorithmWithoutAModelSaysSo) {
  Hardware hardware;
  // Id 62 of fast FP8 is in the inventory as one that no arithmetic gives the bits of.
  hardware.engine->whole.push_back(PretendHardware::AlgorithmOf(2, 62, 20));
  const v1::GemmResponse response = hardware.Gemm(Fp8Request());
  ASSERT_EQ(response.algorithms_size(), 3);
  EXPECT_EQ(response.algorithms(2).model(), "");
  EXPECT_TRUE(response.algorithms(2).equal_to_first());
  EXPECT_FALSE(response.algorithms(2).equal_to_model());
}

TEST(GemmAlgorithmsTest, TheReportedAmaxCountsToo) {
  Hardware hardware;
  hardware.engine->spoilt_amax = 1;
  v1::GemmRequest request = Fp8Request();
  request.set_out_dtype("f8_e4m3");
  *request.mutable_d_scale() = Generated("uniform", 4, "f32", {1});
  const v1::GemmResponse response = hardware.Gemm(request);
  ASSERT_EQ(response.algorithms_size(), 2);
  EXPECT_TRUE(response.algorithms(0).equal_to_first());
  EXPECT_FALSE(response.algorithms(1).equal_to_first());
  EXPECT_EQ(response.algorithms(1).mismatch_count(), 0);
  EXPECT_FALSE(response.algorithms(1).equal_to_model());
}

TEST(GemmAlgorithmsTest, NothingIsComparedUnlessAsked) {
  Hardware hardware;
  v1::GemmRequest request = Fp8Request();
  request.set_every_algorithm(false);
  const v1::GemmResponse response = hardware.Gemm(request);
  EXPECT_EQ(response.algorithms_size(), 0);
  EXPECT_THAT(response.note(), HasSubstr("id=66 tile=20"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
