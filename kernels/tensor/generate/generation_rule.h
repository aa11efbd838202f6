// What a GeneratorSpec asks for, checked: the part of generate.cc that both engines share.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/tensor/generate/generate.h"
#include "kernels/tensor/generate/generated_value.h"

namespace quantgate {

/// INVALID_ARGUMENT as Generate.
absl::StatusOr<GenerationRule> GenerationRuleOf(const GeneratorSpec& spec);

}  // namespace quantgate
