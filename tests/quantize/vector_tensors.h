// Vector files of tests/vectors/*_reference.py: tensors by description, and lines of cases.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "kernels/base/execution.h"
#include "kernels/quantize/quantizer.h"

namespace quantgate::testing {

struct VectorFile {
  /// By "NAME SOURCE".
  std::map<std::string, Tensor> tensors;
  /// The words of each case after "case".
  std::vector<std::vector<std::string>> cases;
};

/// Reads tests/data/`name`; draws or loads the tensors as tests/vectors/vector_tensors.py describes
/// them. Ends the process with the line where one cannot be read.
VectorFile ReadVectors(const std::string& name);

/// The first 64 bits of SHA-256 over the tensors' bytes, in hex.
std::string Digest64(std::initializer_list<Tensor> tensors);

/// Little-endian bytes in hex.
std::string HexBytes(const Tensor& tensor);
float FloatFromHexBytes(const std::string& hex);

/// The rules of a case of fp8_block_vectors.txt and fp8_rowwise_vectors.txt (words 2 to 8),
/// mxfp8_vectors.txt (2 to 6) and nvfp4_vectors.txt (2 to 8, the Hadamard transform columnwise
/// alone).
Quantizer Fp8BlockQuantizer(const std::vector<std::string>& words);
Quantizer Fp8RowwiseQuantizer(const std::vector<std::string>& words);
Quantizer Mxfp8Quantizer(const std::vector<std::string>& words);
Quantizer Nvfp4Quantizer(const std::vector<std::string>& words);
/// Seed and call id of an nvfp4 case.
QuantizeArguments Nvfp4Arguments(const std::vector<std::string>& words);

/// Digest64 of the copy dequantized to bf16, f16 and f32.
std::string ValuesDigest(const QuantizedTensor& quantized, Usage usage,
                         const ExecutionContext& context);

/// Every instruction set of this machine with one thread, and the best one with two.
std::vector<ExecutionContext> EveryPath();
std::string PathName(const ExecutionContext& context);

/// Whether `path` runs the case with this text: one of EveryPath() does, which one is drawn from
/// the text, so that each path meets its share of every rule and source. All do where IsExhaustive.
/// That the paths agree is quantize_formats_test's to say.
bool RunsCase(const ExecutionContext& path, const std::string& text);

}  // namespace quantgate::testing
