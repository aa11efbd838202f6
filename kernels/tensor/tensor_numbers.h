// The elements of a tensor in device memory as kernels read them.
#pragma once

#include "kernels/tensor/files/number_source.h"
#include "kernels/tensor/tensor.h"

namespace quantgate {

/// Of a tensor of a floating-point type.
NumberSource NumbersOf(const Tensor& tensor);

}  // namespace quantgate
