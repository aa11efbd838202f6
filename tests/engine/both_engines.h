// One CUDA engine and one CPU engine for the whole program, and comparisons of their results, byte
// for byte.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/engine/cuda_engine.h"
#include "kernels/layer/layer.h"

namespace quantgate {

CudaEngine& Cuda();
/// Has one thread, since the tensors of tests are small.
Engine& Cpu();

/// The model that both engines compute for the formats of a recipe. A composed recipe, whose GEMMs
/// may need several models, gets auto, which on a GPU is the hardware where possible.
Arithmetic ModelFor(const Recipe& recipe);

// Each gives a text of the first difference; empty where there is none. `subject` is the CUDA
// engine's result, `reference` the CPU engine's.

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
