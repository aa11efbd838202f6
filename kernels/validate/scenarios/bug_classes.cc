// The classes of bugs that scenarios look for. docs/scenarios.md says which scenarios cover each.
#include "kernels/validate/scenarios/scenario.h"

namespace quantgate {

const std::vector<BugClass>& AllBugClasses() {
  static const auto& classes = *new std::vector<BugClass>{
      {1, "columnwise codes of a quantized weight stale after evaluation", {}, 2929},
      {2, "a quantizer's usages and its tensor's contents out of step", {}, 2929},
      {3, "a buffer of a later layer, or of a communication, lies over a saved operand", {}, 1554},
      {4,
       "scale_inv read before it is valid, or from the quantizer in place of the tensor",
       {},
       1554},
      {5, "an amax reduction group overwritten between two forwards", {}, 3104},
      {6, "a process group kept by a tensor's quantizer", {}, 3104},
      {7, "input not cast to the activation dtype before it is quantized", {}, 2817},
      {8, "conditions on requires_grad swapped", {}, 2644},
      {9, "bias gradient lost where the weight is frozen", {}},
      {10, "backward override silently ignored under delayed scaling", {}},
      {11, "wrong nominal shape of a tensor held columnwise alone", {}, 2817},
      {12, "columnwise codes made from 1-D rowwise ones", {}},
      {13, "a changed knob of the same recipe class ignored", {}},
      {14, "amax_epsilon ignored", {}},
      {15, "the recipe's split accumulator ignored", {}},
      {16, "delayed scaling's state shared by recipes that differ in the algorithm", {}},
      {17, "evaluation pollutes the amax history", {}},
      {18, "a module called twice between two updates", {}},
      {19, "fused and unfused scale updates taken for each other", {}},
      {20, "infinity freezes a scale", {}},
      {21, "recomputation does not reproduce the quantization", {}},
      {22, "random bytes used twice by stochastic rounding", {}},
      {23, "biased stochastic rounding", {}},
      {24, "Hadamard transform of one side, of other signs or of the wrong direction", {}},
      {25, "amax taken before the Hadamard transform", {}},
      {26, "amaxes of the two directions mixed up", {}},
      {27, "bound of block scales not carried with the tensor", {}},
      {28, "E8M0 scales rounded down, codes 0 and 255 misread", {}},
      {29, "columnwise MXFP8 taken for transposed", {}},
      {30, "layout and padding of block scales confused", {}},
      {31, "swizzled scales read as compact ones", {}},
      {32, "a cached quantized weight not valid for the usages of a later step", {}},
      {33, "main gradient added to or overwritten at the wrong time", {}},
      {34, "norm output rounded once more, or once less, than the path says", {}},
      {35, "directions of a hybrid recipe that no GEMM can take together", {}},
      {36, "columnwise codes from the source where the recipe says from the rowwise codes", {}},
      {37, "a saved operand changes with the tensor it aliases", {}},
      {38, "an update that must not happen happens in part", {}},
      {39, "tensors and experts without rows", {}},
      {40, "a weight quantized again for backward differs from forward's", {}},
      {41, "a tensor of the user's cleared or freed by backward", {}},
      {42, "a gradient returned as a view of a communication buffer", {}, 1554},
      {43, "fp32 backward taken for IEEE where it is tf32", {}},
      {44, "backward reads the recipe as it is now in place of forward's", {}, 3104},
      {45, "an amax reduction group set on a wrapper and not on what it wraps", {}, 3104},
      {46, "a recipe's state made anew on every forward", {}, 3104},
      {47, "an overlap buffer's precision cached across a new initialisation", {}, 3104},
      {48, "dequantizing an empty tensor", {}, 2644},
      {49, "of a grouped weight only the first expert's quantizer follows an update", {}, 2929},
  };
  return classes;
}

}  // namespace quantgate
