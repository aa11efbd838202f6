// Explaining the quantizer mutants of tests/data/mutants.json, of which each has one known cause or
// none that has a rule. tests/vectors/mutant_tensors.py makes their tensors; the variable
// QUANTGATE_MUTANT_TENSORS names its file.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/quantize/quantizer.h"
#include "kernels/quantize/recipe/recipe.h"
#include "kernels/tensor/files/tensor_file.h"
#include "kernels/validate/explain/explain_codes.h"
#include "tests/engine/tensor_values.h"

namespace quantgate {
namespace QG_TEST_FILE {

using Json = nlohmann::json;

TEST(ExplainMutants, NamesTheCauseAndNeverAWrongOne) {
  const char* const path = std::getenv("QUANTGATE_MUTANT_TENSORS");
  ASSERT_NE(path, nullptr) << "set QUANTGATE_MUTANT_TENSORS to the file of mutant_tensors.py";
  const TensorFile file = *ReadSafetensors(path);
  const Json mutants = Json::parse(file.metadata.at("mutants"));
  ASSERT_EQ(mutants.size(), 100u);
  int with_cause = 0, named = 0, without = 0, unknown = 0;
  for (const Json& mutant : mutants) {
    const std::string name = mutant.at("name"), cause = mutant.at("cause");
    SCOPED_TRACE(mutant.dump());
    ExplainCodesRequest request;
    request.source = *file.Find(name + ".source");
    request.codes = *file.Find(name + ".codes");
    if (mutant.at("subject") == "nvfp4") {
      request.codes = *request.codes.Reinterpret(DType::kF4E2M1x2, request.codes.shape());
    }
    request.scale_inv = *file.Find(name + ".scale_inv");
    if (const auto amax = file.Find(name + ".amax"); amax.ok()) request.amax = *amax;
    const auto explanation = ExplainCodes(request, {});
    const bool is_none = cause == "none" || cause == "no rule";
    ++(is_none ? without : with_cause);
    if (!explanation.ok()) {
      // Scales that fit no blocks are refused, which states no cause.
      const bool is_refused = is_none && absl::IsInvalidArgument(explanation.status());
      unknown += is_refused;
      EXPECT_TRUE(is_refused) << explanation.status();
      continue;
    }
    const std::string concluded = absl::StrJoin(explanation->conclusion, "\n");
    if (is_none) {
      unknown += explanation->cause == "unknown";
      EXPECT_EQ(explanation->cause, "unknown") << concluded;
      continue;
    }
    named += explanation->cause == cause;
    // What is not named must not be named wrongly.
    EXPECT_TRUE(explanation->cause == cause || explanation->cause == "unknown" ||
                explanation->cause.empty())
        << explanation->cause << "\n"
        << concluded;
    if (explanation->cause != cause)
      std::cout << name << ": " << cause << "\n" << concluded << "\n";
  }
  std::cout << named << " of " << with_cause << " causes named, " << unknown << " of " << without
            << " without a cause unknown\n";
  EXPECT_EQ(with_cause, 60);
  EXPECT_GE(named * 100, with_cause * 95);
  EXPECT_EQ(unknown, without);
}

// Scales of a square tensor under their transposed shape have that of blocks that lie down the
// columns, so that they are no other reading of the scales but a mutant.
TEST(ExplainMutants, ScalesOfSquareTensorsAreTransposed) {
  for (const uint64_t seed : {1, 2}) {
    for (const int64_t side : {256, 512}) {
      for (const char* recipe : {"fp8_block", "mxfp8", "nvfp4"}) {
        SCOPED_TRACE(absl::StrCat(recipe, " ", side, " seed ", seed));
        ExplainCodesRequest request;
        request.source = Generated(Distribution::kNormal, seed, DType::kBF16, {side, side});
        const auto quantizer = Recipe::Parse(recipe)->QuantizerFor(TensorRole::kInput);
        const auto quantized = *QuantizeCpu(request.source, quantizer, {true, false}, {}, {});
        const Tensor& scales = quantized.rowwise->scale_inv;
        request.codes = quantized.rowwise->data;
        if (quantized.rowwise->amax.has_value()) request.amax = quantized.rowwise->amax;
        request.scale_inv = *Tensor::Allocate(scales.dtype(), {scales.columns(), scales.rows()});
        const int64_t bytes = DTypeBytes(scales.dtype());
        for (int64_t i = 0; i < scales.rows(); ++i) {
          for (int64_t j = 0; j < scales.columns(); ++j) {
            std::memcpy(request.scale_inv.as<uint8_t>() + (j * scales.rows() + i) * bytes,
                        scales.as<uint8_t>() + (i * scales.columns() + j) * bytes, bytes);
          }
        }
        const auto explanation = ExplainCodes(request, {});
        ASSERT_TRUE(explanation.ok()) << explanation.status();
        EXPECT_EQ(explanation->cause, "scales are transposed")
            << absl::StrJoin(explanation->conclusion, "\n");
      }
    }
  }
}

// Codes as they should be have no cause.
TEST(ExplainMutants, NothingIsWrongWithRightCodes) {
  const TensorFile file =
      *ReadKnownSafetensors(QUANTGATE_SOURCE_DIR "/tests/data/libraries/torchao.safetensors");
  const TensorFile sources =
      *ReadKnownSafetensors(QUANTGATE_SOURCE_DIR "/tests/data/libraries/sources.safetensors");
  ExplainCodesRequest request;
  request.source = *sources.Find("weight_bf16.source");
  for (const Json& made_by : Json::parse(file.metadata.at("cases"))) {
    if (made_by.at("rule") != "torchao_float8" || made_by.at("block") != "row" ||
        made_by.at("source") != "normal_bf16.source" || made_by.at("format") != "e4m3") {
      continue;
    }
    const std::string name = made_by.at("name");
    request.source = *sources.Find("normal_bf16.source");
    request.codes = *file.Find(name + ".codes");
    request.scale_inv = *file.Find(name + ".scale");
    const auto explanation = ExplainCodes(request, {});
    ASSERT_TRUE(explanation.ok()) << explanation.status();
    EXPECT_EQ(explanation->cause, "") << absl::StrJoin(explanation->conclusion, "\n");
    return;
  }
  FAIL() << "no such case";
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
