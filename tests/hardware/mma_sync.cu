// Single mma.sync instructions, and sparse (2:4) mma.sp and wgmma.sp ones, on the device against
// the rules of docs/tensor-cores.md sections 1 and 2: `mma_sync [TILES] [SEED] [FILE]` prints, per
// instruction and kind of data, how many outputs were compared and how many differ from each
// hypothesis, the first of which is the registry's. FILE gets some outputs with their operands,
// those that tell hypotheses apart among them; of a sparse instruction's b the selected elements.
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

constexpr int kColumns = 8;
constexpr int kWordsMax = 16;  // Of a column of b: 8, or 16 where half of them are selected.

void Require(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

// ---- The instructions. A tile is a[16][k], b[8][k], c and d[16][8], a warp each; for wgmma four
// of them one below the other.

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
#define QG_MMA_SP(NAME, SHAPE)                                                                  \
  __device__ void NAME(const uint32_t* a, const uint32_t* b, const uint32_t* c, uint32_t* d,    \
                       uint32_t selection) {                                                    \
    asm volatile("mma.sp::ordered_metadata.sync.aligned." SHAPE                                 \
                 " {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9,%10,%11},{%12,%13,%14,%15},%16,0x0;"      \
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(b[2]), \
                   "r"(b[3]), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(selection));      \
  }
#define QG_WGMMA_SP(NAME, SHAPE, IMMEDIATES)                                             \
  __device__ void NAME(const uint32_t* a, uint64_t b, uint32_t* d, uint32_t selection) { \
    asm volatile(                                                                        \
        "wgmma.fence.sync.aligned;\n"                                                    \
        "wgmma.mma_async.sp.sync.aligned." SHAPE                                         \
        " {%0,%1,%2,%3},{%4,%5,%6,%7},%8,%9,0,1," IMMEDIATES                             \
        ";\n"                                                                            \
        "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;"             \
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                                 \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(selection)             \
        : "memory");                                                                     \
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
QG_MMA_SP(SparseF16, "m16n8k32.row.col.f32.f16.f16.f32")
QG_MMA_SP(SparseBF16, "m16n8k32.row.col.f32.bf16.bf16.f32")
QG_MMA_SP(SparseTf32, "m16n8k16.row.col.f32.tf32.tf32.f32")
QG_MMA_SP(SparseE4M3, "m16n8k64.row.col.f32.e4m3.e4m3.f32")
QG_WGMMA_SP(WideF16, "m64n8k32.f32.f16.f16", "1,1,0")
QG_WGMMA_SP(WideBF16, "m64n8k32.f32.bf16.bf16", "1,1,0")
QG_WGMMA_SP(WideTf32, "m64n8k16.f32.tf32.tf32", "1,1")
QG_WGMMA_SP(WideE4M3, "m64n8k64.f32.e4m3.e4m3", "1,1")
QG_WGMMA_SP(WideE5M2, "m64n8k64.f32.e5m2.e5m2", "1,1")
QG_WGMMA_SP(WideMixed, "m64n8k64.f32.e4m3.e5m2", "1,1")

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
  kSparseF16,
  kSparseBF16,
  kSparseTf32,
  kSparseE4M3,
  kWideF16,
  kWideBF16,
  kWideTf32,
  kWideE4M3,
  kWideE5M2,
  kWideMixed,
  kInstructionCount
};
constexpr bool ToF16(int instruction) {
  return instruction >= kF16ToF16 && instruction <= kE5M2ToF16;
}
constexpr bool IsSparse(int instruction) { return instruction >= kSparseF16; }
constexpr bool IsWgmma(int instruction) { return instruction >= kWideF16; }
constexpr int RowsOf(int instruction) { return IsWgmma(instruction) ? 64 : 16; }
constexpr int WordsOf(int instruction) { return IsSparse(instruction) ? 16 : 8; }

/// b of one tile for wgmma: K-major without swizzle, 8 columns of 16 bytes after each other.
__device__ uint64_t StagedB(const uint32_t* b) {
  __shared__ __align__(128) uint32_t staged[kColumns * kWordsMax];
  for (int i = threadIdx.x; i < kColumns * kWordsMax; i += blockDim.x) {
    const int column = i / kWordsMax, word = i % kWordsMax;
    staged[word / 4 * (kColumns * 4) + column * 4 + word % 4] = b[i];
  }
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  const auto address = static_cast<uint64_t>(__cvta_generic_to_shared(staged));
  constexpr uint64_t kStride = kColumns * 16 / 16;  // Between parts of k, in 16 bytes.
  return (address & 0x3FFFF) >> 4 | kStride << 16 | kStride << 32;
}

template <int kInstruction>
__device__ void MultiplyWords(const uint32_t* a, const uint32_t* b, uint64_t staged_b,
                              const uint32_t* c, uint32_t* d, uint32_t selection) {
  if (kInstruction == kF16ToF32) F16ToF32(a, b, c, d);
  if (kInstruction == kBF16ToF32) BF16ToF32(a, b, c, d);
  if (kInstruction == kTf32ToF32) Tf32ToF32(a, b, c, d);
  if (kInstruction == kE4M3ToF32) E4M3ToF32(a, b, c, d);
  if (kInstruction == kE5M2ToF32) E5M2ToF32(a, b, c, d);
  if (kInstruction == kMixedToF32) MixedToF32(a, b, c, d);
  if (kInstruction == kF16ToF16) F16ToF16(a, b, c, d);
  if (kInstruction == kE4M3ToF16) E4M3ToF16(a, b, c, d);
  if (kInstruction == kE5M2ToF16) E5M2ToF16(a, b, c, d);
  if (kInstruction == kSparseF16) SparseF16(a, b, c, d, selection);
  if (kInstruction == kSparseBF16) SparseBF16(a, b, c, d, selection);
  if (kInstruction == kSparseTf32) SparseTf32(a, b, c, d, selection);
  if (kInstruction == kSparseE4M3) SparseE4M3(a, b, c, d, selection);
  if (kInstruction == kWideF16) WideF16(a, staged_b, d, selection);
  if (kInstruction == kWideBF16) WideBF16(a, staged_b, d, selection);
  if (kInstruction == kWideTf32) WideTf32(a, staged_b, d, selection);
  if (kInstruction == kWideE4M3) WideE4M3(a, staged_b, d, selection);
  if (kInstruction == kWideE5M2) WideE5M2(a, staged_b, d, selection);
  if (kInstruction == kWideMixed) WideMixed(a, staged_b, d, selection);
}

/// Registers are words of the row: 4 bytes of A at (row, word) and of B at (column, word), words of
/// A 0 to 7. Word w of a thread's register r is its index in its group of four and 4 r more.
template <int kInstruction>
__global__ void Multiply(const uint32_t* a, const uint32_t* b, const uint32_t* c, uint32_t* d,
                         const uint32_t* selections) {
  constexpr int kRows = RowsOf(kInstruction), kWords = WordsOf(kInstruction);
  const int lane = threadIdx.x % 32, place = lane % 4;
  const int group = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
  a += blockIdx.x * kRows * 8;
  b += blockIdx.x * kColumns * kWords;
  c += blockIdx.x * kRows * kColumns;
  d += blockIdx.x * kRows * kColumns;
  const uint32_t a_words[4] = {a[group * 8 + place], a[(group + 8) * 8 + place],
                               a[group * 8 + place + 4], a[(group + 8) * 8 + place + 4]};
  uint32_t b_words[kWords / 4];
  for (int i = 0; i < kWords / 4; ++i) b_words[i] = b[lane / 4 * kWords + place + 4 * i];
  uint64_t staged_b = 0;
  if constexpr (IsWgmma(kInstruction)) staged_b = StagedB(b);
  const int at[4] = {group * 8 + place * 2, group * 8 + place * 2 + 1, (group + 8) * 8 + place * 2,
                     (group + 8) * 8 + place * 2 + 1};
  constexpr bool kToF16 = ToF16(kInstruction);
  uint32_t c_words[4], d_words[4] = {};
  if (kToF16) {
    for (int i = 0; i < 2; ++i) c_words[i] = c[at[2 * i]] | c[at[2 * i + 1]] << 16;
  } else {
    for (int i = 0; i < 4; ++i) c_words[i] = c[at[i]];
  }
  if (IsWgmma(kInstruction)) {  // The accumulator is the output.
    for (int i = 0; i < 4; ++i) d_words[i] = c_words[i];
  }
  MultiplyWords<kInstruction>(a_words, b_words, staged_b, c_words, d_words, selections[blockIdx.x]);
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

bool IsTf32(int instruction) {
  return instruction == kTf32ToF32 || instruction == kSparseTf32 || instruction == kWideTf32;
}
bool Is16Bit(int instruction) {
  return instruction == kF16ToF32 || instruction == kBF16ToF32 || instruction == kF16ToF16 ||
         instruction == kSparseF16 || instruction == kSparseBF16 || instruction == kWideF16 ||
         instruction == kWideBF16;
}

/// L counts the products that a sparse instruction does: half of its k.
std::vector<Hypothesis> HypothesesOf(int instruction) {
  const bool f16 = ToF16(instruction);
  if (IsTf32(instruction)) {
    return {{"L=8 F=25", Chained(8, 25, f16), false}, {"L=4 F=25", Chained(4, 25, f16), false}};
  }
  if (Is16Bit(instruction)) {
    return {{"L=16 F=25", Chained(16, 25, f16), false},
            {"L=8 F=25", Chained(8, 25, f16), false},
            {"L=8 F=24", Chained(8, 24, f16), false}};
  }
  FusedRule whole = Chained(32, 13, f16);
  whole.out_mantissa = 13;
  if (IsWgmma(instruction)) {
    FusedRule halves = Chained(16, 13, f16);
    halves.out_mantissa = 13;
    return {{"L=32 F=13", whole, false}, {"L=16 F=13", halves, false}};
  }
  FusedRule pairs = Chained(16, 25, f16);
  pairs.order = ProductOrder::kPairsOfFour;
  return {{"fp16 numbers in pairs of 4, L=16 F=25, C last", pairs, true, true},
          {"pairs of 4, L=16 F=25, C last", pairs, true},
          {"pairs of 4, L=16 F=25, C first", pairs, false},
          {"halves, L=16 F=25, C last", Chained(16, 25, f16), true},
          {"fp16 numbers in halves, L=16 F=25, C last", Chained(16, 25, f16), true, true},
          {"fp16 numbers in halves, L=16 F=25, C first", Chained(16, 25, f16), false, true},
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
  void (*launch)(const uint32_t*, const uint32_t*, const uint32_t*, uint32_t*, const uint32_t*);
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

/// Operands and accumulators of as many tiles as fit.
struct Tiles {
  std::vector<uint8_t> a, b;
  std::vector<uint32_t> c;
  std::vector<uint32_t> selections;  ///< Metadata of a sparse instruction, one word per tile.
};

std::vector<uint32_t> RunOnDevice(const Kernel& kernel, int instruction, const Tiles& tiles) {
  std::vector<uint32_t> d(tiles.c.size());
  uint32_t* const a = Upload(tiles.a.data(), tiles.a.size());
  uint32_t* const b = Upload(tiles.b.data(), tiles.b.size());
  uint32_t* const c = Upload(tiles.c.data(), tiles.c.size() * 4);
  uint32_t* const selections = Upload(tiles.selections.data(), tiles.selections.size() * 4);
  uint32_t* device_d = nullptr;
  Require(cudaMalloc(&device_d, d.size() * 4));
  const auto blocks = static_cast<unsigned>(tiles.selections.size());
  kernel.launch<<<blocks, RowsOf(instruction) * 2>>>(a, b, c, device_d, selections);
  Require(cudaGetLastError());
  Require(cudaMemcpy(d.data(), device_d, d.size() * 4, cudaMemcpyDeviceToHost));
  for (uint32_t* memory : {a, b, c, selections, device_d}) Require(cudaFree(memory));
  return d;
}

/// Which two of four (of tf32 pairs: which one of two) each group of a row takes. All rows of a
/// tile and every four groups of a row have the same choices, so that the order in which threads
/// hold them does not matter.
uint32_t DrawSelection(std::mt19937_64& random, bool of_pairs) {
  static constexpr uint32_t kTwoOfFour[] = {0x4, 0x8, 0x9, 0xC, 0xD, 0xE};
  static constexpr uint32_t kOneOfTwo[] = {0x4, 0xE};
  uint32_t selection = 0;
  for (int group = 0; group < 4; ++group) {
    const uint64_t bits = random() >> 20;
    selection |= (of_pairs ? kOneOfTwo[bits % 2] : kTwoOfFour[bits % 6]) << (4 * group);
  }
  return selection | selection << 16;
}

/// The 32 bytes of a column of b that meet those of a.
std::vector<uint8_t> SelectedColumn(const uint8_t* column, uint32_t selection, int width) {
  std::vector<uint8_t> selected;
  const int group_bytes = width == 4 ? 8 : 4 * width;
  const auto append = [&](int from, int bytes) {
    selected.insert(selected.end(), column + from, column + from + bytes);
  };
  for (int group = 0; group * group_bytes < 64; ++group) {
    const uint32_t choice = selection >> (4 * (group % 4)) & 0xF;
    if (width == 4) {
      append(group * group_bytes + (choice == 0xE ? 4 : 0), 4);
      continue;
    }
    append(group * group_bytes + static_cast<int>(choice & 3) * width, width);
    append(group * group_bytes + static_cast<int>(choice >> 2) * width, width);
  }
  return selected;
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

Tiles DrawTiles(const Kernel& kernel, int instruction, Kind kind, int count, uint64_t seed) {
  std::mt19937_64 random(seed * 1000 + instruction * 10 + static_cast<int>(kind));
  Tiles tiles;
  tiles.a.resize(size_t(count) * RowsOf(instruction) * 32);
  tiles.b.resize(size_t(count) * kColumns * WordsOf(instruction) * 4);
  tiles.c.resize(size_t(count) * RowsOf(instruction) * kColumns);
  tiles.selections.resize(count);
  Fill(tiles.a, kernel.bytes, kernel.draw_a, random, kind);
  Fill(tiles.b, kernel.bytes, kernel.draw_b, random, kind);
  for (uint32_t& code : tiles.c) code = DrawC(random, kind, ToF16(instruction));
  if (!IsSparse(instruction)) return tiles;
  for (uint32_t& word : tiles.selections) word = DrawSelection(random, IsTf32(instruction));
  return tiles;
}

/// The columns of b as the model sees them, 32 bytes each.
std::vector<uint8_t> MetColumns(const Tiles& tiles, int instruction, int width) {
  if (!IsSparse(instruction)) return tiles.b;
  std::vector<uint8_t> met;
  met.reserve(tiles.b.size() / 2);
  for (size_t column = 0; column * 64 < tiles.b.size(); ++column) {
    const std::vector<uint8_t> one =
        SelectedColumn(&tiles.b[column * 64], tiles.selections[column / kColumns], width);
    met.insert(met.end(), one.begin(), one.end());
  }
  return met;
}

/// Outputs that differ from a hypothesis, and one of them or -1.
std::pair<int64_t, int64_t> CountDiffering(const std::vector<uint32_t>& d,
                                           const std::function<uint32_t(size_t)>& want) {
  std::atomic<int64_t> differing{0}, first{-1};
  std::vector<std::thread> threads;
  const size_t count = std::max(1u, std::thread::hardware_concurrency());
  for (size_t t = 0; t < count; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < d.size(); i += count) {
        if (want(i) == d[i]) continue;
        ++differing;
        int64_t none = -1;
        first.compare_exchange_strong(none, static_cast<int64_t>(i));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return {differing, first};
}

void Compare(const Kernel& kernel, int instruction, Kind kind, int count, uint64_t seed,
             std::FILE* golden) {
  const Tiles tiles = DrawTiles(kernel, instruction, kind, count, seed);
  const std::vector<uint8_t> b = MetColumns(tiles, instruction, kernel.bytes);
  const std::vector<uint32_t> d = RunOnDevice(kernel, instruction, tiles);
  const auto a_of = [&](size_t i) { return &tiles.a[i / kColumns * 32]; };
  const auto b_of = [&](size_t i) {
    const size_t tile = i / kColumns / RowsOf(instruction);
    return &b[(tile * kColumns + i % kColumns) * 32];
  };
  const auto write = [&](size_t i) {
    if (golden != nullptr) WriteGolden(golden, kernel, kind, a_of(i), b_of(i), tiles.c[i], d[i]);
  };
  for (size_t i = 0; i < 5; ++i) write(i);  // Of the first tile's first row.
  std::printf("%-14s %-8s %zu outputs:", kernel.name, kKindNames[static_cast<int>(kind)], d.size());
  for (const Hypothesis& hypothesis : HypothesesOf(instruction)) {
    const auto want = [&](size_t i) {
      return kernel.evaluate(hypothesis, a_of(i), b_of(i), tiles.c[i]);
    };
    const auto [differing, first] = CountDiffering(d, want);
    std::printf(" [%s: %lld differ", hypothesis.name, static_cast<long long>(differing));
    if (first >= 0) {
      const auto i = static_cast<size_t>(first);
      write(i);
      std::printf(", device %08x model %08x c %08x", d[i], want(i), tiles.c[i]);
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
      KernelOf<Float16, Float16>("sp.f16->f32", Multiply<kSparseF16>),
      KernelOf<BFloat16, BFloat16>("sp.bf16->f32", Multiply<kSparseBF16>),
      KernelOf<Float32, Float32>("sp.tf32->f32", Multiply<kSparseTf32>),
      KernelOf<E4M3, E4M3>("sp.e4m3->f32", Multiply<kSparseE4M3>),
      KernelOf<Float16, Float16>("wgmma.sp.f16", Multiply<kWideF16>),
      KernelOf<BFloat16, BFloat16>("wgmma.sp.bf16", Multiply<kWideBF16>),
      KernelOf<Float32, Float32>("wgmma.sp.tf32", Multiply<kWideTf32>),
      KernelOf<E4M3, E4M3>("wgmma.sp.e4m3", Multiply<kWideE4M3>),
      KernelOf<E5M2, E5M2>("wgmma.sp.e5m2", Multiply<kWideE5M2>),
      KernelOf<E4M3, E5M2>("wgmma.sp.e4m3e5m2", Multiply<kWideMixed>),
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
