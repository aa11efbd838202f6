// Which dimensions, leading dimensions and pointers cuBLASLt's heuristic takes on the device at
// hand:
//   cublaslt_alignment
// Prints, per operand type and layout, what is accepted as each of m, n, k leaves the multiples of
// 16, so that the layers' alignment rule is a measurement. m is the row count of our a (x, dy), n
// of our b (w).
#include <cstdio>

#include "tests/hardware/cublaslt_gemm.h"

namespace quantgate::hardware {
namespace {

/// Number of algorithms offered, or -status.
int Offered(Device& device, const GemmCase& gemm) {
  LoadedGemm loaded(device, gemm);
  const size_t found = loaded.Algorithms(8, CUBLASLT_REDUCTION_SCHEME_NONE).size();
  return found > 0 ? static_cast<int>(found) : -static_cast<int>(loaded.heuristic_status());
}

GemmCase Shaped(const char* a, const char* b, const char* d, Layout layout, int64_t m, int64_t n,
                int64_t k) {
  GemmCase gemm;
  gemm.m = m, gemm.n = n, gemm.k = k, gemm.layout = layout;
  gemm.a_type = a, gemm.b_type = b, gemm.d_type = d;
  gemm.a.resize(static_cast<size_t>(m * k * BytesOf(a)));
  gemm.b.resize(static_cast<size_t>(n * k * BytesOf(b)));
  return gemm;
}

void Sweep(Device& device, const char* a, const char* b, const char* d, Layout layout) {
  static const char* const kLayouts[] = {"tn", "nn", "nt"};
  std::printf("%s x %s -> %s, %s\n", a, b, d, kLayouts[static_cast<int>(layout)]);
  for (const char dim : {'m', 'n', 'k'}) {
    std::printf("  %c =", dim);
    for (const int64_t size :
         {1, 2, 4, 8, 12, 16, 24, 32, 36, 40, 48, 65, 66, 68, 72, 80, 130, 132, 136, 144}) {
      const int64_t m = dim == 'm' ? size : 64, n = dim == 'n' ? size : 64,
                    k = dim == 'k' ? size : 64;
      std::printf(" %ld:%d", static_cast<long>(size),
                  Offered(device, Shaped(a, b, d, layout, m, n, k)));
    }
    std::printf("\n");
  }
}

int Main() {
  Device device;
  std::printf("%s\nsize:algorithms offered (at most 8), or size:-status; other dims 64\n",
              device.Origin().c_str());
  for (const char* d : {"f32", "bf16", "f16", "f8_e4m3"}) {
    Sweep(device, "f8_e4m3", "f8_e4m3", d, Layout::kTN);
    Sweep(device, "f8_e5m2", "f8_e4m3", d, Layout::kTN);
  }
  Sweep(device, "f8_e5m2", "f8_e5m2", "bf16", Layout::kTN);
  Sweep(device, "f8_e4m3", "f8_e4m3", "bf16", Layout::kNN);
  Sweep(device, "f8_e4m3", "f8_e4m3", "bf16", Layout::kNT);
  for (const Layout layout : {Layout::kTN, Layout::kNN, Layout::kNT}) {
    Sweep(device, "bf16", "bf16", "bf16", layout);
    Sweep(device, "bf16", "bf16", "f32", layout);
    Sweep(device, "f16", "f16", "f16", layout);
    Sweep(device, "f32", "f32", "f32", layout);
  }
  return 0;
}

}  // namespace
}  // namespace quantgate::hardware

int main() { return quantgate::hardware::Main(); }
