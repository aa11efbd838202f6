// Formats of levels by the steps of level_rule.h, as quantize_levels.cc has them.
#include <type_traits>

#include "kernels/quantize/compiled_formats.h"
#include "kernels/quantize/cuda/tile_parts_cuda.h"
#include "kernels/quantize/general/level_kernels.h"

namespace quantgate {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarpLanes;
constexpr unsigned kAllLanes = 0xFFFFFFFF;

/// The one of two that is before the other: is_before(a, b) of values, and the first of equal ones.
template <class IsBefore>
__device__ PlacedElement Leading(const PlacedElement& a, const PlacedElement& b,
                                 const IsBefore& is_before) {
  if (a.at < 0 || b.at < 0) return a.at < 0 ? b : a;
  if (is_before(a.value, b.value)) return a;
  if (is_before(b.value, a.value)) return b;
  return a.at < b.at ? a : b;
}

__device__ PartExtremes Joined(const PartExtremes& a, const PartExtremes& b) {
  const auto less = [](float x, float y) { return x < y; };
  const auto more = [](float x, float y) { return x > y; };
  const auto larger = [](float x, float y) { return fabsf(x) > fabsf(y); };
  return {Leading(a.least, b.least, less), Leading(a.most, b.most, more),
          Leading(a.largest, b.largest, larger)};
}

__device__ PlacedElement FromLane(const PlacedElement& element, int distance) {
  return {__shfl_xor_sync(kAllLanes, element.value, distance),
          __shfl_xor_sync(kAllLanes, element.at, distance)};
}

/// Of all lanes of a warp.
__device__ PartExtremes JoinedOfWarp(PartExtremes part) {
  for (int distance = kWarpLanes / 2; distance > 0; distance /= 2) {
    part = Joined(part, {FromLane(part.least, distance), FromLane(part.most, distance),
                         FromLane(part.largest, distance)});
  }
  return part;
}

__device__ int LaneOf() { return static_cast<int>(threadIdx.x) % kWarpLanes; }
__device__ int64_t FirstWarp() { return int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpLanes; }
__device__ int64_t AllWarps() { return int64_t{gridDim.x} * kWarps; }

/// Part `part` of a group, by one warp. NaN elements are left out.
__device__ PartExtremes MeasurePart(const LevelQuantization& job, const GeneralGrid::Unit& place,
                                    int64_t part) {
  const int64_t length = (place.count() + job.parts - 1) / job.parts;
  const int64_t begin = part * length, end = min(begin + length, place.count());
  PartExtremes found;
  for (int64_t at = begin + LaneOf(); at < end; at += kWarpLanes) {
    const float value =
        LoadElement(job.source, job.source_format, job.grid.SourceIndexIn(place, at));
    if (value != value) continue;
    const PlacedElement element = {value, at};
    found = Joined(found, {element, element, element});
  }
  return JoinedOfWarp(found);
}

/// One warp per part.
__global__ void __launch_bounds__(kThreads) MeasureLevelParts(const LevelQuantization job) {
  for (int64_t i = FirstWarp(); i < job.grid.units * job.parts; i += AllWarps()) {
    const PartExtremes part = MeasurePart(job, job.grid.UnitAt(i / job.parts), i % job.parts);
    if (LaneOf() == 0) job.extremes[i] = part;
  }
}

/// Of all parts of a group, by one warp.
__device__ PartExtremes JoinedOfParts(const LevelQuantization& job, int64_t unit) {
  PartExtremes all;
  for (int64_t i = LaneOf(); i < job.parts; i += kWarpLanes) {
    all = Joined(all, job.extremes[unit * job.parts + i]);
  }
  return JoinedOfWarp(all);
}

__device__ void StoreZero(const LevelQuantization& job, int64_t unit, float zero) {
  if (job.rule.zero_point == ZeroPoint::kFloat) {
    static_cast<float*>(job.zero_points)[unit] = zero;
  } else {
    static_cast<uint8_t*>(job.zero_points)[unit] = static_cast<uint8_t>(static_cast<int>(zero));
  }
}

/// One warp per group.
__global__ void __launch_bounds__(kThreads) MakeLevelScales(const LevelQuantization job) {
  for (int64_t i = FirstWarp(); i < job.grid.units; i += AllWarps()) {
    const GeneralGrid::Unit place = job.grid.UnitAt(i);
    const PartExtremes all = job.parts == 1 ? MeasurePart(job, place, 0) : JoinedOfParts(job, i);
    if (LaneOf() != 0) continue;
    GroupExtremes group;
    group.least = all.least.value;
    group.most = all.most.value;
    group.first_largest = all.largest.value;
    group.is_partial = place.end - place.begin < job.grid.unit_length;
    const LevelScale scale = MakeLevelScale(job.rule, group);
    job.scales[i] = scale;
    const int64_t index = job.grid.ScaleIndex(place, place.line);
    job.scale_inv[index] = scale.scale_inv;
    if (job.zero_points != nullptr) StoreZero(job, index, scale.zero);
  }
}

/// One thread per byte of codes.
__global__ void __launch_bounds__(kThreads) EncodeLevels(const LevelQuantization job) {
  const int per_byte = 8 / BitsOf(job.rule.levels);
  const int64_t bytes = job.grid.lines * job.grid.length / per_byte;
  ThreadCounts counts;
  int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; i < bytes; i += int64_t{gridDim.x} * kThreads) {
    uint8_t byte = 0;
    for (int j = 0; j < per_byte; ++j) {
      const GeneralGrid::Place place = job.grid.PlaceOf(i * per_byte + j);
      const float value = LoadElement(job.source, job.source_format,
                                      job.grid.SourceIndex(place.line, place.element));
      const LevelScale& scale = job.scales[job.grid.UnitOf(place.line, place.element)];
      const LevelCode code = LevelCodeOf(job.rule, scale, value);
      if (job.counts != nullptr) {
        counts.Add(KindOfLevel(job.rule, scale, ClassOf(value), code));
      }
      byte |= static_cast<uint8_t>(code.code << (4 * j));
    }
    job.codes[i] = byte;
  }
  if (job.counts == nullptr) return;
  __shared__ WarpCounts<kWarps> of_warps;
  counts.AddTo(job.counts, of_warps);
}

__device__ float ZeroAt(const LevelDequantization& job, int64_t unit) {
  if (job.zero_point == ZeroPoint::kNone) return 0.0f;
  if (job.zero_point == ZeroPoint::kFloat) return static_cast<const float*>(job.zero_points)[unit];
  return IsSigned(job.levels)
             ? static_cast<float>(static_cast<const int8_t*>(job.zero_points)[unit])
             : static_cast<float>(static_cast<const uint8_t*>(job.zero_points)[unit]);
}

/// One thread per element.
__global__ void __launch_bounds__(kThreads) DequantizeLevels(const LevelDequantization job) {
  const int per_byte = 8 / BitsOf(job.levels);
  const int64_t count = job.grid.lines * job.grid.length;
  int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; i < count; i += int64_t{gridDim.x} * kThreads) {
    const GeneralGrid::Place place = job.grid.PlaceOf(i);
    const uint8_t byte = job.codes[i / per_byte];
    const auto code = static_cast<uint8_t>(per_byte == 1 ? byte : byte >> (i % 2 * 4) & 15);
    const int64_t unit = job.grid.UnitOf(place.line, place.element);
    const float value =
        LevelValue(job.levels, job.zero_point, code, job.scale_inv[unit], ZeroAt(job, unit));
    const int64_t index = job.grid.SourceIndex(place.line, place.element);
    VisitFormatIn(SourceFormats{}, job.out_format, [&]<class Out>() {
      if constexpr (std::is_same_v<Out, Float32>) {
        static_cast<float*>(job.out)[index] = CanonicalFloat(value);
      } else {
        static_cast<uint16_t*>(job.out)[index] = EncodeFloat<Out>(value);
      }
    });
  }
}

}  // namespace

int64_t LevelPartsOf(const GeneralGrid& grid) {
  constexpr int64_t kPartElements = 4096, kPartsMax = 1024, kManyUnits = 1024;
  const int64_t length = grid.unit_lines * grid.unit_length;
  if (grid.units >= kManyUnits || length <= kPartElements) return 1;
  const int64_t parts = (length + kPartElements - 1) / kPartElements;
  return parts < kPartsMax ? parts : kPartsMax;
}

cudaError_t LaunchLevelScales(const LevelQuantization& job, int multiprocessors,
                              cudaStream_t stream) {
  if (job.grid.units == 0) return cudaSuccess;
  const int blocks = multiprocessors * 8;
  if (job.parts > 1) {
    MeasureLevelParts<<<blocks, kThreads, 0, stream>>>(job);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  }
  MakeLevelScales<<<blocks, kThreads, 0, stream>>>(job);
  return cudaGetLastError();
}

cudaError_t LaunchLevelCodes(const LevelQuantization& job, int multiprocessors,
                             cudaStream_t stream) {
  if (job.grid.lines == 0 || job.grid.length == 0) return cudaSuccess;
  EncodeLevels<<<multiprocessors * 8, kThreads, 0, stream>>>(job);
  return cudaGetLastError();
}

cudaError_t LaunchDequantizeLevels(const LevelDequantization& job, int multiprocessors,
                                   cudaStream_t stream) {
  if (job.grid.lines == 0 || job.grid.length == 0) return cudaSuccess;
  DequantizeLevels<<<multiprocessors * 8, kThreads, 0, stream>>>(job);
  return cudaGetLastError();
}

}  // namespace quantgate
