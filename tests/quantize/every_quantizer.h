// A quantizer for every value of every field, for the tests of what all of them promise.
#pragma once

#include <string>
#include <vector>

#include "kernels/quantize/quantizer.h"

namespace quantgate::testing {

struct NamedQuantizer {
  std::string name;
  Quantizer quantizer;

  /// What QuantizeCpu needs beside it.
  QuantizeArguments ArgumentsFor() const {
    QuantizeArguments arguments = {.seed = 0x1234567890ABCDEF, .call_id = 3};
    if (quantizer.rowwise.scaling == Scaling::kDelayed) {
      arguments.scale = *Tensor::FromScalar(37.5f);
    }
    return arguments;
  }
};

inline void AddFp8(std::vector<NamedQuantizer>& all) {
  for (const DType element : {DType::kF8E4M3, DType::kF8E5M2}) {
    QuantizerSpec spec = {.format = QuantizerFormat::kFp8Tensor, .element = element};
    all.push_back({"", spec});
    spec.scaling = Scaling::kDelayed;
    all.push_back({"", spec});
    for (const bool power_2 : {false, true}) {
      spec = {.format = QuantizerFormat::kFp8Rowwise, .element = element};
      spec.power_2_scale = power_2;
      all.push_back({"", spec});
      spec.scale_rule = ScaleRule::kReciprocal;
      spec.amax_epsilon = 0.75f;
      all.push_back({"", spec});
      spec.element_rounding = ElementRounding::kNearestAway;
      spec.overflow = Overflow::kNan;
      all.push_back({"", spec});
    }
    for (const QuantizerFormat format : {QuantizerFormat::kFp8Block32, QuantizerFormat::kFp8Block64,
                                         QuantizerFormat::kFp8Block256}) {
      for (const int block_dim : {1, 2}) {
        spec = {.format = format, .element = element, .block_dim = block_dim};
        spec.power_2_scale = element == DType::kF8E4M3;
        all.push_back({"", spec});
        spec.scale_rule = ScaleRule::kReciprocal;
        spec.flush_subnormals = FlushSubnormals::kAlways;
        all.push_back({"", spec});
      }
    }
    for (const int block_dim : {1, 2}) {
      for (const bool power_2 : {false, true}) {
        spec = {.format = QuantizerFormat::kFp8Block, .element = element, .block_dim = block_dim};
        spec.power_2_scale = power_2;
        all.push_back({"", spec});
        spec.scale_rule = ScaleRule::kReciprocal;
        all.push_back({"", spec});
      }
      spec = {.format = QuantizerFormat::kFp8Block, .element = element, .block_dim = block_dim};
      spec.amax_epsilon = 0.75f;
      all.push_back({"", spec});
      spec.element_rounding = ElementRounding::kNearestAway;
      spec.overflow = Overflow::kNan;
      all.push_back({"", spec});
      spec = {.format = QuantizerFormat::kFp8Block, .element = element, .block_dim = block_dim};
      spec.flush_subnormals = FlushSubnormals::kAlways;
      all.push_back({"", spec});
    }
  }
}

inline void AddMxfp8(std::vector<NamedQuantizer>& all) {
  for (const DType element :
       {DType::kF8E4M3, DType::kF8E5M2, DType::kF6E2M3, DType::kF6E3M2, DType::kF4E2M1x2}) {
    for (const int block_dim : {1, 2}) {
      QuantizerSpec spec = {
          .format = QuantizerFormat::kMxfp8, .element = element, .block_dim = block_dim};
      for (const ScaleRule rule : TraitsOf(spec.format).rules) {
        spec.scale_rule = rule;
        all.push_back({"", spec});
      }
      spec.scale_rule = ScaleRule::kNearest;
      spec.element_rounding = ElementRounding::kNearestAway;
      all.push_back({"", spec});
      spec = {.format = QuantizerFormat::kMxfp8, .element = element, .block_dim = block_dim};
      spec.flush_subnormals = FlushSubnormals::kAlways;
      all.push_back({"", spec});
    }
  }
}

inline void AddNvfp4(std::vector<NamedQuantizer>& all) {
  const QuantizerSpec base = {.format = QuantizerFormat::kNvfp4, .element = DType::kF4E2M1x2};
  for (const ElementRounding rounding :
       {ElementRounding::kNearestEven, ElementRounding::kNearestAway,
        ElementRounding::kStochastic}) {
    for (const ScaleRule rule : TraitsOf(base.format).rules) {
      for (const int block_dim : {1, 2}) {
        QuantizerSpec spec = base;
        spec.element_rounding = rounding;
        spec.scale_rule = rule;
        spec.block_dim = block_dim;
        all.push_back({"", spec});
        if (block_dim == 2) continue;
        Quantizer turned(spec);
        turned.columnwise.hadamard = true;
        all.push_back({"", turned});
      }
    }
  }
  QuantizerSpec spec = base;
  spec.row_scaled = true;
  all.push_back({"", spec});
  for (const FourOverSix mode : {FourOverSix::kMae, FourOverSix::kMse}) {
    for (const int e4m3_max : {448, 256}) {
      for (const int block_dim : {1, 2}) {
        spec = base;
        spec.four_over_six = mode;
        spec.e4m3_max = e4m3_max;
        spec.block_dim = block_dim;
        all.push_back({"", spec});
      }
    }
  }
}

/// The steps of other libraries: every value of each field, and the rules of fp32 scales.
inline void AddLibrarySteps(std::vector<NamedQuantizer>& all) {
  for (const QuantizerFormat format : {QuantizerFormat::kFp8Tensor, QuantizerFormat::kFp8Block}) {
    for (const int block_dim : {1, 2}) {
      QuantizerSpec base = {.format = format, .block_dim = block_dim};
      if (format == QuantizerFormat::kFp8Tensor && block_dim == 2) continue;
      for (const ScaleRule rule : TraitsOf(format).rules) {
        QuantizerSpec spec = base;
        spec.scale_rule = rule;
        all.push_back({"", spec});
        spec.power_2_scale = true;
        all.push_back({"", spec});
        for (const ElementOperation operation :
             {ElementOperation::kDivide, ElementOperation::kReciprocal}) {
          spec = base;
          spec.scale_rule = rule;
          spec.element_operation = operation;
          all.push_back({"", spec});
          spec.scale_dtype = spec.operation_dtype = StepDType::kSource;
          spec.zero_scale =
              operation == ElementOperation::kDivide ? ZeroScale::kDTypeEpsilon : ZeroScale::kNone;
          all.push_back({"", spec});
        }
      }
    }
  }
  for (const ScalingTraits& traits : AllQuantizerFormats()) {
    if (traits.elements.empty()) continue;
    for (const SignOfZero sign :
         {SignOfZero::kDrop, SignOfZero::kDropRounded, SignOfZero::kNegative}) {
      QuantizerSpec spec = {.format = traits.format, .element = traits.elements.front()};
      spec.zero_sign = sign;
      all.push_back({"", spec});
      spec.element_rounding = ElementRounding::kNearestZero;
      if (traits.has_blocks()) spec.block_dim = 2;
      all.push_back({"", spec});
      if (traits.scales != ScaleKind::kTensor) continue;
      spec.scaling = Scaling::kDelayed;
      all.push_back({"", spec});
    }
  }
}

/// Named by QuantizerText. Combinations that are refused are left out.
inline std::vector<NamedQuantizer> EveryQuantizer() {
  std::vector<NamedQuantizer> all = {{"", Quantizer()}};
  AddFp8(all);
  AddMxfp8(all);
  AddNvfp4(all);
  AddLibrarySteps(all);
  std::erase_if(all,
                [](const NamedQuantizer& named) { return !CheckQuantizer(named.quantizer).ok(); });
  for (NamedQuantizer& named : all) named.name = QuantizerText(named.quantizer);
  return all;
}

}  // namespace quantgate::testing
