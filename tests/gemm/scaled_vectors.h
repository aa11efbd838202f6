// Reads the vectors of tests/vectors/*_reference.py: one dot product with block scales in each
// line.
#pragma once

#include <string>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "tests/gemm/exact/exact_vectors.h"

namespace quantgate {

/// The lines of a file of tests/data that are not comments.
std::vector<std::string> LinesOf(const std::string& file);
/// The parts of a line between bars, the words of a part, and the hexadecimal codes of a part.
std::vector<std::string> PartsOf(const std::string& line);
std::vector<std::string> WordsOf(const std::string& text);
std::vector<uint32_t> CodesOf(const std::string& text);

/// f32 [1] from its hexadecimal code; absent for "-".
Tensor OptionalF32(const std::string& word);

/// An operand of one row from the names of its type and scaling, unpacked codes (an even number for
/// FP4) and the codes of its scales.
GemmOperand RowOperand(const std::string& type, const std::string& scaling,
                       std::vector<uint32_t> codes, const std::vector<uint32_t>& scales);

/// Every case of tests/data/exact_scaled_dots.txt.
std::vector<ExactVector> ReadExactScaledVectors();

}  // namespace quantgate
