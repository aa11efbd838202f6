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

/// Frees what keeps foreign memory, on whatever thread lets it go.
struct Owner {
  nb::object object;
  explicit Owner(nb::object kept) : object(std::move(kept)) {}
  ~Owner() {
    if (!nb::is_alive()) {
      object.release();
      return;
    }
    const nb::gil_scoped_acquire acquired;
    object.reset();
  }
};

template <typename Array>
HostTensor Wrapped(const Array& array, const std::string& name, int ordinal = -1) {
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
  const MemorySpace space = ordinal < 0 ? MemorySpace::kHost : MemorySpace::kDevice;
  return {ValueOf(Tensor::View(dtype, std::move(shape),
                               Buffer::Wrap(data, array.nbytes(), owner, space))),
          ordinal};
}

HostTensor WrappedRead(const ReadArray& array, const std::string& name) {
  return Wrapped(array, name);
}
HostTensor WrappedOut(const WrittenArray& array, const std::string& name) {
  return Wrapped(array, name);
}

/// Dense memory of a CUDA device that `owner` keeps.
HostTensor WrappedDevice(uintptr_t address, const Shape& shape, const std::string& name,
                         int ordinal, nb::object owner) {
  const DType dtype = DTypeOf(name, "dtype");
  const int64_t count = ValueOf(CheckedElementCount(shape, dtype, "shape"));
  auto* const data = reinterpret_cast<std::byte*>(address);  // NOLINT: what the library says.
  auto buffer = Buffer::Wrap(data, static_cast<size_t>(count) * DTypeBytes(dtype),
                             std::make_shared<Owner>(std::move(owner)), MemorySpace::kDevice);
  return {ValueOf(Tensor::View(dtype, shape, std::move(buffer))), ordinal};
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

/// Any object with __dlpack__, or its capsule, which must lie dense in host memory, or in that of
/// the CUDA device `ordinal` where this is not negative.
HostTensor FromDlpack(const nb::ndarray<nb::ro>& array, int ordinal) {
  const bool is_host = array.device_type() == nb::device::cpu::value;
  const bool is_device = array.device_type() == nb::device::cuda::value &&
                         array.device_id() == ordinal && ordinal >= 0;
  if (!is_host && !is_device) {
    throw StatusError{Refuse(
        "device",
        absl::StrCat("DLPack device type ", array.device_type(), ", number ", array.device_id()),
        ordinal < 0 ? std::string("a tensor of another library must lie in host memory")
                    : absl::StrCat("must lie in host memory or on cuda:", ordinal))};
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
  return Wrapped(array, name, is_device ? ordinal : -1);
}

/// An array of numpy's unsigned integers over the tensor's bytes, whose memory `self` keeps.
nb::ndarray<nb::numpy> ArrayOf(const nb::object& self) {
  auto& given = nb::cast<HostTensor&>(self);
  if (given.is_on_device()) {
    throw StatusError{
        Refuse("tensor", absl::StrCat("on cuda:", given.ordinal), "must be in host memory")};
  }
  Tensor& tensor = given.tensor;
  const std::vector<size_t> shape(tensor.shape().begin(), tensor.shape().end());
  const auto bits = static_cast<uint8_t>(8 * DTypeBytes(tensor.dtype()));
  return nb::ndarray<nb::numpy>(tensor.data(), shape.size(), shape.data(), self, nullptr,
                                nb::dlpack::dtype{1, bits, 1});
}

/// The tensor's memory on its CUDA device as unsigned integers, for from_dlpack of any library. It
/// must be written by now, and whoever frees it must have waited for what reads it.
nb::ndarray<nb::array_api, nb::device::cuda> ExportOf(const nb::object& self) {
  auto& given = nb::cast<HostTensor&>(self);
  if (!given.is_on_device()) {
    throw StatusError{Refuse("tensor", "in host memory", "must be on a CUDA device")};
  }
  Tensor& tensor = given.tensor;
  const std::vector<size_t> shape(tensor.shape().begin(), tensor.shape().end());
  const auto bits = static_cast<uint8_t>(8 * DTypeBytes(tensor.dtype()));
  return nb::ndarray<nb::array_api, nb::device::cuda>(tensor.data(), shape.size(), shape.data(),
                                                      self, nullptr, nb::dlpack::dtype{1, bits, 1},
                                                      nb::device::cuda::value, given.ordinal);
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
      .def_prop_ro("ordinal", [](const HostTensor& self) { return self.ordinal; })
      .def("fingerprint", [](const HostTensor& self) {
        if (self.is_on_device()) {
          throw StatusError{
              Refuse("tensor", absl::StrCat("on cuda:", self.ordinal), "must be in host memory")};
        }
        return FingerprintOf(self.tensor, ExecutionContext()).Hex();
      });
  module.def("wrap", &WrappedRead, nb::arg("array").noconvert(), nb::arg("dtype"));
  module.def("wrap_out", &WrappedOut, nb::arg("array").noconvert(), nb::arg("dtype"));
  module.def("wrap_device", &WrappedDevice, nb::arg("address"), nb::arg("shape"), nb::arg("dtype"),
             nb::arg("ordinal"), nb::arg("owner"));
  module.def("from_dlpack", &FromDlpack, nb::arg("array").noconvert(), nb::arg("ordinal") = -1);
  module.def("array_of", &ArrayOf, nb::arg("tensor"));
  module.def("export_dlpack", &ExportOf, nb::arg("tensor"));
  module.def("dtype_name", [](const std::string& name) {
    return std::string(DTypeName(DTypeOf(name, "dtype")));
  });
}

}  // namespace quantgate::python
