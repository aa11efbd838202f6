#include "kernels/tensor/convert.h"

#include <bit>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "kernels/numerics/branch_free_cast.h"
#include "kernels/tensor/visit_format.h"

namespace quantgate {
namespace {

constexpr int64_t kGrainElements = 1 << 16;

/// An element type as source and as target of a cast. A source gives float, or double where float
/// is too narrow.
template <class F>
struct Element {
  using Storage = typename F::Storage;
  static float Load(Storage code) { return DecodeFloat<F>(code); }
  static Storage Round(float value) { return EncodeFloat<F>(value); }
  static Storage Round(double value) { return EncodeDouble<F>(value); }
};

template <>
struct Element<Float32> {
  using Storage = float;
  static float Load(Storage value) { return value; }
  static Storage Round(float value) { return CanonicalFloat(value); }
  static Storage Round(double value) { return std::bit_cast<float>(EncodeDouble<Float32>(value)); }
};

template <class F>
requires(sizeof(typename F::Storage) == 2) struct Element<F> {
  using Storage = uint16_t;
  static float Load(Storage code) { return DecodeFloat<F>(code); }
  static Storage Round(float value) { return EncodeBranchFree<F>(value); }
  static Storage Round(double value) { return EncodeDouble<F>(value); }
};

struct Float64Source {
  using Storage = double;
  static double Load(Storage value) { return value; }
};

using CastFunction = void (*)(const Tensor&, Tensor&, const ExecutionContext&);

template <class From, class To>
void CastAll(const Tensor& tensor, Tensor& out, const ExecutionContext& context) {
  const auto* from = tensor.as<typename From::Storage>();
  auto* to = out.as<typename To::Storage>();
  ParallelFor(context, tensor.element_count(), kGrainElements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = To::Round(From::Load(from[i]));
  });
}

template <class From>
CastFunction CastTo(DType out) {
  CastFunction cast = nullptr;
  VisitFormat<ElementFormats>(out, [&]<class To>() { cast = &CastAll<From, Element<To>>; });
  return cast;
}

CastFunction FindCast(DType in, DType out) {
  if (in == DType::kF64) return CastTo<Float64Source>(out);
  CastFunction cast = nullptr;
  VisitFormat<ElementFormats>(in, [&]<class From>() { cast = CastTo<Element<From>>(out); });
  return cast;
}

}  // namespace

absl::Status CheckCast(DType in, DType out) {
  if ((in == DType::kF64 || IsElementFormat(in)) && IsElementFormat(out)) return absl::OkStatus();
  return Refuse("out_dtype", DTypeName(out),
                absl::StrCat(std::string(DTypeName(in)), " cannot be cast to it"));
}

absl::StatusOr<Tensor> CastTensor(const Tensor& tensor, DType out,
                                  const ExecutionContext& context) {
  if (tensor.dtype() == out) return tensor;
  QG_RETURN_IF_ERROR(CheckCast(tensor.dtype(), out));
  const CastFunction cast = FindCast(tensor.dtype(), out);
  QG_ASSIGN_OR_RETURN(Tensor result, Tensor::Allocate(out, tensor.shape()));
  cast(tensor, result, context);
  QG_RETURN_IF_ERROR(context.CheckCancelled());
  return result;
}

}  // namespace quantgate
