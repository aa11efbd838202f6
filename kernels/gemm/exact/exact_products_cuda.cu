// The fp64 dot products of packed operands, by FP64 tensor cores and in a plain form.
//
// A block of threads computes a tile of 128 x 128 outputs with eight warps, each of which computes
// 64 x 32 outputs by mma.sync m16n8k8 (66 TFLOP/s on an H200, twice what m8n8k4 and fused
// multiply-adds reach). A thread of the first warp brings the operands by bulk copies of 16 KiB
// each, with up to three under way. The sums over 256 of k are in registers; the totals so far take
// 128 KiB of shared memory.
#include "kernels/gemm/exact/exact_cuda_kernels.h"

namespace quantgate {
namespace {

constexpr int kThreads = 256;
constexpr int kStages = 3;
constexpr int kStageBytes = 16384;  // Bytes of one operand in a stage.
constexpr int kBlockDepth = 256;    // kExactDepth of exact_operand.h.
constexpr int kSlots = 64;          // The outputs of a thread.
constexpr int kTotalsBytes = kSlots * kThreads * 8;
constexpr int kSharedBytes = kStages * 2 * kStageBytes + kTotalsBytes + 2 * kStages * 8;
/// Tiles that run together share rows and columns; this many tiles of rows run side by side.
constexpr int64_t kGroupRows = 8;

template <class Word>
constexpr int kStageDepth = kStageBytes / int(sizeof(Word)) / kExactTileRows;

__device__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Barriers of shared memory (PTX ISA, mbarrier).
__device__ void InitBarrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals)
               : "memory");
}
__device__ void Arrive(uint64_t* barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0]; }" ::"r"(
                   SharedAddress(barrier))
               : "memory");
}
__device__ void ArriveExpecting(uint64_t* barrier, int bytes) {
  asm volatile(
      "{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }" ::"r"(
          SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
}
__device__ void Wait(uint64_t* barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(SharedAddress(barrier)),
      "r"(parity)
      : "memory");
}
/// Copies `bytes` from global to shared memory, both aligned to 16 bytes; the barrier counts them.
__device__ void CopyBulk(void* to, const void* from, int bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(SharedAddress(to)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(SharedAddress(barrier))
      : "memory");
}

/// c += a (16 x 8) * b (8 x 8), each element by a chain of fma over k that begins with c.
__device__ void MultiplyAdd(double (&c)[4], const double (&a)[4], double b0, double b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},"
      "{%0,%1,%2,%3};"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b0), "d"(b1));
}

/// This lane's elements of a group of 16 rows.
template <class Word>
__device__ void LoadGroup(const Word* tile, int group, int lane, double (&fragment)[4]) {
  LoadFragment(tile + group * 128 + lane * (16 / int(sizeof(Word))), fragment);
}

struct TilePlace {
  int64_t row, column;
};
__device__ TilePlace PlaceOf(const ExactProductsTask& task, int64_t index) {
  const int64_t group_size = kGroupRows * task.column_tiles;
  const int64_t first = index / group_size * kGroupRows;
  const int64_t left = task.row_tiles - first;
  const int64_t rows = left < kGroupRows ? left : kGroupRows;
  const int64_t within = index % group_size;
  return {first + within % rows, within / rows};
}

struct Shared {
  uint8_t* stages;
  double* totals;
  uint64_t* full;
  uint64_t* empty;

  __device__ explicit Shared(uint8_t* memory)
      : stages(memory),
        totals(reinterpret_cast<double*>(memory + kStages * 2 * kStageBytes)),
        full(reinterpret_cast<uint64_t*>(memory + kStages * 2 * kStageBytes + kTotalsBytes)),
        empty(full + kStages) {}
};

/// The sources of a tile's operands, one stage after the other.
struct Source {
  const uint8_t* a;
  const uint8_t* b;
  int64_t stages;
};

/// Called by one thread: copies stage i of both operands as soon as all warps are done with the
/// stage whose place it takes.
__device__ void Bring(const Source& source, int64_t i, const Shared& shared) {
  if (i >= source.stages) return;
  const int slot = static_cast<int>(i % kStages);
  const int round = static_cast<int>(i / kStages);
  Wait(&shared.empty[slot], (round & 1) ^ 1);
  ArriveExpecting(&shared.full[slot], 2 * kStageBytes);
  uint8_t* stage = shared.stages + slot * 2 * kStageBytes;
  CopyBulk(stage, source.a + i * kStageBytes, kStageBytes, &shared.full[slot]);
  CopyBulk(stage + kStageBytes, source.b + i * kStageBytes, kStageBytes, &shared.full[slot]);
}

using Sums = double[4][4][4];  // 16 rows each, 8 columns each, a lane's outputs of these.

template <class Word>
__device__ void MultiplyStage(const Word* a, const Word* b, int warp, int lane, Sums& sums) {
#pragma unroll
  for (int step = 0; step < kStageDepth<Word> / 8; ++step) {
    const Word* a_tile = a + step * (kExactTileRows * 8);
    const Word* b_tile = b + step * (kExactTileRows * 8);
    double rows[4][4], columns[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) LoadGroup(a_tile, warp / 4 * 4 + i, lane, rows[i]);
#pragma unroll
    for (int j = 0; j < 2; ++j) LoadGroup(b_tile, warp % 4 * 2 + j, lane, columns[j]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        MultiplyAdd(sums[i][2 * j], rows[i], columns[j][0], columns[j][2]);
        MultiplyAdd(sums[i][2 * j + 1], rows[i], columns[j][1], columns[j][3]);
      }
    }
  }
}

/// Adds the totals to the sums where `adds`, and stores them as the totals unless this is the last
/// block of k.
__device__ void Fold(double* totals, int thread, bool adds, bool is_last, Sums& sums) {
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    double& sum = sums[i / 16][i / 4 % 4][i % 4];
    double& total = totals[i * kThreads + thread];
    if (adds) sum = total + sum;
    if (is_last) continue;
    total = sum;
    sum = 0;
  }
}

template <class Word>
__device__ void SumTile(const Source& source, const Shared& shared, Sums& sums) {
  constexpr int kBlockStages = kBlockDepth / kStageDepth<Word>;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  for (int64_t i = 0; i < source.stages; ++i) {
    if (thread == 0) Bring(source, i + kStages - 1, shared);
    __syncwarp();
    const int slot = static_cast<int>(i % kStages);
    Wait(&shared.full[slot], static_cast<int>(i / kStages) & 1);
    const uint8_t* stage = shared.stages + slot * 2 * kStageBytes;
    MultiplyStage(reinterpret_cast<const Word*>(stage),
                  reinterpret_cast<const Word*>(stage + kStageBytes), warp, lane, sums);
    // Every reader arrives at the barrier itself. One lane for its warp would take as long, but
    // racecheck would not see for which readers it arrives.
    Arrive(&shared.empty[slot]);
    const bool is_last = i + 1 == source.stages;
    if ((i + 1) % kBlockStages == 0 || is_last) {
      Fold(shared.totals, thread, i >= kBlockStages, is_last, sums);
    }
  }
}

__device__ void StoreTile(const ExactProductsTask& task, const TilePlace& place, const Sums& sums) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int64_t stride = task.column_tiles * kExactTileRows;
  const int64_t row = place.row * kExactTileRows + warp / 4 * 64 + lane / 4;
  const int64_t column = place.column * kExactTileRows + warp % 4 * 32 + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      double* out = task.sums + (row + i * 16) * stride + column + j * 8;
      *reinterpret_cast<double2*>(out) = make_double2(sums[i][j][0], sums[i][j][1]);
      *reinterpret_cast<double2*>(out + 8 * stride) = make_double2(sums[i][j][2], sums[i][j][3]);
    }
  }
}

template <class Word>
__global__ void __launch_bounds__(kThreads, 1) MultiplyTiles(const ExactProductsTask task) {
  extern __shared__ __align__(128) uint8_t memory[];
  const Shared shared(memory);
  const TilePlace place = PlaceOf(task, blockIdx.x);
  const int64_t stages = task.k_padded / kStageDepth<Word>;
  const Source source{static_cast<const uint8_t*>(task.a) + place.row * stages * kStageBytes,
                      static_cast<const uint8_t*>(task.b) + place.column * stages * kStageBytes,
                      stages};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      InitBarrier(&shared.full[i], 1);
      InitBarrier(&shared.empty[i], kThreads);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    for (int i = 0; i < kStages - 1; ++i) Bring(source, i, shared);
  }
  __syncthreads();
  Sums sums = {};
  SumTile<Word>(source, shared, sums);
  StoreTile(task, place, sums);
}

template <class Word>
__device__ double ElementOf(const void* packed, int64_t row, int64_t k, int64_t k_padded) {
  constexpr bool kNarrow = sizeof(Word) == 4;
  const Word word = static_cast<const Word*>(packed)[ExactPackedIndex(row, k, k_padded, kNarrow)];
  if constexpr (kNarrow) return __hiloint2double(static_cast<int>(word), 0);
  return static_cast<double>(word);
}

template <class Word>
__global__ void MultiplyPlainly(const ExactProductsTask task) {
  const int64_t stride = task.column_tiles * kExactTileRows;
  const int64_t column = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  for (int64_t row = blockIdx.y; row < task.row_tiles * kExactTileRows; row += gridDim.y) {
    double total = 0;
    for (int64_t begin = 0; begin < task.k_padded; begin += kBlockDepth) {
      const int64_t end = min(begin + kBlockDepth, task.k_padded);
      double sum = 0;
      for (int64_t k = begin; k < end; ++k) {
        sum = fma(ElementOf<Word>(task.a, row, k, task.k_padded),
                  ElementOf<Word>(task.b, column, k, task.k_padded), sum);
      }
      total = total + sum;
    }
    task.sums[row * stride + column] = total;
  }
}

template <class Word>
cudaError_t Launch(const ExactProductsTask& task, cudaStream_t stream) {
  const cudaError_t error = cudaFuncSetAttribute(
      MultiplyTiles<Word>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  const auto tiles = static_cast<unsigned>(task.row_tiles * task.column_tiles);
  MultiplyTiles<Word><<<tiles, kThreads, kSharedBytes, stream>>>(task);
  return cudaGetLastError();
}

template <class Word>
cudaError_t LaunchPlain(const ExactProductsTask& task, cudaStream_t stream) {
  const int64_t rows = task.row_tiles * kExactTileRows;
  const dim3 grid(static_cast<unsigned>(task.column_tiles),
                  static_cast<unsigned>(rows < 65535 ? rows : 65535));
  MultiplyPlainly<Word><<<grid, kExactTileRows, 0, stream>>>(task);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchExactProducts(const ExactProductsTask& task, cudaStream_t stream) {
  if (task.row_tiles == 0) return cudaSuccess;
  return task.narrow ? Launch<uint32_t>(task, stream) : Launch<double>(task, stream);
}

cudaError_t LaunchExactProductsPlain(const ExactProductsTask& task, cudaStream_t stream) {
  if (task.row_tiles == 0) return cudaSuccess;
  return task.narrow ? LaunchPlain<uint32_t>(task, stream) : LaunchPlain<double>(task, stream);
}

}  // namespace quantgate
