// One step of a training session as text.
#pragma once

#include <ostream>

#include "quantgate/v1/sessions_service.pb.h"

namespace quantgate {

/// What the step gave and quantized, what the session holds for backward after it, and, where the
/// step was also done under another recipe, how the two compare.
void PrintSessionStep(const v1::SessionStepResponse& response, bool uses_colour, std::ostream& out);

}  // namespace quantgate
