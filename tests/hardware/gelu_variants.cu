#include "tests/hardware/gelu_variants.h"

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

namespace quantgate::hardware {
namespace {

constexpr int kInnerForms = 8, kOuterForms = 5;
constexpr float kK0 = 0.7978845608028654f, kK1 = 0.044715f, kK01 = 0.035677408136300125f;
constexpr float kK01Above = 0x1.2444fcp-5f;  // 5 units in the last place more: 0.0356774256.

const char* const kInnerNames[] = {
    "(k0*z)*(1+(k1*z)*z)", "(k0*z)*fma(k1*z,z,1)", "(k0*z)*fma(k1,z*z,1)", "k0*fma(k1,z*z*z,z)",
    "z*fma(k0k1,z*z,k0)",  "k0*fma(k1*z*z,z,z)",   "fma(k0k1*z*z,z,k0*z)", "z*fma(k3*z,z,k0)"};
const char* const kOuterNames[] = {"(z/2)*(1+t)", "fma(z/2,t,z/2)", "(z*(1+t))/2",
                                   "z*fma(1/2,t,1/2)", "fma(z,t,z)/2"};

__device__ float ApproximateTanh(float u) {
  float t;
  asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(u));
  return t;
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
    case 6:
      return fmaf(kK01 * z2, z, kK0 * z);
    default:
      return z * fmaf(kK01Above * z, z, kK0);
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

/// Variants beyond the products of forms: another tanh, erf, and everything in fp64.
__device__ float Closed(int variant, float z) {
  const double wide = z;
  if (variant == 0) return 0.5f * z * (1.0f + erff(z * 0.70710678118654752f));
  if (variant == 1) return static_cast<float>(0.5 * wide * (1.0 + erf(wide * 0.70710678118654752)));
  if (variant == 2) return Outer(0, z, tanhf(Inner(1, z)));
  const double u = 0.7978845608028654 * (wide + 0.044715 * wide * wide * wide);
  return static_cast<float>(0.5 * wide * (1.0 + tanh(u)));
}

constexpr int kFormCount = kInnerForms * kOuterForms;
const char* const kClosedNames[] = {"erff", "fp64 erf", "tanhf", "fp64 tanh form"};

__global__ void Forward(int variant, const float* x, float* y, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float z = x[i];
  if (variant >= kFormCount) {
    y[i] = Closed(variant - kFormCount, z);
    return;
  }
  y[i] = Outer(variant % kOuterForms, z, ApproximateTanh(Inner(variant / kOuterForms, z)));
}

// With A = fma(-t,t,1) and B = fma(k2*z,z,k0), of one of these k2.
constexpr int kSlopeForms = 5, kSlopeConstants = 3, kSlopeInners = 3;
const float kK2[] = {0.1070322243f, 3.0f * kK01, 3.0f * kK01Above};
const char* const kK2Names[] = {"0.1070322243", "3*k0k1", "3*k3"};
const int kSlopeInner[] = {1, 7, 5};  // Of the inner forms.
const char* const kSlopeNames[] = {"(z/2)*(A*B)+(1+t)/2", "fma(z/2,A*B,(1+t)/2)",
                                   "fma(z/2*A,B,(1+t)/2)", "fma(z/2*B,A,(1+t)/2)",
                                   "(1+fma(z*B,A,t))/2"};

__global__ void Backward(int slope_form, int inner, float k2, const float* z_in, const float* dy,
                         float* dx, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float z = z_in[i], half = 0.5f * z;
  const float t = ApproximateTanh(Inner(inner, z));
  const float a = fmaf(-t, t, 1.0f), b = fmaf(k2 * z, z, kK0), rest = 0.5f * (1.0f + t);
  float slope;
  switch (slope_form) {
    case 0:
      slope = half * (a * b) + rest;
      break;
    case 1:
      slope = fmaf(half, a * b, rest);
      break;
    case 2:
      slope = fmaf(half * a, b, rest);
      break;
    case 3:
      slope = fmaf(half * b, a, rest);
      break;
    default:
      slope = 0.5f * (1.0f + fmaf(z * b, a, t));
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

int GeluVariantCount() { return kFormCount + 4; }

std::string GeluVariantName(int variant) {
  if (variant >= kFormCount) return kClosedNames[variant - kFormCount];
  return std::string("tanh.approx of ") + kInnerNames[variant / kOuterForms] + ", " +
         kOuterNames[variant % kOuterForms];
}

std::vector<float> Gelu(int variant, const std::vector<float>& x) {
  const DeviceArray in(x), out(x, false);
  Forward<<<Blocks(x.size()), 256>>>(variant, in.get(), out.get(), static_cast<int64_t>(x.size()));
  return Fetched(out, x.size());
}

int GeluGradientVariantCount() { return kSlopeForms * kSlopeConstants * kSlopeInners; }

std::string GeluGradientVariantName(int variant) {
  const int constant = variant / kSlopeForms % kSlopeConstants;
  return std::string("tanh.approx of ") +
         kInnerNames[kSlopeInner[variant / kSlopeForms / kSlopeConstants]] +
         ", k2=" + kK2Names[constant] + ", " + kSlopeNames[variant % kSlopeForms];
}

std::vector<float> GeluGradient(int variant, const std::vector<float>& z,
                                const std::vector<float>& dy) {
  const DeviceArray in(z), gradient(dy), out(dy, false);
  Backward<<<Blocks(z.size()), 256>>>(variant % kSlopeForms,
                                      kSlopeInner[variant / kSlopeForms / kSlopeConstants],
                                      kK2[variant / kSlopeForms % kSlopeConstants], in.get(),
                                      gradient.get(), out.get(), static_cast<int64_t>(z.size()));
  return Fetched(out, z.size());
}

}  // namespace quantgate::hardware
