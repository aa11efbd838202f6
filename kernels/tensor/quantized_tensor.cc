#include "kernels/tensor/quantized_tensor.h"

namespace quantgate {

std::string_view UsageName(Usage usage) {
  return usage == Usage::kRowwise ? "rowwise" : "columnwise";
}

std::string_view QuantizerFormatName(QuantizerFormat format) {
  switch (format) {
    case QuantizerFormat::kIdentity:
      return "identity";
    case QuantizerFormat::kFp8Tensor:
      return "fp8_tensor";
    case QuantizerFormat::kFp8Block:
      return "fp8_block";
    case QuantizerFormat::kMxfp8:
      return "mxfp8";
    case QuantizerFormat::kNvfp4:
      return "nvfp4";
  }
  return "unknown";
}

int BlockLength(QuantizerFormat format) {
  switch (format) {
    case QuantizerFormat::kFp8Block:
      return 128;
    case QuantizerFormat::kMxfp8:
      return 32;
    case QuantizerFormat::kNvfp4:
      return 16;
    case QuantizerFormat::kIdentity:
    case QuantizerFormat::kFp8Tensor:
      break;
  }
  return 1;
}

}  // namespace quantgate
