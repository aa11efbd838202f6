// Reading the vectors of tests/vectors/*_reference.py: one dot product a line, with block scales.
#pragma once

#include <string>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "tests/gemm/exact/exact_vectors.h"

namespace quantgate {

/// The lines of a file of tests/data that are not comments.
std::vector<std::string> LinesOf(const std::string& file);
/// A line's parts between bars, a part's words, a part's hexadecimal codes.
std::vector<std::string> PartsOf(const std::string& line);
std::vector<std::string> WordsOf(const std::string& text);
std::vector<uint32_t> CodesOf(const std::string& text);

/// f32 [1] from its hexadecimal code; absent for "-".
Tensor OptionalF32(const std::string& word);

/// One row of an operand from type and scaling by name, unpacked codes (of even count where FP4)
/// and scale codes.
GemmOperand RowOperand(const std::string& type, const std::string& scaling,
                       std::vector<uint32_t> codes, const std::vector<uint32_t>& scales);

/// Every case of tests/data/exact_scaled_dots.txt.
std::vector<ExactVector> ReadExactScaledVectors();

}  // namespace quantgate
