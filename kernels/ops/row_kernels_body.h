// The vector kernels of row_kernels.h for one instruction set: included by row_kernels_<isa>.cc in
// its anonymous namespace, after it has defined kLanes. The loops over elements are plain: the
// compiler fills the lanes, each IEEE arithmetic without contraction.

typedef float Floats __attribute__((vector_size(kLanes * sizeof(float)), may_alias, aligned(4)));

// ---- loads and stores

inline uint32_t BitsOf(float value) { return __builtin_bit_cast(uint32_t, value); }
inline float FloatOf(uint32_t bits) { return __builtin_bit_cast(float, bits); }
inline bool IsNanBits(uint32_t bits) { return (bits & 0x7FFFFFFF) > 0x7F800000; }

void LoadF32(const void* from, int64_t count, float* to) {
  __builtin_memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}

void LoadBF16(const void* from, int64_t count, float* to) {
  const auto* codes = static_cast<const uint16_t*>(from);
  for (int64_t i = 0; i < count; ++i) to[i] = FloatOf(uint32_t{codes[i]} << 16);
}

void LoadF16(const void* from, int64_t count, float* to) {
  const auto* codes = static_cast<const uint16_t*>(from);
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const auto eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(eight));
  }
  for (; i < count; ++i) to[i] = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(codes[i])));
}

void StoreF32(const float* from, int64_t count, void* to) {
  auto* bits = static_cast<uint32_t*>(to);
  for (int64_t i = 0; i < count; ++i) {
    bits[i] = IsNanBits(BitsOf(from[i])) ? 0x7FFFFFFF : BitsOf(from[i]);
  }
}

// Adding just under half, or half when the kept part is odd, carries exactly when the dropped half
// rounds up. A NaN would carry out of its all-ones mantissa and is replaced.
void StoreBF16(const float* from, int64_t count, void* to) {
  auto* codes = static_cast<uint16_t*>(to);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = BitsOf(from[i]);
    const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    codes[i] = static_cast<uint16_t>(IsNanBits(bits) ? 0x7FFF : rounded);
  }
}

inline __m128i EightHalves(__m256 values) {
  const __m256 nan = _mm256_cmp_ps(values, values, _CMP_UNORD_Q);
  const __m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
  // A NaN keeps its upper mantissa bits: all ones become all ones.
  return _mm256_cvtps_ph(_mm256_blendv_ps(values, quiet, nan), _MM_FROUND_TO_NEAREST_INT);
}

void StoreF16(const float* from, int64_t count, void* to) {
  auto* codes = static_cast<uint16_t*>(to);
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), EightHalves(_mm256_loadu_ps(from + i)));
  }
  for (; i < count; ++i) {
    codes[i] = static_cast<uint16_t>(_mm_cvtsi128_si32(EightHalves(_mm256_set1_ps(from[i]))));
  }
}

// ---- element-wise

void Add(const float* addend, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = to[i] + addend[i];
}

void Scale(float factor, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = to[i] * factor;
}

// ---- pairwise sums

template <int... kIndex>
inline Floats Pick(Floats low, Floats high) {
  return __builtin_shufflevector(low, high, kIndex...);
}
inline Floats Evens(Floats low, Floats high) {
  if constexpr (kLanes == 16) {
    return Pick<0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30>(low, high);
  } else {
    return Pick<0, 2, 4, 6, 8, 10, 12, 14>(low, high);
  }
}
inline Floats Odds(Floats low, Floats high) {
  if constexpr (kLanes == 16) {
    return Pick<1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31>(low, high);
  } else {
    return Pick<1, 3, 5, 7, 9, 11, 13, 15>(low, high);
  }
}

inline Floats* VectorAt(float* p) { return reinterpret_cast<Floats*>(p); }
inline Floats Vector(const float* p) { return *reinterpret_cast<const Floats*>(p); }

// One level of the tree; a value without a neighbour rises unchanged. `to` may be `from`: what is
// written has been read. The number of sums.
inline int64_t AddNeighbours(const float* from, int64_t count, float* to) {
  const int64_t pairs = count / 2;
  int64_t i = 0;
  for (; i + kLanes <= pairs; i += kLanes) {
    const Floats low = Vector(from + 2 * i), high = Vector(from + 2 * i + kLanes);
    *VectorAt(to + i) = Evens(low, high) + Odds(low, high);
  }
  for (; i < pairs; ++i) to[i] = from[2 * i] + from[2 * i + 1];
  if (count % 2 != 0) to[pairs] = from[count - 1];
  return count - pairs;
}

float Sum(const float* values, int64_t count, float* scratch) {
  if (count == 1) return values[0];
  count = AddNeighbours(values, count, scratch);
  while (count > 1) count = AddNeighbours(scratch, count, scratch);
  return scratch[0];
}

// The pairwise sum of `count` terms, by sums of kChunk of them, which are whole subtrees and stay
// in the L1 cache beside the row: sum_chunk(begin, width, terms) gives each, with `terms` to work
// in. `scratch` takes the sums.
constexpr int64_t kChunk = 1024;
template <class SumChunk>
inline float SumInChunks(int64_t count, float* scratch, const SumChunk& sum_chunk) {
  float terms[kChunk];
  int64_t sums = 0;
  for (int64_t begin = 0; begin < count; begin += kChunk) {
    const int64_t width = count - begin < kChunk ? count - begin : kChunk;
    scratch[sums++] = sum_chunk(begin, width, terms);
  }
  return Sum(scratch, sums, scratch);
}
inline float SumOfRow(const float* values, int64_t count, float* scratch) {
  return SumInChunks(count, scratch, [values](int64_t begin, int64_t width, float* terms) {
    return Sum(values + begin, width, terms);
  });
}

// Gives the sum of a chunk of squares of x - mean, and leaves x - mean in place of x.
inline float CenterAndSquare(float* __restrict x, float mean, int64_t count,
                             float* __restrict terms) {
  for (int64_t i = 0; i < count; ++i) {
    x[i] = x[i] - mean;
    terms[i] = x[i] * x[i];
  }
  return Sum(terms, count, terms);
}

// Gives the sum of a chunk of dyg * xhat, and leaves xhat in place of x and dyg in place of dz.
inline float MultiplyByHat(const NormStatistics& statistics, const float* gamma,
                           float* __restrict x, float* __restrict dz, int64_t count,
                           float* __restrict terms) {
  const float mean = statistics.mean, rstd = statistics.rstd;
  for (int64_t i = 0; i < count; ++i) {
    x[i] = rstd * (x[i] - mean);
    dz[i] = gamma[i] * dz[i];
    terms[i] = dz[i] * x[i];
  }
  return Sum(terms, count, terms);
}

// ---- norms

void NormForward(const NormRow& row, float* __restrict x, float* __restrict scratch,
                 NormStatistics& statistics) {
  const int64_t n = row.columns;
  const float mean = row.is_centered ? SumOfRow(x, n, scratch) * row.inverse_count : 0.0f;
  const float squares =
      SumInChunks(n, scratch, [x, mean](int64_t begin, int64_t width, float* terms) {
        return CenterAndSquare(x + begin, mean, width, terms);
      });
  const float rstd = 1.0f / __builtin_sqrtf(squares * row.inverse_count + row.epsilon);
  const float *gamma = row.gamma, *beta = row.beta;
  if (beta != nullptr) {
    for (int64_t i = 0; i < n; ++i) x[i] = gamma[i] * (rstd * x[i]) + beta[i];
  } else {
    for (int64_t i = 0; i < n; ++i) x[i] = gamma[i] * (rstd * x[i]);
  }
  statistics.mean = mean;
  statistics.rstd = rstd;
}

void NormBackward(const NormRow& row, const NormStatistics& statistics, float* __restrict x,
                  float* __restrict dz, float* __restrict scratch) {
  const int64_t n = row.columns;
  const float products = SumInChunks(n, scratch, [&](int64_t begin, int64_t width, float* terms) {
    return MultiplyByHat(statistics, row.gamma + begin, x + begin, dz + begin, width, terms);
  });
  const float mean_dyg_hat = products * row.inverse_count;
  const float mean_dyg = row.is_centered ? SumOfRow(dz, n, scratch) * row.inverse_count : -0.0f;
  const float rstd = statistics.rstd;
  for (int64_t i = 0; i < n; ++i) dz[i] = rstd * (dz[i] - (mean_dyg_hat * x[i] + mean_dyg));
}

void NormGammaTerms(const NormStatistics& statistics, const float* dz, int64_t count, float* x) {
  const float mean = statistics.mean, rstd = statistics.rstd;
  for (int64_t i = 0; i < count; ++i) x[i] = dz[i] * (rstd * (x[i] - mean));
}

// ---- optimizers

template <bool kDecoupled>
void AdamRun(const AdamFactors& factors, const OptimizerRun& run, int64_t count) {
  const AdamFactors f = factors;
  const float *gradients = run.gradient, *masters = run.master, *ms = run.m, *vs = run.v;
  float* __restrict new_master = run.new_master, * __restrict new_m = run.new_m, * __restrict new_v = run.new_v;
  for (int64_t i = 0; i < count; ++i) {
    const float master = masters[i], decay = f.weight_decay * master;
    const float gradient = kDecoupled ? gradients[i] : gradients[i] + decay;
    const float m = f.beta1 * ms[i] + f.one_minus_beta1 * gradient;
    const float v = f.beta2 * vs[i] + f.one_minus_beta2 * gradient * gradient;
    const float denominator = __builtin_sqrtf(v / f.correction2) + f.epsilon;
    const float update = (m / f.correction1) / denominator;
    new_master[i] = master - f.learning_rate * (kDecoupled ? update + decay : update);
    new_m[i] = m;
    new_v[i] = v;
  }
}

void Adam(const AdamFactors& factors, const OptimizerRun& run, int64_t count) {
  if (factors.decoupled_decay) {
    AdamRun<true>(factors, run, count);
  } else {
    AdamRun<false>(factors, run, count);
  }
}

template <bool kHasMomentum, bool kHasBuffer, bool kNesterov>
void SgdRun(const SgdFactors& factors, const OptimizerRun& run, int64_t count) {
  const SgdFactors f = factors;
  const bool decays = f.weight_decay != 0;
  for (int64_t i = 0; i < count; ++i) {
    const float master = run.master[i], given = run.gradient[i];
    const float gradient = decays ? given + f.weight_decay * master : given;
    float direction = gradient;
    if (kHasMomentum) {
      const float momentum = kHasBuffer ? f.momentum * run.m[i] + gradient : gradient;
      direction = kNesterov ? gradient + f.momentum * momentum : momentum;
      run.new_m[i] = momentum;
    }
    run.new_master[i] = master - f.learning_rate * direction;
  }
}

void Sgd(const SgdFactors& factors, const OptimizerRun& run, int64_t count) {
  if (!factors.has_momentum) {
    SgdRun<false, false, false>(factors, run, count);
  } else if (factors.has_buffer) {
    factors.nesterov ? SgdRun<true, true, true>(factors, run, count)
                     : SgdRun<true, true, false>(factors, run, count);
  } else {
    factors.nesterov ? SgdRun<true, false, true>(factors, run, count)
                     : SgdRun<true, false, false>(factors, run, count);
  }
}

constexpr RowKernels kRowKernels = {
    .load = {&LoadF32, &LoadBF16, &LoadF16},
    .store = {&StoreF32, &StoreBF16, &StoreF16},
    .add = &Add,
    .scale = &Scale,
    .sum = &Sum,
    .norm_forward = &NormForward,
    .norm_backward = &NormBackward,
    .norm_gamma_terms = &NormGammaTerms,
    .adam = &Adam,
    .sgd = &Sgd,
};
