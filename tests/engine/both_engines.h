// The CUDA engine beside the CPU engine: one of each for the whole program, and what differs first
// between what the two gave, byte for byte.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/engine/cuda_engine.h"
#include "kernels/layer/layer.h"

namespace quantgate {

CudaEngine& Cuda();
/// One thread: the tensors of tests are small.
Engine& Cpu();

/// The model that both engines compute for the formats of a recipe. Of a composed recipe, whose
/// GEMMs may need several, auto: on a GPU the hardware where it can.
Arithmetic ModelFor(const Recipe& recipe);

// Empty, or what differs first. `subject` is the CUDA engine's, `reference` the CPU engine's.

std::string DifferenceOf(const std::vector<NamedTensor>& subject,
                         const std::vector<NamedTensor>& reference);
/// All but times and what the two call their arithmetic: operands and results of GEMMs,
/// fingerprints at save and at use, quantizations with their counts and scales, stages, notes.
std::string DifferenceOf(const StepRecords& subject, const StepRecords& reference);
/// The same with outputs, intermediates and the state of delayed scaling.
std::string DifferenceOf(const LayerResult& subject, const LayerResult& reference);

/// Runs a request on both engines and expects the same status, or the same of everything; whether
/// it ran.
bool ExpectSameLayer(const LayerRequest& request, const Recipe& recipe,
                     const Arithmetic& arithmetic, const std::string& what);

}  // namespace quantgate
