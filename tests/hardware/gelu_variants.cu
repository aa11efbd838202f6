#include "tests/hardware/gelu_variants.h"

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

namespace quantgate::hardware {
namespace {

constexpr int kInnerForms = 7, kOuterForms = 5, kTanhs = 4;
constexpr float kK0 = 0.7978845608028654f, kK1 = 0.044715f, kK01 = 0.035677408136300125f;

const char* const kInnerNames[] = {
    "(k0*z)*(1+(k1*z)*z)", "(k0*z)*fma(k1*z,z,1)", "(k0*z)*fma(k1,z*z,1)", "k0*fma(k1,z*z*z,z)",
    "z*fma(k0k1,z*z,k0)",  "k0*fma(k1*z*z,z,z)",   "fma(k0k1*z*z,z,k0*z)"};
const char* const kOuterNames[] = {"(z/2)*(1+t)", "fma(z/2,t,z/2)", "(z*(1+t))/2",
                                   "z*fma(1/2,t,1/2)", "fma(z,t,z)/2"};
const char* const kTanhNames[] = {"tanh.approx", "tanhf", "fp64 tanh", "1-2/(1+ex2.approx)"};

__device__ float TanhOf(int kind, float u) {
  if (kind == 1) return tanhf(u);
  if (kind == 2) return static_cast<float>(tanh(static_cast<double>(u)));
  float t;
  if (kind == 0) {
    asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(u));
    return t;
  }
  return 1.0f - __fdividef(2.0f, 1.0f + __expf(2.0f * u));
}

__device__ float Inner(int form, float z) {
  const float z2 = z * z;
  switch (form) {
    case 0:
      return (kK0 * z) * (1.0f + (kK1 * z) * z);
    case 1:
      return (kK0 * z) * fmaf(kK1 * z, z, 1.0f);
    case 2:
      return (kK0 * z) * fmaf(kK1, z2, 1.0f);
    case 3:
      return kK0 * fmaf(kK1, z2 * z, z);
    case 4:
      return z * fmaf(kK01, z2, kK0);
    case 5:
      return kK0 * fmaf(kK1 * z2, z, z);
    default:
      return fmaf(kK01 * z2, z, kK0 * z);
  }
}

__device__ float Outer(int form, float z, float t) {
  switch (form) {
    case 0:
      return (0.5f * z) * (1.0f + t);
    case 1:
      return fmaf(0.5f * z, t, 0.5f * z);
    case 2:
      return 0.5f * (z * (1.0f + t));
    case 3:
      return z * fmaf(0.5f, t, 0.5f);
    default:
      return 0.5f * fmaf(z, t, z);
  }
}

/// Variants beyond the products of forms: erf, and everything in fp64.
__device__ float Closed(int variant, float z) {
  const double wide = z;
  if (variant == 0) return 0.5f * z * (1.0f + erff(z * 0.70710678118654752f));
  if (variant == 1) return static_cast<float>(0.5 * wide * (1.0 + erf(wide * 0.70710678118654752)));
  const double u = 0.7978845608028654 * (wide + 0.044715 * wide * wide * wide);
  return static_cast<float>(0.5 * wide * (1.0 + tanh(u)));
}

constexpr int kFormCount = kInnerForms * kOuterForms * kTanhs;
const char* const kClosedNames[] = {"erff", "fp64 erf", "fp64 tanh form"};

__global__ void Forward(int variant, const float* x, float* y, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float z = x[i];
  if (variant >= kFormCount) {
    y[i] = Closed(variant - kFormCount, z);
    return;
  }
  const int outer = variant % kOuterForms, inner = variant / kOuterForms % kInnerForms;
  y[i] = Outer(outer, z, TanhOf(variant / kOuterForms / kInnerForms, Inner(inner, z)));
}

constexpr float kK2 = 0.1070322243f;  // 3 * k0 * k1.
const char* const kDerivativeNames[] = {"0.5*z*((1-t*t)*(k0+k2*z*z))+0.5*(1+t)",
                                        "the same, contracted to fma", "fp64"};
constexpr int kDerivativeForms = 3;

__global__ void Backward(int variant, const float* z_in, const float* dy, float* dx,
                         int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int form = variant % kDerivativeForms, kind = variant / kDerivativeForms;
  const float z = z_in[i];
  if (form == 2) {
    const double w = z, t = tanh(0.7978845608028654 * (w + 0.044715 * w * w * w));
    const double slope = 0.5 * w * (1 - t * t) * (0.7978845608028654 + 0.1070322243 * w * w);
    dx[i] = static_cast<float>((slope + 0.5 * (1 + t)) * static_cast<double>(dy[i]));
    return;
  }
  const float t = TanhOf(kind, Inner(form == 0 ? 0 : 1, z));
  float slope;
  if (form == 0) {
    slope = 0.5f * z * ((1.0f - t * t) * (kK0 + kK2 * z * z)) + 0.5f * (1.0f + t);
  } else {
    slope = fmaf(0.5f * z, fmaf(-t, t, 1.0f) * fmaf(kK2 * z, z, kK0), fmaf(0.5f, t, 0.5f));
  }
  dx[i] = slope * dy[i];
}

void Check(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(status));
  std::exit(1);
}

/// A device copy of `values` (or space for as many), freed at the end of its scope.
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<float>& values, bool copied = true) {
    const size_t bytes = values.size() * sizeof(float);
    Check(cudaMalloc(&memory_, bytes));
    if (copied) Check(cudaMemcpy(memory_, values.data(), bytes, cudaMemcpyHostToDevice));
  }
  ~DeviceArray() { cudaFree(memory_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  float* get() const { return static_cast<float*>(memory_); }

 private:
  void* memory_ = nullptr;
};

std::vector<float> Fetched(const DeviceArray& array, size_t count) {
  Check(cudaGetLastError());
  std::vector<float> values(count);
  Check(cudaMemcpy(values.data(), array.get(), count * sizeof(float), cudaMemcpyDeviceToHost));
  return values;
}

unsigned Blocks(size_t count) { return static_cast<unsigned>((count + 255) / 256); }

}  // namespace

int GeluVariantCount() { return kFormCount + 3; }

std::string GeluVariantName(int variant) {
  if (variant >= kFormCount) return kClosedNames[variant - kFormCount];
  return std::string(kTanhNames[variant / kOuterForms / kInnerForms]) + " of " +
         kInnerNames[variant / kOuterForms % kInnerForms] + ", " +
         kOuterNames[variant % kOuterForms];
}

std::vector<float> Gelu(int variant, const std::vector<float>& x) {
  const DeviceArray in(x), out(x, false);
  Forward<<<Blocks(x.size()), 256>>>(variant, in.get(), out.get(), static_cast<int64_t>(x.size()));
  return Fetched(out, x.size());
}

int GeluGradientVariantCount() { return kDerivativeForms * kTanhs; }

std::string GeluGradientVariantName(int variant) {
  return std::string(kTanhNames[variant / kDerivativeForms]) + ", " +
         kDerivativeNames[variant % kDerivativeForms];
}

std::vector<float> GeluGradient(int variant, const std::vector<float>& z,
                                const std::vector<float>& dy) {
  const DeviceArray in(z), gradient(dy), out(dy, false);
  Backward<<<Blocks(z.size()), 256>>>(variant, in.get(), gradient.get(), out.get(),
                                      static_cast<int64_t>(z.size()));
  return Fetched(out, z.size());
}

}  // namespace quantgate::hardware
