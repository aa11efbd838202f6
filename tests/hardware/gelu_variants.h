// Ways to evaluate GELU in its tanh form and its derivative on the device, to find the one that
// cuBLASLt's epilogues take.
#pragma once

#include <string>
#include <vector>

namespace quantgate::hardware {

int GeluVariantCount();
std::string GeluVariantName(int variant);
std::vector<float> Gelu(int variant, const std::vector<float>& x);

/// dx = gelu'(z) * dy.
int GeluGradientVariantCount();
std::string GeluGradientVariantName(int variant);
std::vector<float> GeluGradient(int variant, const std::vector<float>& z,
                                const std::vector<float>& dy);

}  // namespace quantgate::hardware
