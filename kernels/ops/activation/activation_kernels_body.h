// The loops behind activation_kernels.h: included by each activation_kernels_<isa>.cc in its
// anonymous namespace, after it has defined QG_LOOP, the attributes that give a loop its
// instruction set and inline all that it calls. A function that stays out of line is compiled for
// the base instruction set, so nothing leaks.

template <ActivationFunction kFunction, ActivationVariant kVariant>
QG_LOOP void Forward(const ActivationOptions& options, const ActivationRun& run) {
  const ActivationOptions local = options;
  const float* __restrict x = run.x;
  float* __restrict value = run.value;
  for (int64_t i = 0; i < run.count; ++i) {
    value[i] = Activate<kFunction, kVariant>(x[i], local).value;
  }
}

template <ActivationFunction kFunction, ActivationVariant kVariant>
QG_LOOP void ForwardGated(const ActivationOptions& options, const ActivationRun& run) {
  const ActivationOptions local = options;
  const float* __restrict x = run.x, * __restrict gate = run.gate;
  float* __restrict value = run.value;
  for (int64_t i = 0; i < run.count; ++i) {
    value[i] =
        Activate<kFunction, kVariant>(x[i], local).value * GateFactor<kFunction>(gate[i], local);
  }
}

template <ActivationFunction kFunction, ActivationVariant kVariant>
QG_LOOP void Backward(const ActivationOptions& options, const ActivationRun& run) {
  const ActivationOptions local = options;
  const float* __restrict x = run.x, * __restrict dy = run.dy;
  float* __restrict gradient = run.x_gradient;
  for (int64_t i = 0; i < run.count; ++i) {
    gradient[i] = Activate<kFunction, kVariant>(x[i], local).slope * dy[i];
  }
}

template <ActivationFunction kFunction, ActivationVariant kVariant>
QG_LOOP void BackwardGated(const ActivationOptions& options, const ActivationRun& run) {
  const ActivationOptions local = options;
  const float* __restrict x = run.x, * __restrict gate = run.gate, * __restrict dy = run.dy;
  float* __restrict gradient = run.x_gradient, * __restrict gate_gradient = run.gate_gradient;
  for (int64_t i = 0; i < run.count; ++i) {
    const ValueAndSlope activated = Activate<kFunction, kVariant>(x[i], local);
    const GatedGradients gradients = GatedGradient<kFunction>(dy[i], activated, gate[i], local);
    gradient[i] = gradients.x;
    gate_gradient[i] = gradients.gate;
  }
}

template <ActivationFunction kFunction, ActivationVariant kVariant>
ActivationKernels KernelsOf(ActivationKind kind) {
  if constexpr (kFunction == ActivationFunction::kSigmoid ||
                kFunction == ActivationFunction::kClampedSilu) {
    return {&ForwardGated<kFunction, kVariant>, &BackwardGated<kFunction, kVariant>};
  } else {
    if (IsGated(kind)) {
      return {&ForwardGated<kFunction, kVariant>, &BackwardGated<kFunction, kVariant>};
    }
    return {&Forward<kFunction, kVariant>, &Backward<kFunction, kVariant>};
  }
}

template <ActivationFunction kFunction>
ActivationKernels KernelsOfVariant(const ActivationOptions& options) {
  using V = ActivationVariant;
  if constexpr (UsesSigmoid(kFunction)) {
    if (options.variant == V::kFp32Sigmoid) {
      return KernelsOf<kFunction, V::kFp32Sigmoid>(options.kind);
    }
  }
  if constexpr (kFunction == ActivationFunction::kGelu) {
    if (options.variant == V::kJitGelu) return KernelsOf<kFunction, V::kJitGelu>(options.kind);
  }
  return KernelsOf<kFunction, V::kCanonical>(options.kind);
}

ActivationKernels KernelsOfOptions(const ActivationOptions& options) {
  using F = ActivationFunction;
  switch (FunctionOf(options.kind)) {
    case F::kGelu:
      return KernelsOfVariant<F::kGelu>(options);
    case F::kSigmoid:
      return KernelsOfVariant<F::kSigmoid>(options);
    case F::kQuickGelu:
      return KernelsOfVariant<F::kQuickGelu>(options);
    case F::kRelu:
      return KernelsOfVariant<F::kRelu>(options);
    case F::kSquaredRelu:
      return KernelsOfVariant<F::kSquaredRelu>(options);
    case F::kSilu:
      return KernelsOfVariant<F::kSilu>(options);
    case F::kClampedSilu:
      break;
  }
  return KernelsOfVariant<F::kClampedSilu>(options);
}
