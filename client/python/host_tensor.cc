#include "client/python/host_tensor.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/python/status.h"
#include "kernels/base/refusal.h"
#include "kernels/tensor/fingerprint.h"

namespace nb = nanobind;

namespace quantgate::python {
namespace {

using ReadArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using WrittenArray = nb::ndarray<nb::c_contig, nb::device::cpu>;

template <typename Array>
HostTensor Wrapped(const Array& array, const std::string& name) {
  const DType dtype = DTypeOf(name, "dtype");
  if (array.itemsize() != static_cast<size_t>(DTypeBytes(dtype))) {
    throw StatusError{Refuse("dtype", name,
                             absl::StrCat("has ", DTypeBytes(dtype),
                                          " bytes an element, the array ", array.itemsize()))};
  }
  Shape shape(array.ndim());
  for (size_t i = 0; i < array.ndim(); ++i) shape[i] = static_cast<int64_t>(array.shape(i));
  auto* const data =
      reinterpret_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(array.data())));
  // The last copy of the array may be dropped on any thread: it takes the GIL for that.
  const std::shared_ptr<const void> owner(std::make_shared<Array>(array));
  return {
      ValueOf(Tensor::View(dtype, std::move(shape), Buffer::Wrap(data, array.nbytes(), owner)))};
}

/// The name of our dtype for one of DLPack's; empty where there is none.
std::string NameOf(nb::dlpack::dtype dtype) {
  if (dtype.lanes != 1)
    return dtype.code == 17 && dtype.bits == 4 && dtype.lanes == 2 ? "f4_e2m1x2" : "";
  const auto of = [&](int code, int bits) { return dtype.code == code && dtype.bits == bits; };
  // The codes of dlpack.h version 1.1.
  if (of(0, 8)) return "i8";
  if (of(0, 16)) return "i16";
  if (of(0, 32)) return "i32";
  if (of(0, 64)) return "i64";
  if (of(1, 8)) return "u8";
  if (of(2, 16)) return "f16";
  if (of(2, 32)) return "f32";
  if (of(2, 64)) return "f64";
  if (of(4, 16)) return "bf16";
  if (of(10, 8)) return "f8_e4m3";
  if (of(11, 8)) return "f8_e4m3fnuz";
  if (of(12, 8)) return "f8_e5m2";
  if (of(13, 8)) return "f8_e5m2fnuz";
  if (of(14, 8)) return "f8_e8m0";
  return "";
}

/// Any object with __dlpack__, which must lie dense in host memory.
HostTensor FromDlpack(const nb::ndarray<nb::ro>& array) {
  if (array.device_type() != nb::device::cpu::value) {
    throw StatusError{Refuse("device", absl::StrCat("DLPack device type ", array.device_type()),
                             "a tensor of another library must lie in host memory")};
  }
  const nb::dlpack::dtype dtype = array.dtype();
  const std::string name = NameOf(dtype);
  if (name.empty()) {
    throw StatusError{Refuse(
        "dtype",
        absl::StrCat("DLPack code ", dtype.code, " of ", dtype.bits, " bits x ", dtype.lanes),
        "is none of the engine's dtypes")};
  }
  int64_t expected = 1;
  for (size_t i = array.ndim(); i-- > 0;) {
    if (array.shape(i) != 1 && array.stride(i) != expected && array.size() > 0) {
      throw StatusError{
          Refuse("strides", "", "a tensor of another library must be dense, row-major")};
    }
    expected *= static_cast<int64_t>(array.shape(i));
  }
  return Wrapped(array, name);
}

/// An array of numpy's unsigned integers over the tensor's bytes, whose memory `self` keeps.
nb::ndarray<nb::numpy> ArrayOf(const nb::object& self) {
  Tensor& tensor = nb::cast<HostTensor&>(self).tensor;
  const std::vector<size_t> shape(tensor.shape().begin(), tensor.shape().end());
  const auto bits = static_cast<uint8_t>(8 * DTypeBytes(tensor.dtype()));
  return nb::ndarray<nb::numpy>(tensor.data(), shape.size(), shape.data(), self, nullptr,
                                nb::dlpack::dtype{1, bits, 1});
}

}  // namespace

Tensor TensorOrNone(const nb::object& object) {
  return object.is_none() ? Tensor() : nb::cast<HostTensor&>(object).tensor;
}

DType DTypeOf(const std::string& name, const char* field) {
  return ValueOf([&]() -> absl::StatusOr<DType> {
    absl::StatusOr<DType> dtype = ParseDType(name);
    if (!dtype.ok()) return AsField(field, dtype.status());
    return dtype;
  }());
}

void BindTensors(nb::module_& module) {
  nb::class_<HostTensor>(module, "Tensor")
      .def_prop_ro(
          "dtype",
          [](const HostTensor& self) { return std::string(DTypeName(self.tensor.dtype())); })
      .def_prop_ro("shape", [](const HostTensor& self) { return self.tensor.shape(); })
      .def_prop_ro("nbytes", [](const HostTensor& self) { return self.tensor.byte_size(); })
      .def_prop_ro("address",
                   [](const HostTensor& self) {
                     return reinterpret_cast<uintptr_t>(std::as_const(self.tensor).data());
                   })
      .def("fingerprint", [](const HostTensor& self) {
        return FingerprintOf(self.tensor, ExecutionContext()).Hex();
      });
  module.def("wrap", &Wrapped<ReadArray>, nb::arg("array").noconvert(), nb::arg("dtype"));
  module.def("wrap_out", &Wrapped<WrittenArray>, nb::arg("array").noconvert(), nb::arg("dtype"));
  module.def("from_dlpack", &FromDlpack, nb::arg("array").noconvert());
  module.def("array_of", &ArrayOf, nb::arg("tensor"));
  module.def("dtype_name", [](const std::string& name) {
    return std::string(DTypeName(DTypeOf(name, "dtype")));
  });
}

}  // namespace quantgate::python
