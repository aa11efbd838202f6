#include "kernels/tensor/number_source.h"

#include "kernels/numerics/e8m0.h"
#include "kernels/tensor/tensor.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

ByteValues ValuesOfCodes(DType dtype) {
  ByteValues values;
  VisitFormat<ElementFormats>(dtype, [&]<class F>() {
    for (int code = 0; code < 256; ++code) {
      values.value[code] = DecodeFloat<F>(static_cast<typename F::Storage>(code));
    }
  });
  if (dtype == DType::kF8E8M0) {
    for (int code = 0; code < 256; ++code) {
      values.value[code] = DecodeE8m0(static_cast<uint8_t>(code));
    }
  }
  return values;
}

}  // namespace

NumberSource NumbersOf(const Tensor& tensor) {
  NumberSource source;
  source.data = tensor.data();
  switch (tensor.dtype()) {
    case DType::kF64:
      source.encoding = NumberEncoding::kF64;
      break;
    case DType::kF32:
      source.encoding = NumberEncoding::kF32;
      break;
    case DType::kBF16:
      source.encoding = NumberEncoding::kBF16;
      break;
    case DType::kF16:
      source.encoding = NumberEncoding::kF16;
      break;
    default:
      source.encoding = NumberEncoding::kBytes;
      source.bytes = ValuesOfCodes(tensor.dtype());
      break;
  }
  return source;
}

}  // namespace quantgate
