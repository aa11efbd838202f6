// Every format by the steps of library_rule.h, as quantize_general.cc has them.
#include "kernels/quantize/compiled_formats.h"
#include "kernels/quantize/cuda/tile_parts_cuda.h"
#include "kernels/quantize/general/general_kernels.h"

namespace quantgate {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarpLanes;

/// max |x| of a unit by one warp, as UnitAmax of the CPU engine.
__device__ float UnitAmax(const GeneralQuantization& job, const GeneralGrid::Unit& unit, int lane) {
  const bool takes_nan = UnitTakesNan(job.rule);
  const int64_t count = unit.count();
  uint32_t amax = 0;
  for (int64_t i = lane; i < count; i += kWarpLanes) {
    const float value = LoadElement(job.source, job.source_format, job.grid.SourceIndexIn(unit, i));
    const uint32_t magnitude = MagnitudeBits(value);
    if (magnitude > amax && (takes_nan || magnitude <= kInfinityBits)) amax = magnitude;
  }
  return CanonicalFloat(__uint_as_float(__reduce_max_sync(0xFFFFFFFF, amax)));
}

__device__ void StoreScale(const GeneralQuantization& job, const GeneralGrid::Unit& place,
                           const UnitScale& unit, int lane) {
  const int64_t copies = job.grid.ScaleCopies(place);
  for (int64_t i = lane; i < copies; i += kWarpLanes) {
    const int64_t index = job.grid.ScaleIndex(place, place.line + i);
    if (job.rule.scales == ScaleKind::kF32) {
      static_cast<float*>(job.scales)[index] = unit.scale_inv;
    } else {
      static_cast<uint8_t*>(job.scales)[index] = unit.code;
    }
  }
}

/// One warp per unit.
template <class Element>
__global__ void __launch_bounds__(kThreads) MakeBlockScales(const GeneralQuantization job) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const float tensor_amax = job.tensor_amax == nullptr ? 0.0f : *job.tensor_amax;
  int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpLanes;
  for (; i < job.grid.units; i += int64_t{gridDim.x} * kWarps) {
    const GeneralGrid::Unit place = job.grid.UnitAt(i);
    const UnitScale unit =
        MakeUnitScale<Element>(job.rule, UnitAmax(job, place, lane), tensor_amax);
    if (lane == 0) job.units[i] = unit;
    StoreScale(job, place, unit, lane);
  }
}

/// The one unit of a tensor.
template <class Element>
__global__ void MakeTensorUnit(const GeneralQuantization job) {
  UnitScale unit;
  if (job.given_scale != nullptr) {
    unit = GivenUnitScale(job.rule, *job.given_scale);
  } else if (job.is_empty) {
    unit = GivenUnitScale(job.rule, 1.0f);
  } else {
    unit = MakeUnitScale<Element>(job.rule, *job.tensor_amax, 0.0f);
  }
  *job.units = unit;
  *job.tensor_scale = unit.scale;
  *job.tensor_scale_inv = unit.scale_inv;
}

/// One thread per byte of codes; two E2M1 codes share one.
template <class Element>
__global__ void __launch_bounds__(kThreads) EncodeBytes(const GeneralQuantization job) {
  constexpr int kPerByte = FormatConstants<Element>::kBits == 4 ? 2 : 1;
  const int64_t bytes = job.grid.lines * job.grid.length / kPerByte;
  ThreadCounts counts;
  int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; i < bytes; i += int64_t{gridDim.x} * kThreads) {
    uint8_t byte = 0;
    for (int j = 0; j < kPerByte; ++j) {
      const GeneralGrid::Place place = job.grid.PlaceOf(i * kPerByte + j);
      const float value = LoadElement(job.source, job.source_format,
                                      job.grid.SourceIndex(place.line, place.element));
      const UnitScale& unit = job.units[job.grid.UnitOf(place.line, place.element)];
      const float scaled = ScaledElement(job.rule, unit, value);
      const uint8_t code = ElementCode<Element>(job.rule, scaled);
      if (job.counts != nullptr) {
        counts.Add(KindOfElement<Element>(ClassOf(value), scaled, code, job.rule.rounding));
      }
      byte |= static_cast<uint8_t>(code << (4 * j));
    }
    job.codes[i] = byte;
  }
  if (job.counts == nullptr) return;
  __shared__ WarpCounts<kWarps> of_warps;
  counts.AddTo(job.counts, of_warps);
}

using Kernel = void (*)(GeneralQuantization);

}  // namespace

cudaError_t LaunchGeneralScales(const GeneralQuantization& job, int multiprocessors,
                                cudaStream_t stream) {
  if (job.rule.scales == ScaleKind::kTensor) {
    const Kernel kernel = VisitFormatIn(GeneralFormats{}, job.element,
                                        [&]<class F>() -> Kernel { return &MakeTensorUnit<F>; });
    kernel<<<1, 1, 0, stream>>>(job);
    return cudaGetLastError();
  }
  if (job.grid.units == 0) return cudaSuccess;
  const Kernel kernel = VisitFormatIn(GeneralFormats{}, job.element,
                                      [&]<class F>() -> Kernel { return &MakeBlockScales<F>; });
  kernel<<<multiprocessors * 8, kThreads, 0, stream>>>(job);
  return cudaGetLastError();
}

cudaError_t LaunchGeneralCodes(const GeneralQuantization& job, int multiprocessors,
                               cudaStream_t stream) {
  if (job.grid.lines == 0 || job.grid.length == 0) return cudaSuccess;
  const Kernel kernel = VisitFormatIn(GeneralFormats{}, job.element,
                                      [&]<class F>() -> Kernel { return &EncodeBytes<F>; });
  kernel<<<multiprocessors * 8, kThreads, 0, stream>>>(job);
  return cudaGetLastError();
}

}  // namespace quantgate
