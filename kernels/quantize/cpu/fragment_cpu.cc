#include <algorithm>
#include <atomic>
#include <vector>

#include "kernels/base/raise_to.h"
#include "kernels/base/status_macros.h"
#include "kernels/quantize/compiled_formats.h"
#include "kernels/quantize/fragment.h"
#include "kernels/quantize/fragment_steps.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

constexpr int64_t kFragmentGrain = 1 << 14;

/// Calls body(index of an element of the fragment, its value) for the indices [begin, end).
template <class Body>
void ForValues(const Tensor& values, int64_t begin, int64_t end, const Body& body) {
  VisitFormat<SourceFormats>(values.dtype(), [&]<class Source>() {
    const auto* codes = values.as<typename Source::Storage>();
    for (int64_t i = begin; i < end; ++i) body(i, DecodeFloat<Source>(codes[i]));
  });
}

/// A tensor with memory for an outline.
absl::Status AllocateAs(Tensor& outline) {
  if (!outline.has_value()) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(outline, Tensor::Allocate(outline.dtype(), outline.shape()));
  return absl::OkStatus();
}

/// Returns the factor of every unit and stores the scales.
std::vector<float> StoreScales(const FragmentRule& rule, const FragmentGrid& grid,
                               const float* amaxes, QuantizedFragment& quantized) {
  const Nvfp4TensorScale tensor =
      FragmentTensorScale(rule, rule.scales == ScaleKind::kTwoLevel ? amaxes[grid.units] : 0.0f);
  std::vector<FragmentScale> scales(static_cast<size_t>(grid.units));
  std::vector<float> factors(scales.size());
  for (size_t unit = 0; unit < scales.size(); ++unit) {
    scales[unit] = ScaleOfFragmentUnit(rule, amaxes[unit], tensor);
    factors[unit] = scales[unit].factor;
  }
  Tensor& stored = quantized.whole.scale_inv;
  for (int64_t i = 0; i < grid.scales; ++i) {
    const FragmentScale& scale = scales[static_cast<size_t>(grid.UnitOfScale(i))];
    if (stored.dtype() == DType::kF32) {
      stored.as<float>()[i] = scale.scale_inv;
    } else {
      stored.as<uint8_t>()[i] = scale.code;
    }
  }
  return factors;
}

/// Writes codes of one byte each.
void EncodeBytes(const FragmentRule& rule, const FragmentGrid& grid, const TensorFragment& fragment,
                 const std::vector<float>& factors, uint8_t* codes,
                 const ExecutionContext& context) {
  ParallelFor(context, fragment.count(), kFragmentGrain, [&](int64_t begin, int64_t end) {
    ForValues(fragment.values, begin, end, [&](int64_t i, float value) {
      const int64_t unit = grid.UnitOfElement(fragment.begin + i);
      codes[i] = EncodeFragmentElement(rule, value, factors[static_cast<size_t>(unit)]);
    });
  });
}

/// Writes two codes per byte, in the bytes of the whole tensor.
void EncodeNibbles(const FragmentRule& rule, const FragmentGrid& grid,
                   const TensorFragment& fragment, const std::vector<float>& factors, Tensor& codes,
                   const ExecutionContext& context) {
  const int64_t first_byte = fragment.begin / 2;
  auto* bytes = codes.as<uint8_t>();
  ParallelFor(context, codes.element_count(), kFragmentGrain, [&](int64_t begin, int64_t end) {
    std::fill(bytes + begin, bytes + end, uint8_t{0});
    const auto at = [&](int64_t byte) { return 2 * (first_byte + byte) - fragment.begin; };
    const int64_t last = std::min(at(end), fragment.count());
    ForValues(fragment.values, std::max<int64_t>(at(begin), 0), last, [&](int64_t i, float value) {
      const int64_t element = fragment.begin + i;
      const int64_t unit = grid.UnitOfElement(element);
      const uint8_t code = EncodeFragmentElement(rule, value, factors[static_cast<size_t>(unit)]);
      bytes[element / 2 - first_byte] |= static_cast<uint8_t>(element % 2 == 0 ? code : code << 4);
    });
  });
}

}  // namespace

absl::StatusOr<Tensor> MeasureFragmentCpu(const TensorFragment& fragment, const QuantizerSpec& spec,
                                          Usage usage, const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckFragment(fragment, spec, usage));
  const FragmentGrid grid = MakeFragmentGrid(spec, usage, fragment.whole);
  const FragmentRule rule = MakeFragmentRule(fragment, spec);
  const int64_t count = FragmentAmaxCount(spec, usage, fragment.whole);
  std::vector<std::atomic<uint32_t>> amaxes(static_cast<size_t>(count));
  ParallelFor(context, fragment.count(), kFragmentGrain, [&](int64_t begin, int64_t end) {
    ForValues(fragment.values, begin, end, [&](int64_t i, float value) {
      const int64_t unit = grid.UnitOfElement(fragment.begin + i);
      RaiseTo(amaxes[static_cast<size_t>(unit)], FragmentMagnitude(value, rule.nan_counts));
    });
  });
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  QG_ASSIGN_OR_RETURN(Tensor found, Tensor::Allocate(DType::kF32, {count}));
  auto* bits = found.as<uint32_t>();
  uint32_t largest = 0;
  for (int64_t unit = 0; unit < grid.units; ++unit) {
    bits[unit] = amaxes[static_cast<size_t>(unit)].load();
    largest = std::max(largest, bits[unit]);
  }
  if (count > grid.units) bits[grid.units] = largest;
  return found;
}

absl::StatusOr<QuantizedFragment> QuantizeFragmentCpu(const TensorFragment& fragment,
                                                      const QuantizerSpec& spec, Usage usage,
                                                      const FragmentAmaxes& amaxes,
                                                      const Tensor& scale,
                                                      const ExecutionContext& context) {
  QG_RETURN_IF_ERROR(CheckFragmentArguments(fragment, spec, usage, amaxes, scale));
  const FragmentGrid grid = MakeFragmentGrid(spec, usage, fragment.whole);
  const FragmentRule rule = MakeFragmentRule(fragment, spec);
  QG_ASSIGN_OR_RETURN(QuantizedFragment quantized, OutlineFragment(fragment, spec, usage));
  QG_RETURN_IF_ERROR(AllocateAs(quantized.codes));
  QG_RETURN_IF_ERROR(AllocateAs(quantized.whole.scale_inv));
  QG_RETURN_IF_ERROR(AllocateAs(quantized.whole.amax));
  const float* own = amaxes.values.as<float>() + amaxes.first;
  std::vector<float> factors = StoreScales(rule, grid, own, quantized);
  if (quantized.whole.amax.has_value()) {
    *quantized.whole.amax.as<float>() =
        own[spec.traits().scales == ScaleKind::kTwoLevel ? grid.units : 0];
  }
  if (spec.traits().scales == ScaleKind::kTensor) {
    if (scale.has_value()) {
      factors[0] = *scale.as<float>();
      *quantized.whole.scale_inv.as<float>() = ScaleInverse(factors[0], rule.subnormals);
      float* const amax = quantized.whole.amax.as<float>();
      *amax = Flushed(*amax, rule.subnormals);
    }
    QG_ASSIGN_OR_RETURN(quantized.whole.scale, Tensor::FromScalar(factors[0]));
  }
  if (spec.element == DType::kF4E2M1x2) {
    EncodeNibbles(rule, grid, fragment, factors, quantized.codes, context);
  } else {
    EncodeBytes(rule, grid, fragment, factors, quantized.codes.as<uint8_t>(), context);
  }
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return quantized;
}

}  // namespace quantgate
