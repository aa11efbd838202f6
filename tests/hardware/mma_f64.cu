// FP64 tensor cores on the device against the chain of fma in ascending k from the accumulator on
// (docs/tensor-cores.md section 5): `mma_f64 [TILES] [SEED]` prints, per shape of mma.sync, how
// many outputs were compared and how many differ, and the rate that it reaches.
#include <cuda_runtime.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

namespace quantgate {
namespace {

void Require(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

/// A tile is a[kRows][kDepth], b[8][kDepth], c and d[kRows][8], one warp each.
struct M8N8K4 {
  static constexpr const char* kName = "m8n8k4";
  static constexpr int kRows = 8, kDepth = 4, kA = 1, kB = 1, kC = 2;
  __device__ static void Apply(const double* a, const double* b, double* c) {
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1},{%2},{%3},{%0,%1};"
                 : "+d"(c[0]), "+d"(c[1])
                 : "d"(a[0]), "d"(b[0]));
  }
};
struct M16N8K4 {
  static constexpr const char* kName = "m16n8k4";
  static constexpr int kRows = 16, kDepth = 4, kA = 2, kB = 1, kC = 4;
  __device__ static void Apply(const double* a, const double* b, double* c) {
    asm volatile(
        "mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0,%1,%2,%3},{%4,%5},{%6},"
        "{%0,%1,%2,%3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(b[0]));
  }
};
struct M16N8K8 {
  static constexpr const char* kName = "m16n8k8";
  static constexpr int kRows = 16, kDepth = 8, kA = 4, kB = 2, kC = 4;
  __device__ static void Apply(const double* a, const double* b, double* c) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
        "{%0,%1,%2,%3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
  }
};
struct M16N8K16 {
  static constexpr const char* kName = "m16n8k16";
  static constexpr int kRows = 16, kDepth = 16, kA = 8, kB = 4, kC = 4;
  __device__ static void Apply(const double* a, const double* b, double* c) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0,%1,%2,%3},"
        "{%4,%5,%6,%7,%8,%9,%10,%11},{%12,%13,%14,%15},{%0,%1,%2,%3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]),
          "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3]));
  }
};

/// Fragments as the PTX ISA has them for .f64.
template <class Shape>
__global__ void RunTiles(const double* a, const double* b, double* c) {
  a += blockIdx.x * Shape::kRows * Shape::kDepth;
  b += blockIdx.x * 8 * Shape::kDepth;
  c += blockIdx.x * Shape::kRows * 8;
  const int group = threadIdx.x / 4, lane = threadIdx.x % 4;
  constexpr int kRowHalves = Shape::kRows / 8;
  double a_regs[Shape::kA], b_regs[Shape::kB], c_regs[Shape::kC];
  for (int i = 0; i < Shape::kA; ++i) {
    const int row = group + i % kRowHalves * 8;
    a_regs[i] = a[row * Shape::kDepth + lane + i / kRowHalves * 4];
  }
  for (int i = 0; i < Shape::kB; ++i) b_regs[i] = b[group * Shape::kDepth + lane + i * 4];
  const auto at = [&](int i) { return (group + i / 2 * 8) * 8 + lane * 2 + i % 2; };
  for (int i = 0; i < Shape::kC; ++i) c_regs[i] = c[at(i)];
  Shape::Apply(a_regs, b_regs, c_regs);
  for (int i = 0; i < Shape::kC; ++i) c[at(i)] = c_regs[i];
}

constexpr int kChains = 8;

template <class Shape>
__global__ void __launch_bounds__(256) RunChains(double* out, int count) {
  double a[Shape::kA], b[Shape::kB], c[kChains][Shape::kC] = {};
  for (int i = 0; i < Shape::kA; ++i) a[i] = threadIdx.x * 0.001 + i;
  for (int i = 0; i < Shape::kB; ++i) b[i] = threadIdx.x + 0.001 * i;
  for (int i = 0; i < count; ++i) {
#pragma unroll
    for (int chain = 0; chain < kChains; ++chain) Shape::Apply(a, b, c[chain]);
  }
  double sum = 0;
  for (const auto& chain : c) {
    for (const double x : chain) sum += x;
  }
  out[blockIdx.x * 256 + threadIdx.x] = sum;
}

struct Operands {
  std::vector<double> a, b, c;
};

/// Numbers of full significands, their exponents up to 60 from 0 (those of c up to 120), one in 16
/// zero; one tile in 7 cancels by pairs, one in 11 meets an infinity or a NaN.
Operands Draw(int rows, int depth, int tiles, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&](int spread) {
    const double significand = std::ldexp(static_cast<double>(random() | 1), -64);
    const int exponent =
        spread == 0 ? 0
                    : static_cast<int>(random() % static_cast<unsigned>(2 * spread + 1)) - spread;
    const double x = std::ldexp(significand, exponent);
    if (random() % 16 == 0) return 0.0;
    return (random() & 1) != 0 ? x : -x;
  };
  Operands all;
  for (int tile = 0; tile < tiles; ++tile) {
    const int spread = tile % 6 * 12;
    std::vector<double> a(rows * depth), b(8 * depth), c(rows * 8);
    for (double& x : a) x = draw(spread);
    for (double& x : b) x = draw(spread);
    for (double& x : c) x = draw(2 * spread);
    if (tile % 7 == 0) {
      for (size_t i = 0; i + 1 < a.size(); i += 2) a[i + 1] = -a[i];
      for (size_t i = 0; i + 1 < b.size(); i += 2) {
        b[i + 1] = b[i] * (1 + std::ldexp(static_cast<double>(random() % 8), -50));
      }
    }
    if (tile % 11 == 0) {
      constexpr double kInfinity = std::numeric_limits<double>::infinity();
      a[random() % a.size()] =
          (random() & 1) != 0 ? kInfinity : std::numeric_limits<double>::quiet_NaN();
      b[random() % b.size()] = (random() & 1) != 0 ? -kInfinity : kInfinity;
    }
    all.a.insert(all.a.end(), a.begin(), a.end());
    all.b.insert(all.b.end(), b.begin(), b.end());
    all.c.insert(all.c.end(), c.begin(), c.end());
  }
  return all;
}

double* ToDevice(const std::vector<double>& values) {
  double* device = nullptr;
  Require(cudaMalloc(&device, values.size() * sizeof(double)));
  Require(cudaMemcpy(device, values.data(), values.size() * sizeof(double), cudaMemcpyDefault));
  return device;
}

template <class Shape>
void Compare(int tiles, uint64_t seed) {
  constexpr int kRows = Shape::kRows, kDepth = Shape::kDepth;
  const Operands in = Draw(kRows, kDepth, tiles, seed);
  double* const c = ToDevice(in.c);
  RunTiles<Shape><<<tiles, 32>>>(ToDevice(in.a), ToDevice(in.b), c);
  Require(cudaGetLastError());
  std::vector<double> d(in.c.size());
  Require(cudaMemcpy(d.data(), c, d.size() * sizeof(double), cudaMemcpyDefault));
  int64_t differing = 0;
  for (size_t i = 0; i < d.size(); ++i) {
    const size_t tile = i / (kRows * 8), row = i / 8 % kRows, column = i % 8;
    double sum = in.c[i];
    for (int k = 0; k < kDepth; ++k) {
      sum = std::fma(in.a[(tile * kRows + row) * kDepth + k],
                     in.b[(tile * 8 + column) * kDepth + k], sum);
    }
    const bool same = std::isnan(sum)
                          ? std::isnan(d[i])
                          : std::bit_cast<uint64_t>(sum) == std::bit_cast<uint64_t>(d[i]);
    differing += same ? 0 : 1;
  }
  std::printf("%-9s %zu outputs, %lld differ", Shape::kName, d.size(),
              static_cast<long long>(differing));
}

template <class Shape>
void Time() {
  int blocks = 0;
  Require(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, 0));
  constexpr int kCount = 40000 / Shape::kDepth;
  double* out = nullptr;
  Require(cudaMalloc(&out, static_cast<size_t>(blocks) * 256 * sizeof(double)));
  cudaEvent_t begin, end;
  Require(cudaEventCreate(&begin));
  Require(cudaEventCreate(&end));
  float best = std::numeric_limits<float>::infinity();
  for (int i = 0; i < 5; ++i) {
    Require(cudaEventRecord(begin));
    RunChains<Shape><<<blocks, 256>>>(out, kCount);
    Require(cudaEventRecord(end));
    Require(cudaEventSynchronize(end));
    float milliseconds = 0;
    Require(cudaEventElapsedTime(&milliseconds, begin, end));
    best = std::fmin(best, milliseconds);
  }
  const double operations = 2.0 * Shape::kRows * 8 * Shape::kDepth * kChains * kCount * 8 * blocks;
  std::printf(", %.1f TFLOP/s\n", operations / best * 1e-9);
}

template <class Shape>
void Run(int tiles, uint64_t seed) {
  Compare<Shape>(tiles, seed);
  Time<Shape>();
}

}  // namespace
}  // namespace quantgate

int main(int argc, char** argv) {
  const int tiles = argc > 1 ? std::atoi(argv[1]) : 20000;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 7;
  quantgate::Run<quantgate::M8N8K4>(tiles, seed);
  quantgate::Run<quantgate::M16N8K4>(tiles, seed + 1);
  quantgate::Run<quantgate::M16N8K8>(tiles, seed + 2);
  quantgate::Run<quantgate::M16N8K16>(tiles, seed + 3);
}
