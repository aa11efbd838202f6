// The loop behind MeasureStretch, for one instruction set: included by each error_kernels_<isa>.cc
// in its anonymous namespace, after it has defined kLanes. Every lane is IEEE arithmetic without
// contraction, and sums follow one tree, so every instruction set gives the same bits.

typedef double Doubles __attribute__((vector_size(kLanes * sizeof(double)), may_alias));
typedef int64_t Masks __attribute__((vector_size(kLanes * sizeof(int64_t))));

inline Doubles Load(const double* p) { return *reinterpret_cast<const Doubles*>(p); }
inline Doubles Broadcast(double x) { return x - Doubles{}; }
inline Doubles Magnitude(Doubles x) { return (Doubles)((Masks)x & 0x7FFFFFFFFFFFFFFF); }
inline Doubles Larger(Doubles a, Doubles b) { return b > a ? b : a; }

// The even and odd elements of two neighbouring vectors.
template <int... kIndex>
inline Doubles Pick(Doubles low, Doubles high) {
  return __builtin_shufflevector(low, high, kIndex...);
}
inline Doubles Evens(Doubles low, Doubles high) {
  if constexpr (kLanes == 8)
    return Pick<0, 2, 4, 6, 8, 10, 12, 14>(low, high);
  else if constexpr (kLanes == 4)
    return Pick<0, 2, 4, 6>(low, high);
  else
    return Pick<0, 2>(low, high);
}
inline Doubles Odds(Doubles low, Doubles high) {
  if constexpr (kLanes == 8)
    return Pick<1, 3, 5, 7, 9, 11, 13, 15>(low, high);
  else if constexpr (kLanes == 4)
    return Pick<1, 3, 5, 7>(low, high);
  else
    return Pick<1, 3>(low, high);
}

// The pairwise sum of kErrorStretch values, level by level: values[i] = values[2i] + values[2i +
// 1]. Overwrites the values.
inline double SumPairwise(Doubles* values) {
  int vectors = kErrorStretch / kLanes;
  for (; vectors > 1; vectors /= 2) {
    for (int i = 0; i < vectors / 2; ++i) {
      const Doubles low = values[2 * i], high = values[2 * i + 1];
      values[i] = Evens(low, high) + Odds(low, high);
    }
  }
  double lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = values[0][i];
  for (int count = kLanes / 2; count >= 1; count /= 2) {
    for (int i = 0; i < count; ++i) lanes[i] = lanes[2 * i] + lanes[2 * i + 1];
  }
  return lanes[0];
}

inline double LargestLane(Doubles x) {
  double largest = x[0];
  for (int i = 1; i < kLanes; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

// A true lane of a mask is -1.
inline int64_t CountOf(Masks negated) {
  int64_t count = 0;
  for (int i = 0; i < kLanes; ++i) count -= negated[i];
  return count;
}

void Measure(const double* subject, const double* reference, const SubjectRange& range,
             StretchErrors& errors) {
  const Doubles infinity = Broadcast(__builtin_inf());
  const Doubles zero = Broadcast(0), one = Broadcast(1), nothing = Broadcast(-0.0);
  const Doubles none = Broadcast(-1);
  const Doubles largest = Broadcast(range.largest_finite);
  const Doubles smallest_normal = Broadcast(range.smallest_normal);
  Doubles terms[kErrorSeriesCount][kErrorStretch / kLanes];
  Doubles max_abs = none, max_rel = none;
  Masks finite_count{}, relative_count{}, saturated_count{}, flushed_count{}, subnormal_count{};
  for (int i = 0; i < kErrorStretch / kLanes; ++i) {
    const Doubles s = Load(subject + i * kLanes);
    const Doubles r = Load(reference + i * kLanes);
    const Doubles s_magnitude = Magnitude(s);
    const Doubles r_magnitude = Magnitude(r);
    const Masks finite = (s_magnitude < infinity) & (r_magnitude < infinity);
    const Masks relative = finite & (r_magnitude > zero);
    const Doubles error = s - r;
    const Doubles abs_error = Magnitude(error);
    const Doubles rel_error = abs_error / (relative ? r_magnitude : one);
    terms[kAbsError][i] = finite ? abs_error : nothing;
    terms[kSquaredError][i] = finite ? error * error : nothing;
    terms[kSignedError][i] = finite ? error : nothing;
    terms[kRelativeError][i] = relative ? rel_error : nothing;
    terms[kSquaredReference][i] = finite ? r * r : nothing;
    terms[kSquaredSubject][i] = finite ? s * s : nothing;
    terms[kProduct][i] = finite ? s * r : nothing;
    max_abs = Larger(max_abs, finite ? abs_error : none);
    max_rel = Larger(max_rel, relative ? rel_error : none);
    finite_count += finite;
    relative_count += relative;
    saturated_count += (s_magnitude == largest) & (r_magnitude > s_magnitude);
    flushed_count += (s_magnitude == zero) & (r_magnitude > zero);
    subnormal_count += (s_magnitude > zero) & (s_magnitude < smallest_normal);
  }
  for (int series = 0; series < kErrorSeriesCount; ++series) {
    errors.sums[series] = SumPairwise(terms[series]);
  }
  errors.max_abs = LargestLane(max_abs);
  errors.max_rel = LargestLane(max_rel);
  errors.finite_count = CountOf(finite_count);
  errors.relative_count = CountOf(relative_count);
  errors.saturated_count = CountOf(saturated_count);
  errors.flushed_to_zero_count = CountOf(flushed_count);
  errors.subnormal_count = CountOf(subnormal_count);
}
