// Outlines are what QuantizeCpu makes, field by field, without the values.
#include "kernels/quantize/quantized_outline.h"

#include <gtest/gtest.h>

#include "kernels/quantize/recipe/recipe.h"
#include "kernels/tensor/generate/generate.h"

namespace quantgate {
namespace QG_TEST_FILE {

void ExpectSameType(const Tensor& outline, const Tensor& real, const char* what) {
  EXPECT_EQ(outline.has_value(), real.has_value()) << what;
  if (!outline.has_value() || !real.has_value()) return;
  EXPECT_EQ(outline.dtype(), real.dtype()) << what;
  EXPECT_EQ(outline.shape(), real.shape()) << what;
}

TEST(OutlineCopy, IsWhatTheQuantizerMakes) {
  const char* const recipes[] = {
      "fp8_current",
      "fp8_rowwise",
      "fp8_block",
      "fp8_block:w_block_dim=1",
      "mxfp8",
      "mxfp8:enable_2d_quantization=true",
      "nvfp4",
      "nvfp4:disable_rht=true,row_scaled_activation=true",
      "nvfp4:disable_rht=true,nvfp4_4over6=all",
      "nvfp4:scale_rule=single_level",
      "nvfp4:scale_rule=two_level_clamped",
      "nvfp4:scale_rule=torchao_single_level,disable_rht=true,disable_stochastic_rounding=true",
      "nvfp4:scale_rule=modelopt,disable_rht=true,disable_stochastic_rounding=true",
      "fp8_current:scale_rule=inverse",
      "fp8_block:scale_rule=float64",
      "mxfp4:enable_2d_quantization=true",
      "mxfp4:scale_rule=gguf",
      "hybrid:fprop=mxfp8,dgrad=nvfp4,wgrad=fp8_block",
      "hybrid:fprop=mxfp8",
      R"(custom:rules=[{"quantizer":{"format":"mxfp8","element":"f6_e3m2"}}])",
  };
  for (const char* text : recipes) {
    const Recipe recipe = *Recipe::Parse(text);
    for (const Shape& shape : {Shape{64, 96}, Shape{2, 32, 160}}) {
      GeneratorSpec spec;
      spec.shape = shape;
      const Tensor source = *Generate(spec, ExecutionContext());
      for (const TensorRole role :
           {TensorRole::kInput, TensorRole::kWeight, TensorRole::kGradOutput}) {
        SCOPED_TRACE(std::string(text) + " " + std::string(TensorRoleName(role)));
        const Quantizer& quantizer = recipe.QuantizerFor(role);
        const auto real = QuantizeCpu(source, quantizer, {true, true}, {}, ExecutionContext());
        ASSERT_TRUE(real.ok()) << real.status();
        for (const Usage usage : {Usage::kRowwise, Usage::kColumnwise}) {
          const QuantizedCopy& copy = *real->copy(usage);
          const QuantizedCopy outline =
              *OutlineCopy(quantizer.spec(usage), usage, source.dtype(), shape);
          ExpectSameType(outline.data, copy.data, "data");
          ExpectSameType(outline.scale_inv, copy.scale_inv, "scale_inv");
          ExpectSameType(outline.amax, copy.amax, "amax");
          EXPECT_EQ(outline.format, copy.format);
          EXPECT_EQ(outline.element, copy.element);
          EXPECT_EQ(outline.block_dim, copy.block_dim);
          EXPECT_EQ(outline.e4m3_max, copy.e4m3_max);
          EXPECT_EQ(outline.hadamard, copy.hadamard);
        }
      }
    }
  }
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
