// What the vector tests of the formats with one scale a block, fp8_block and mxfp8, have in common.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tests/quantize/vector_tensors.h"

namespace quantgate::testing {

/// Expects of every case the codes, scales and dequantized values of both directions, together and
/// each alone. Of a case's words the first two are the source's, those before `digests_begin` the
/// rules that `quantizer_of` reads, then come three digests per direction. Stops after the first
/// case that fails.
void ExpectBlockVectors(const VectorFile& vectors, size_t digests_begin,
                        Quantizer (*quantizer_of)(const std::vector<std::string>& words),
                        const ExecutionContext& context);

}  // namespace quantgate::testing
