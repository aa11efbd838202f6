// Single mma.sync instructions on the device against the rules of docs/tensor-cores.md sections 1
// and 2: `mma_sync [TILES] [SEED] [FILE]` prints, per instruction and kind of data, how many
// outputs were compared and how many differ from each hypothesis, the first of which is the
// registry's. FILE gets some outputs with their operands, those that tell hypotheses apart among
// them.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/numerics/fused_rule.h"

namespace quantgate {
namespace {

constexpr int kRows = 16, kColumns = 8;

void Require(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

// ---- The instructions. A tile is a[16][k], b[8][k], c and d[16][8], one warp each.

#define QG_MMA_F32(NAME, SHAPE, A_REGS)                                                         \
  __device__ void NAME(const uint32_t* a, const uint32_t* b, const uint32_t* c, uint32_t* d) {  \
    asm volatile("mma.sync.aligned." SHAPE A_REGS                                               \
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), \
                   "r"(c[1]), "r"(c[2]), "r"(c[3]));                                            \
  }
#define QG_MMA_F16(NAME, SHAPE)                                                                 \
  __device__ void NAME(const uint32_t* a, const uint32_t* b, const uint32_t* c, uint32_t* d) {  \
    asm volatile("mma.sync.aligned." SHAPE " {%0,%1},{%2,%3,%4,%5},{%6,%7},{%8,%9};"            \
                 : "=r"(d[0]), "=r"(d[1])                                                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), \
                   "r"(c[1]));                                                                  \
  }
#define QG_F32_REGS " {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%11,%12,%13};"
QG_MMA_F32(F16ToF32, "m16n8k16.row.col.f32.f16.f16.f32", QG_F32_REGS)
QG_MMA_F32(BF16ToF32, "m16n8k16.row.col.f32.bf16.bf16.f32", QG_F32_REGS)
QG_MMA_F32(Tf32ToF32, "m16n8k8.row.col.f32.tf32.tf32.f32", QG_F32_REGS)
QG_MMA_F32(E4M3ToF32, "m16n8k32.row.col.f32.e4m3.e4m3.f32", QG_F32_REGS)
QG_MMA_F32(E5M2ToF32, "m16n8k32.row.col.f32.e5m2.e5m2.f32", QG_F32_REGS)
QG_MMA_F32(MixedToF32, "m16n8k32.row.col.f32.e4m3.e5m2.f32", QG_F32_REGS)
QG_MMA_F16(F16ToF16, "m16n8k16.row.col.f16.f16.f16.f16")
QG_MMA_F16(E4M3ToF16, "m16n8k32.row.col.f16.e4m3.e4m3.f16")
QG_MMA_F16(E5M2ToF16, "m16n8k32.row.col.f16.e5m2.e5m2.f16")

enum Instruction {
  kF16ToF32,
  kBF16ToF32,
  kTf32ToF32,
  kE4M3ToF32,
  kE5M2ToF32,
  kMixedToF32,
  kF16ToF16,
  kE4M3ToF16,
  kE5M2ToF16,
  kInstructionCount
};

/// Registers are words of the row: 4 bytes of A at (row, word) and of B at (column, word), words 0
/// to 7. Word w of a thread's first half is its index in its group of four, of the second half 4
/// more.
template <int kInstruction>
__global__ void Multiply(const uint32_t* a, const uint32_t* b, const uint32_t* c, uint32_t* d) {
  constexpr bool kToF16 = kInstruction >= kF16ToF16;
  const int lane = threadIdx.x, group = lane / 4, place = lane % 4;
  a += blockIdx.x * kRows * 8;
  b += blockIdx.x * kColumns * 8;
  c += blockIdx.x * kRows * kColumns;
  d += blockIdx.x * kRows * kColumns;
  const uint32_t a_words[4] = {a[group * 8 + place], a[(group + 8) * 8 + place],
                               a[group * 8 + place + 4], a[(group + 8) * 8 + place + 4]};
  const uint32_t b_words[2] = {b[group * 8 + place], b[group * 8 + place + 4]};
  const int at[4] = {group * 8 + place * 2, group * 8 + place * 2 + 1, (group + 8) * 8 + place * 2,
                     (group + 8) * 8 + place * 2 + 1};
  uint32_t c_words[4], d_words[4] = {};
  if (kToF16) {
    for (int i = 0; i < 2; ++i) c_words[i] = c[at[2 * i]] | c[at[2 * i + 1]] << 16;
  } else {
    for (int i = 0; i < 4; ++i) c_words[i] = c[at[i]];
  }
  if (kInstruction == kF16ToF32) F16ToF32(a_words, b_words, c_words, d_words);
  if (kInstruction == kBF16ToF32) BF16ToF32(a_words, b_words, c_words, d_words);
  if (kInstruction == kTf32ToF32) Tf32ToF32(a_words, b_words, c_words, d_words);
  if (kInstruction == kE4M3ToF32) E4M3ToF32(a_words, b_words, c_words, d_words);
  if (kInstruction == kE5M2ToF32) E5M2ToF32(a_words, b_words, c_words, d_words);
  if (kInstruction == kMixedToF32) MixedToF32(a_words, b_words, c_words, d_words);
  if (kInstruction == kF16ToF16) F16ToF16(a_words, b_words, c_words, d_words);
  if (kInstruction == kE4M3ToF16) E4M3ToF16(a_words, b_words, c_words, d_words);
  if (kInstruction == kE5M2ToF16) E5M2ToF16(a_words, b_words, c_words, d_words);
  for (int i = 0; i < 4; ++i) {
    d[at[i]] = kToF16 ? (d_words[i / 2] >> (i % 2 * 16)) & 0xFFFF : d_words[i];
  }
}

// ---- Data.

enum class Kind { kNear, kFinite, kAll, kSmall, kSparse, kMaximal };
constexpr Kind kKinds[] = {Kind::kNear,  Kind::kFinite, Kind::kAll,
                           Kind::kSmall, Kind::kSparse, Kind::kMaximal};
const char* const kKindNames[] = {"near", "finite", "all", "small", "sparse", "maximal"};

template <class F>
uint32_t Draw(std::mt19937_64& random, Kind kind) {
  using C = FormatConstants<F>;
  const uint64_t bits = random();
  const uint32_t sign = bits & 1 ? C::kSignMask : 0;
  const auto finite = static_cast<uint32_t>((bits >> 8) % (uint64_t(C::kMaxFinite) + 1));
  switch (kind) {
    case Kind::kNear:
      return static_cast<uint32_t>(F::kBias - 2 + (bits >> 1) % 5) << F::kMantissaBits |
             (static_cast<uint32_t>(bits >> 32) & C::kMantissaMask) | sign;
    case Kind::kFinite:
      return finite | sign;
    case Kind::kAll:
      return (bits >> 4) % 24 == 0 ? static_cast<uint32_t>(bits >> 9) & (C::kSignMask * 2u - 1)
                                   : finite | sign;
    case Kind::kSmall:
      return static_cast<uint32_t>((bits >> 8) % (uint64_t(3) << F::kMantissaBits)) | sign;
    case Kind::kSparse:
      return (bits >> 4) % 4 == 0 ? finite | sign : sign;
    case Kind::kMaximal:
      return C::kMaxFinite;
  }
  return 0;
}

/// C: zero, or of any exponent within reach of the sum.
uint32_t DrawC(std::mt19937_64& random, Kind kind, bool f16) {
  const uint64_t bits = random();
  if (bits % 4 == 0) return 0;
  if (f16) return Draw<Float16>(random, kind == Kind::kMaximal ? Kind::kFinite : kind);
  const auto field = static_cast<uint32_t>(127 - 30 + (bits >> 8) % 60);
  const uint32_t near = field << 23 | static_cast<uint32_t>((bits >> 32) & 0x7FFFFF);
  const uint32_t any = Draw<Float32>(random, kind == Kind::kMaximal ? Kind::kFinite : kind);
  return (bits >> 4) % 4 == 0 ? any : near | static_cast<uint32_t>(bits >> 63) << 31;
}

// ---- The models.

struct Hypothesis {
  const char* name;
  FusedRule rule;
  bool c_last;  ///< C joins the finished sum by one rounded addition, rather than its first step.
  bool as_f16 = false;  ///< FP8 elements have the exponents of the fp16 numbers they become.
};

FusedRule Chained(int step, int align_bits, bool f16) {
  FusedRule rule;
  rule.step = step;
  rule.align_bits = align_bits;
  rule.f16_accumulator = f16;
  return rule;
}

std::vector<Hypothesis> HypothesesOf(int instruction) {
  const bool f16 = instruction >= kF16ToF16;
  if (instruction == kTf32ToF32) {
    return {{"L=8 F=25", Chained(8, 25, f16), false}, {"L=4 F=25", Chained(4, 25, f16), false}};
  }
  if (instruction == kF16ToF32 || instruction == kBF16ToF32 || instruction == kF16ToF16) {
    return {{"L=16 F=25", Chained(16, 25, f16), false},
            {"L=8 F=25", Chained(8, 25, f16), false},
            {"L=8 F=24", Chained(8, 24, f16), false}};
  }
  FusedRule pairs = Chained(16, 25, f16);
  pairs.order = ProductOrder::kPairsOfFour;
  FusedRule whole = Chained(32, 13, f16);
  whole.out_mantissa = 13;
  return {{"fp16 numbers in pairs of 4, L=16 F=25, C last", pairs, true, true},
          {"pairs of 4, L=16 F=25, C last", pairs, true},
          {"pairs of 4, L=16 F=25, C first", pairs, false},
          {"halves, L=16 F=25, C last", Chained(16, 25, f16), true},
          {"wgmma: L=32 F=13", whole, false}};
}

template <class FA, class FB>
uint32_t Evaluate(const Hypothesis& hypothesis, const uint8_t* a, const uint8_t* b, uint32_t c) {
  namespace steps = fused_rule_steps;
  using SA = typename FA::Storage;
  using SB = typename FB::Storage;
  constexpr int kDepth = 32 / sizeof(SA);
  const FusedRule& rule = hypothesis.rule;
  FusedElement x[32], y[32];
  for (int k = 0; k < kDepth; ++k) {
    SA code_a = reinterpret_cast<const SA*>(a)[k];
    SB code_b = reinterpret_cast<const SB*>(b)[k];
    if constexpr (sizeof(SA) == 4) {  // The instruction truncates to tf32.
      code_a &= ~0x1FFFu;
      code_b &= ~0x1FFFu;
    }
    x[k] = UnpackElement<FA>(code_a);
    y[k] = UnpackElement<FB>(code_b);
  }
  uint32_t accumulator = hypothesis.c_last ? 0 : c;
  for (int first = 0; first < kDepth; first += rule.step) {
    const auto term = [&](int i) {
      const int64_t k =
          rule.order == ProductOrder::kPairsOfFour ? steps::PairsOfFour(0, first + i) : first + i;
      return steps::Product(hypothesis.as_f16 ? steps::AsFloat16(x[k], FA::kMantissaBits) : x[k],
                            hypothesis.as_f16 ? steps::AsFloat16(y[k], FB::kMantissaBits) : y[k]);
    };
    accumulator =
        steps::Step(rule, rule.step, FA::kMantissaBits + FB::kMantissaBits, term, accumulator);
  }
  if (!hypothesis.c_last) return accumulator;
  const float sum = steps::AccumulatorValue(rule, accumulator);
  if (!rule.f16_accumulator) {
    return std::bit_cast<uint32_t>(CanonicalFloat(sum + std::bit_cast<float>(c)));
  }
  const double exact = double(sum) + DecodeFloat<Float16>(static_cast<uint16_t>(c));
  return EncodeDouble<Float16>(exact);
}

using Evaluator =
    std::function<uint32_t(const Hypothesis&, const uint8_t*, const uint8_t*, uint32_t)>;

struct Kernel {
  const char* name;
  void (*launch)(const uint32_t*, const uint32_t*, const uint32_t*, uint32_t*);
  Evaluator evaluate;
  uint32_t (*draw_a)(std::mt19937_64&, Kind);
  uint32_t (*draw_b)(std::mt19937_64&, Kind);
  int bytes;
};

template <class FA, class FB>
Kernel KernelOf(const char* name, decltype(Kernel::launch) launch) {
  return {name, launch, Evaluate<FA, FB>, Draw<FA>, Draw<FB>, sizeof(typename FA::Storage)};
}

void Fill(std::vector<uint8_t>& bytes, int width, uint32_t (*draw)(std::mt19937_64&, Kind),
          std::mt19937_64& random, Kind kind) {
  for (size_t i = 0; i < bytes.size(); i += width) {
    const uint32_t code = draw(random, kind);
    for (int byte = 0; byte < width; ++byte)
      bytes[i + byte] = static_cast<uint8_t>(code >> 8 * byte);
  }
}

uint32_t* Upload(const void* data, size_t bytes) {
  uint32_t* device = nullptr;
  Require(cudaMalloc(&device, bytes));
  Require(cudaMemcpy(device, data, bytes, cudaMemcpyHostToDevice));
  return device;
}

std::vector<uint32_t> RunOnDevice(const Kernel& kernel, int tiles, const std::vector<uint8_t>& a,
                                  const std::vector<uint8_t>& b, const std::vector<uint32_t>& c) {
  std::vector<uint32_t> d(c.size());
  uint32_t* const device_a = Upload(a.data(), a.size());
  uint32_t* const device_b = Upload(b.data(), b.size());
  uint32_t* const device_c = Upload(c.data(), c.size() * 4);
  uint32_t* device_d = nullptr;
  Require(cudaMalloc(&device_d, d.size() * 4));
  kernel.launch<<<tiles, 32>>>(device_a, device_b, device_c, device_d);
  Require(cudaGetLastError());
  Require(cudaMemcpy(d.data(), device_d, d.size() * 4, cudaMemcpyDeviceToHost));
  for (uint32_t* memory : {device_a, device_b, device_c, device_d}) Require(cudaFree(memory));
  return d;
}

/// Writes one output with its operands: instruction, kind, a, b, c, d.
void WriteGolden(std::FILE* file, const Kernel& kernel, Kind kind, const uint8_t* a,
                 const uint8_t* b, uint32_t c, uint32_t d) {
  std::fprintf(file, "%s %s ", kernel.name, kKindNames[static_cast<int>(kind)]);
  for (const uint8_t* row : {a, b}) {
    for (int i = 0; i < 32; ++i) std::fprintf(file, "%02x", row[i]);
    std::fprintf(file, " ");
  }
  std::fprintf(file, "%x %x\n", c, d);
}

void Compare(const Kernel& kernel, int instruction, Kind kind, int tiles, uint64_t seed,
             std::FILE* golden) {
  std::mt19937_64 random(seed * 1000 + instruction * 10 + static_cast<int>(kind));
  std::vector<uint8_t> a(size_t(tiles) * kRows * 32), b(size_t(tiles) * kColumns * 32);
  std::vector<uint32_t> c(size_t(tiles) * kRows * kColumns);
  Fill(a, kernel.bytes, kernel.draw_a, random, kind);
  Fill(b, kernel.bytes, kernel.draw_b, random, kind);
  for (uint32_t& code : c) code = DrawC(random, kind, instruction >= kF16ToF16);
  const std::vector<uint32_t> d = RunOnDevice(kernel, tiles, a, b, c);
  for (size_t i = 0; golden != nullptr && i < 5; ++i) {  // Of the first tile's first row.
    WriteGolden(golden, kernel, kind, a.data(), &b[i * 32], c[i], d[i]);
  }
  std::printf("%-12s %-8s %zu outputs:", kernel.name, kKindNames[static_cast<int>(kind)], d.size());
  for (const Hypothesis& hypothesis : HypothesesOf(instruction)) {
    std::atomic<int64_t> differing{0};
    std::atomic<int64_t> first{-1};
    std::vector<std::thread> threads;
    const size_t count = std::max(1u, std::thread::hardware_concurrency());
    for (size_t t = 0; t < count; ++t) {
      threads.emplace_back([&, t] {
        for (size_t i = t; i < d.size(); i += count) {
          const size_t tile = i / (kRows * kColumns);
          const size_t row = i / kColumns % kRows, column = i % kColumns;
          const uint32_t want = kernel.evaluate(hypothesis, &a[(tile * kRows + row) * 32],
                                                &b[(tile * kColumns + column) * 32], c[i]);
          if (want == d[i]) continue;
          ++differing;
          int64_t none = -1;
          first.compare_exchange_strong(none, static_cast<int64_t>(i));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::printf(" [%s: %lld differ", hypothesis.name, static_cast<long long>(differing));
    if (golden != nullptr && first >= 0) {
      const auto i = static_cast<size_t>(first.load());
      const size_t tile = i / (kRows * kColumns);
      WriteGolden(golden, kernel, kind, &a[(tile * kRows + i / kColumns % kRows) * 32],
                  &b[(tile * kColumns + i % kColumns) * 32], c[i], d[i]);
    }
    if (first >= 0) {
      const auto i = static_cast<size_t>(first.load());
      const size_t tile = i / (kRows * kColumns);
      const uint32_t want =
          kernel.evaluate(hypothesis, &a[(tile * kRows + i / kColumns % kRows) * 32],
                          &b[(tile * kColumns + i % kColumns) * 32], c[i]);
      std::printf(", device %08x model %08x c %08x", d[i], want, c[i]);
    }
    std::printf("]");
  }
  std::printf("\n");
}

int Main(int argc, char** argv) {
  const int tiles = argc > 1 ? std::atoi(argv[1]) : 20000;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  std::FILE* const golden = argc > 3 ? std::fopen(argv[3], "w") : nullptr;
  cudaDeviceProp properties{};
  Require(cudaGetDeviceProperties(&properties, 0));
  std::printf("%s, compute capability %d.%d\n", properties.name, properties.major,
              properties.minor);
  if (golden != nullptr) {
    std::fprintf(
        golden,
        "# Outputs of mma.sync on an %s by tests/hardware/mma_sync.cu, seed %llu: instruction, "
        "kind of data, bytes of a, bytes of b, c, d\n",
        properties.name, static_cast<unsigned long long>(seed));
  }
  const Kernel kernels[kInstructionCount] = {
      KernelOf<Float16, Float16>("f16->f32", Multiply<kF16ToF32>),
      KernelOf<BFloat16, BFloat16>("bf16->f32", Multiply<kBF16ToF32>),
      KernelOf<Float32, Float32>("tf32->f32", Multiply<kTf32ToF32>),
      KernelOf<E4M3, E4M3>("e4m3->f32", Multiply<kE4M3ToF32>),
      KernelOf<E5M2, E5M2>("e5m2->f32", Multiply<kE5M2ToF32>),
      KernelOf<E4M3, E5M2>("e4m3e5m2->f32", Multiply<kMixedToF32>),
      KernelOf<Float16, Float16>("f16->f16", Multiply<kF16ToF16>),
      KernelOf<E4M3, E4M3>("e4m3->f16", Multiply<kE4M3ToF16>),
      KernelOf<E5M2, E5M2>("e5m2->f16", Multiply<kE5M2ToF16>),
  };
  for (int instruction = 0; instruction < kInstructionCount; ++instruction) {
    for (const Kind kind : kKinds)
      Compare(kernels[instruction], instruction, kind, tiles, seed, golden);
  }
  if (golden != nullptr) std::fclose(golden);
  return 0;
}

}  // namespace
}  // namespace quantgate

int main(int argc, char** argv) { return quantgate::Main(argc, argv); }
