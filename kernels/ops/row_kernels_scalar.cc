#include <cstring>

#include "kernels/numerics/cast.h"
#include "kernels/numerics/norm.h"
#include "kernels/numerics/pairwise.h"
#include "kernels/ops/row_kernels.h"

namespace quantgate {
namespace {

void LoadF32(const void* from, int64_t count, float* to) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}
template <class F>
void LoadHalf(const void* from, int64_t count, float* to) {
  const auto* codes = static_cast<const uint16_t*>(from);
  for (int64_t i = 0; i < count; ++i) to[i] = DecodeFloat<F>(codes[i]);
}

void StoreF32(const float* from, int64_t count, void* to) {
  auto* values = static_cast<float*>(to);
  for (int64_t i = 0; i < count; ++i) values[i] = CanonicalFloat(from[i]);
}
template <class F>
void StoreHalf(const float* from, int64_t count, void* to) {
  auto* codes = static_cast<uint16_t*>(to);
  for (int64_t i = 0; i < count; ++i) codes[i] = EncodeFloat<F>(from[i]);
}

void Add(const float* addend, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = to[i] + addend[i];
}

void Scale(float factor, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = to[i] * factor;
}

float Sum(const float* values, int64_t count, float*) { return PairwiseSum(values, count); }

void NormForward(const NormRow& row, float* x, float*, NormStatistics& statistics) {
  const int64_t n = row.columns;
  const float mean = row.is_centered ? PairwiseSum(x, n) * row.inverse_count : 0.0f;
  PairwiseAccumulator<float> squares;
  for (int64_t i = 0; i < n; ++i) squares.Add((x[i] - mean) * (x[i] - mean));
  const float rstd = NormRstd(squares.Sum() * row.inverse_count, row.epsilon);
  for (int64_t i = 0; i < n; ++i) {
    const float scaled = NormScaled(NormHat(x[i], mean, rstd), row.gamma[i]);
    x[i] = row.beta != nullptr ? scaled + row.beta[i] : scaled;
  }
  statistics = {mean, rstd};
}

void NormBackward(const NormRow& row, const NormStatistics& statistics, float* x, float* dz,
                  float*) {
  const int64_t n = row.columns;
  PairwiseAccumulator<float> dyg_hat, dyg;
  for (int64_t i = 0; i < n; ++i) {
    x[i] = NormHat(x[i], statistics.mean, statistics.rstd);
    dz[i] = row.gamma[i] * dz[i];
    dyg_hat.Add(dz[i] * x[i]);
    dyg.Add(dz[i]);
  }
  const float mean_dyg_hat = dyg_hat.Sum() * row.inverse_count;
  const float mean_dyg = row.is_centered ? dyg.Sum() * row.inverse_count : -0.0f;
  for (int64_t i = 0; i < n; ++i) {
    dz[i] = NormGradient(dz[i], x[i], statistics.rstd, mean_dyg_hat, mean_dyg);
  }
}

void NormGammaTerms(const NormStatistics& statistics, const float* dz, int64_t count, float* x) {
  for (int64_t i = 0; i < count; ++i) {
    x[i] = dz[i] * NormHat(x[i], statistics.mean, statistics.rstd);
  }
}

void Adam(const AdamFactors& factors, const OptimizerRun& run, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const AdamElement updated =
        AdamUpdate({run.master[i], run.m[i], run.v[i]}, run.gradient[i], factors);
    run.new_master[i] = updated.master;
    run.new_m[i] = updated.m;
    run.new_v[i] = updated.v;
  }
}

void Sgd(const SgdFactors& factors, const OptimizerRun& run, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const SgdElement updated =
        SgdUpdate({run.master[i], factors.has_buffer ? run.m[i] : 0.0f}, run.gradient[i], factors);
    run.new_master[i] = updated.master;
    if (factors.has_momentum) run.new_m[i] = updated.momentum;
  }
}

}  // namespace

const RowKernels kScalarRowKernels = {
    .load = {&LoadF32, &LoadHalf<BFloat16>, &LoadHalf<Float16>},
    .store = {&StoreF32, &StoreHalf<BFloat16>, &StoreHalf<Float16>},
    .add = &Add,
    .scale = &Scale,
    .sum = &Sum,
    .norm_forward = &NormForward,
    .norm_backward = &NormBackward,
    .norm_gamma_terms = &NormGammaTerms,
    .adam = &Adam,
    .sgd = &Sgd,
};

}  // namespace quantgate
