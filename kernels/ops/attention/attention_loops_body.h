// The loops behind attention_loops.h: attention_loops.cc includes this file once for each
// instruction set, in a namespace of its own, and defines QG_LOOP before, as activation_kernels.cc
// does for activation_kernels_body.h.

QG_LOOP float Largest(const float* z, int64_t count) {
  // Numbers are ordered as these integers; a loop over integers is vectorised. Zeros of both signs
  // give the same terms, and so do a NaN and a number, since the sum is NaN.
  const auto ordered = [](int32_t bits) { return bits ^ ((bits >> 31) & 0x7FFFFFFF); };
  int32_t largest = std::numeric_limits<int32_t>::min();
  for (int64_t i = 0; i < count; ++i) {
    const int32_t place = ordered(std::bit_cast<int32_t>(z[i]));
    largest = place > largest ? place : largest;
  }
  return std::bit_cast<float>(ordered(largest));
}

QG_LOOP void Terms(float largest, int64_t count, float* z) {
  for (int64_t i = 0; i < count; ++i) z[i] = SoftmaxTerm(z[i], largest);
}

QG_LOOP void Divide(float divisor, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = to[i] / divisor;
}

QG_LOOP void Multiply(const float* __restrict a, const float* __restrict b, int64_t count,
                      float* __restrict to) {
  for (int64_t i = 0; i < count; ++i) to[i] = a[i] * b[i];
}

QG_LOOP void Slopes(float sum, const float* __restrict probabilities, int64_t count,
                    float* __restrict gradient) {
  for (int64_t i = 0; i < count; ++i) {
    gradient[i] = SoftmaxSlope(gradient[i], probabilities[i], sum);
  }
}

QG_LOOP void RotaryProductsOfRow(const float* __restrict x, const float* __restrict cosines,
                                 const float* __restrict sines, int64_t half,
                                 float* __restrict products) {
  for (int64_t i = 0; i < half; ++i) {
    const RotaryProducts of_pair = RotaryProductsOf({x[i], x[half + i]}, cosines[i], sines[i]);
    products[i] = of_pair.low_cosine;
    products[half + i] = of_pair.high_cosine;
    products[2 * half + i] = of_pair.high_sine;
    products[3 * half + i] = of_pair.low_sine;
  }
}

QG_LOOP void RotatedPairs(const float* __restrict products, int64_t half, float* __restrict to) {
  for (int64_t i = 0; i < half; ++i) {
    const RotaryPair pair = RotatedPair(
        {products[i], products[half + i], products[2 * half + i], products[3 * half + i]});
    to[i] = pair.low;
    to[half + i] = pair.high;
  }
}

constexpr AttentionLoops kLoops = {.largest = &Largest,
                                   .terms = &Terms,
                                   .divide = &Divide,
                                   .multiply = &Multiply,
                                   .slopes = &Slopes,
                                   .rotary_products = &RotaryProductsOfRow,
                                   .rotated_pairs = &RotatedPairs};
