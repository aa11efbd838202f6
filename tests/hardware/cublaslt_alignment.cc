// Which dimensions, leading dimensions and pointers cuBLASLt's heuristic takes on the device at
// hand:
//   cublaslt_alignment
// Prints, per operand type and layout, what is accepted as each of m, n, k leaves the multiples of
// 16, so that the layers' alignment rule is a measurement. m is the row count of our a (x, dy), n
// of our b (w).
#include <cstdio>
#include <string>

#include "tests/hardware/cublaslt_probe.h"
#include "tests/hardware/cublaslt_runs.h"

namespace quantgate::hardware {
namespace {

/// Number of algorithms offered, or -status.
int Offered(ProbedDevice& device, const Probe& probe) {
  ProbedGemm gemm(device, probe);
  const size_t found = gemm.Algorithms(8).size();
  return found > 0 ? static_cast<int>(found) : -static_cast<int>(gemm.heuristic_status());
}

struct Types {
  DType a, b, d;
};

Probe Shaped(const Types& types, GemmLayout layout, const GemmShape& shape) {
  Probe probe;
  probe.shape = shape, probe.layout = layout;
  probe.a_type = types.a, probe.b_type = types.b, probe.d_type = types.d;
  if (types.a == DType::kF32) probe.compute = CUBLAS_COMPUTE_32F_FAST_TF32;
  probe.a.resize(static_cast<size_t>(shape.m * shape.k * DTypeBytes(types.a)));
  probe.b.resize(static_cast<size_t>(shape.n * shape.k * DTypeBytes(types.b)));
  return probe;
}

void Sweep(ProbedDevice& device, const Types& types, GemmLayout layout) {
  static const char* const kLayouts[] = {"tn", "nn", "nt"};
  const auto name = [](DType type) { return std::string(DTypeName(type)); };
  std::printf("%s x %s -> %s, %s\n", name(types.a).c_str(), name(types.b).c_str(),
              name(types.d).c_str(), kLayouts[static_cast<int>(layout)]);
  for (const char dim : {'m', 'n', 'k'}) {
    std::printf("  %c =", dim);
    for (const int64_t size :
         {1, 2, 4, 8, 12, 16, 24, 32, 36, 40, 48, 65, 66, 68, 72, 80, 130, 132, 136, 144}) {
      const GemmShape shape{dim == 'm' ? size : 64, dim == 'n' ? size : 64, dim == 'k' ? size : 64};
      std::printf(" %ld:%d", static_cast<long>(size),
                  Offered(device, Shaped(types, layout, shape)));
    }
    std::printf("\n");
  }
}

int Main() {
  using enum DType;
  using enum GemmLayout;
  ProbedDevice device;
  std::printf("%s\nsize:algorithms offered (at most 8), or size:-status; other dims 64\n",
              DeviceText().c_str());
  for (const DType d : {kF32, kBF16, kF16, kF8E4M3}) {
    Sweep(device, {kF8E4M3, kF8E4M3, d}, kTN);
    Sweep(device, {kF8E5M2, kF8E4M3, d}, kTN);
  }
  Sweep(device, {kF8E5M2, kF8E5M2, kBF16}, kTN);
  Sweep(device, {kF8E4M3, kF8E4M3, kBF16}, kNN);
  Sweep(device, {kF8E4M3, kF8E4M3, kBF16}, kNT);
  for (const GemmLayout layout : {kTN, kNN, kNT}) {
    Sweep(device, {kBF16, kBF16, kBF16}, layout);
    Sweep(device, {kBF16, kBF16, kF32}, layout);
    Sweep(device, {kF16, kF16, kF16}, layout);
    Sweep(device, {kF32, kF32, kF32}, layout);
  }
  return 0;
}

}  // namespace
}  // namespace quantgate::hardware

int main() { return quantgate::hardware::Main(); }
