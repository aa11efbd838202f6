#include "kernels/ops/optimizer/optimizer_kernels.h"

#include "kernels/ops/launch_cuda.h"

namespace quantgate {
namespace {

constexpr int kWidth = 4;

__device__ float FloatOrZero(const float* array, int64_t i) {
  return array != nullptr ? array[i] : 0.0f;
}
__device__ void StoreWhereWanted(float* array, int64_t i, float value) {
  if (array != nullptr) array[i] = CanonicalFloat(value);
}

/// Values of a thread before and after.
struct Element {
  float master, m, v;
};
__device__ Element Update(const AdamFactors& factors, const Element& element, float gradient) {
  const AdamElement updated = AdamUpdate({element.master, element.m, element.v}, gradient, factors);
  return {updated.master, updated.m, updated.v};
}
__device__ Element Update(const SgdFactors& factors, const Element& element, float gradient) {
  const SgdElement updated = SgdUpdate({element.master, element.m}, gradient, factors);
  return {updated.master, updated.momentum, 0.0f};
}

template <class Factors>
__device__ void UpdateOne(const Factors& factors, const OptimizerParameters& parameters,
                          int64_t i) {
  const Element updated = Update(
      factors, {parameters.master[i], FloatOrZero(parameters.m, i), FloatOrZero(parameters.v, i)},
      LoadFloat(parameters.gradient, i));
  StoreWhereWanted(parameters.new_master, i, updated.master);
  StoreWhereWanted(parameters.new_m, i, updated.m);
  StoreWhereWanted(parameters.new_v, i, updated.v);
}

template <class Factors>
__global__ void PlainUpdate(const Factors factors, const OptimizerParameters parameters) {
  for (int64_t i = FirstItem(); i < parameters.count; i += ItemStride()) {
    UpdateOne(factors, parameters, i);
  }
}

__device__ void LoadOrZero(const float* array, int64_t at, float (&values)[kWidth]) {
  if (array != nullptr) {
    LoadLanes({array, NumberEncoding::kF32}, at, values);
  } else {
    for (float& value : values) value = 0;
  }
}
__device__ void StoreWhereWanted(float* array, int64_t at, const float (&values)[kWidth]) {
  if (array != nullptr) StoreLanes({array, NumberEncoding::kF32}, at, values);
}

template <class Factors>
__global__ void WideUpdate(const Factors factors, const OptimizerParameters parameters) {
  const int64_t pieces = parameters.count / kWidth;
  for (int64_t i = FirstItem(); i < pieces; i += ItemStride()) {
    const int64_t at = kWidth * i;
    float gradient[kWidth], master[kWidth], m[kWidth], v[kWidth];
    LoadLanes(parameters.gradient, at, gradient);
    LoadOrZero(parameters.master, at, master);
    LoadOrZero(parameters.m, at, m);
    LoadOrZero(parameters.v, at, v);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      const Element updated = Update(factors, {master[j], m[j], v[j]}, gradient[j]);
      master[j] = updated.master;
      m[j] = updated.m;
      v[j] = updated.v;
    }
    StoreWhereWanted(parameters.new_master, at, master);
    StoreWhereWanted(parameters.new_m, at, m);
    StoreWhereWanted(parameters.new_v, at, v);
  }
  const int64_t i = kWidth * pieces + FirstItem();
  if (i < parameters.count) UpdateOne(factors, parameters, i);
}

template <class Factors>
cudaError_t Launch(const Factors& factors, const OptimizerParameters& parameters, KernelPath path,
                   cudaStream_t stream) {
  if (parameters.count == 0) return cudaSuccess;
  bool is_aligned = IsAlignedForLanes(parameters.gradient.data);
  const float* const arrays[] = {parameters.master,     parameters.m,     parameters.v,
                                 parameters.new_master, parameters.new_m, parameters.new_v};
  for (const float* array : arrays) {
    is_aligned = is_aligned && IsAlignedForLanes(array);
  }
  if (path == KernelPath::kTuned && is_aligned) {
    WideUpdate<<<BlocksFor(parameters.count / kWidth + 1), kItemThreads, 0, stream>>>(factors,
                                                                                      parameters);
  } else {
    PlainUpdate<<<BlocksFor(parameters.count), kItemThreads, 0, stream>>>(factors, parameters);
  }
  return cudaGetLastError();
}

__global__ void SplitElements(const uint32_t* master, uint16_t* parameter, uint16_t* remainder,
                              int64_t begin, int64_t count) {
  for (int64_t i = begin + FirstItem(); i < count; i += ItemStride()) {
    const SplitBits split = SplitMasterBits(master[i]);
    parameter[i] = split.parameter;
    remainder[i] = split.remainder;
  }
}

__global__ void SplitQuads(const uint4* master, ushort4* parameter, ushort4* remainder,
                           int64_t quads) {
  for (int64_t i = FirstItem(); i < quads; i += ItemStride()) {
    const uint4 from = master[i];
    const SplitBits split[4] = {SplitMasterBits(from.x), SplitMasterBits(from.y),
                                SplitMasterBits(from.z), SplitMasterBits(from.w)};
    parameter[i] = make_ushort4(split[0].parameter, split[1].parameter, split[2].parameter,
                                split[3].parameter);
    remainder[i] = make_ushort4(split[0].remainder, split[1].remainder, split[2].remainder,
                                split[3].remainder);
  }
}

__global__ void JoinElements(const uint16_t* parameter, const uint16_t* remainder, uint32_t* master,
                             int64_t begin, int64_t count) {
  for (int64_t i = begin + FirstItem(); i < count; i += ItemStride()) {
    master[i] = JoinMasterBits({parameter[i], remainder[i]});
  }
}

__global__ void JoinQuads(const ushort4* parameter, const ushort4* remainder, uint4* master,
                          int64_t quads) {
  for (int64_t i = FirstItem(); i < quads; i += ItemStride()) {
    const ushort4 high = parameter[i], low = remainder[i];
    master[i] = make_uint4(JoinMasterBits({high.x, low.x}), JoinMasterBits({high.y, low.y}),
                           JoinMasterBits({high.z, low.z}), JoinMasterBits({high.w, low.w}));
  }
}

/// Quads that the tuned kernels take; the plain ones take the rest.
int64_t QuadsOf(const void* a, const void* b, const void* c, int64_t count, KernelPath path) {
  const bool is_aligned = IsAlignedForLanes(a) && IsAlignedForLanes(b) && IsAlignedForLanes(c);
  return path == KernelPath::kTuned && is_aligned ? count / 4 : 0;
}

}  // namespace

cudaError_t LaunchAdam(const AdamFactors& factors, const OptimizerParameters& parameters,
                       KernelPath path, cudaStream_t stream) {
  return Launch(factors, parameters, path, stream);
}
cudaError_t LaunchSgd(const SgdFactors& factors, const OptimizerParameters& parameters,
                      KernelPath path, cudaStream_t stream) {
  return Launch(factors, parameters, path, stream);
}

cudaError_t LaunchSplitMaster(const uint32_t* master, uint16_t* parameter, uint16_t* remainder,
                              int64_t count, KernelPath path, cudaStream_t stream) {
  const int64_t quads = QuadsOf(master, parameter, remainder, count, path);
  if (quads > 0) {
    SplitQuads<<<BlocksFor(quads), kItemThreads, 0, stream>>>(
        reinterpret_cast<const uint4*>(master), reinterpret_cast<ushort4*>(parameter),
        reinterpret_cast<ushort4*>(remainder), quads);
  }
  if (4 * quads < count) {
    SplitElements<<<BlocksFor(count - 4 * quads), kItemThreads, 0, stream>>>(
        master, parameter, remainder, 4 * quads, count);
  }
  return cudaGetLastError();
}

cudaError_t LaunchJoinMaster(const uint16_t* parameter, const uint16_t* remainder, uint32_t* master,
                             int64_t count, KernelPath path, cudaStream_t stream) {
  const int64_t quads = QuadsOf(master, parameter, remainder, count, path);
  if (quads > 0) {
    JoinQuads<<<BlocksFor(quads), kItemThreads, 0, stream>>>(
        reinterpret_cast<const ushort4*>(parameter), reinterpret_cast<const ushort4*>(remainder),
        reinterpret_cast<uint4*>(master), quads);
  }
  if (4 * quads < count) {
    JoinElements<<<BlocksFor(count - 4 * quads), kItemThreads, 0, stream>>>(
        parameter, remainder, master, 4 * quads, count);
  }
  return cudaGetLastError();
}

}  // namespace quantgate
