#include "kernels/engine/cuda_module.h"

#include <dlfcn.h>

#include <climits>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"

namespace quantgate {
namespace {

constexpr char kModule[] = "libquantgate_cuda.so";
constexpr char kDriver[] = "libcuda.so.1";

absl::Status BuiltWithout() {
  return absl::UnimplementedError(
      "this build has no CUDA engine; the CPU engine gives the bits of arithmetic sm90");
}

/// The folder of the shared object that has this code, as the Python package's extension does; of a
/// program its own.
std::filesystem::path OwnFolder() {
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(&IsBuiltWithCuda), &info) == 0) return {};
  std::error_code error;
  return std::filesystem::canonical(info.dli_fname, error).parent_path();
}

/// Where the module may be: in ../lib of the program's folder, as in build trees and bundles, or
/// beside the program; beside an extension, or in lib of the build tree that has its folder.
std::vector<std::filesystem::path> ModulePaths() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path folder = program.parent_path(), own = OwnFolder();
  std::vector<std::filesystem::path> paths = {folder.parent_path() / "lib" / kModule,
                                              folder / kModule};
  if (!own.empty() && own != folder) {
    paths.push_back(own / kModule);
    paths.push_back(own.parent_path().parent_path() / "lib" / kModule);
  }
  return paths;
}

std::string LastError() {
  const char* error = dlerror();
  return error == nullptr ? "unknown error" : error;
}

absl::StatusOr<const CudaEntry*> Load() {
  if (!IsBuiltWithCuda()) return BuiltWithout();
  // The driver is looked for first: without it nothing else is worth loading, and the error is
  // this.
  if (dlopen(kDriver, RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("no CUDA device: the NVIDIA driver's ", kDriver, " is not here (", LastError(),
                     "); the CPU engine gives the bits of arithmetic sm90"));
  }
  std::string errors;
  for (const std::filesystem::path& path : ModulePaths()) {
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) {
      absl::StrAppend(&errors, errors.empty() ? "" : "; ", path.string(), " does not exist");
      continue;
    }
    // RTLD_LOCAL, because the module has its own copies of the engine's code, whose symbols must
    // not be mixed with the program's.
    void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (module == nullptr) return absl::FailedPreconditionError(LastError());
    void* entry = dlsym(module, kCudaEntryName);
    if (entry == nullptr) return absl::FailedPreconditionError(LastError());
    // The module is never closed, since its tensors may live as long as the process.
    return reinterpret_cast<const CudaEntry* (*)()>(entry)();
  }
  return absl::FailedPreconditionError(absl::StrCat("the CUDA engine's module: ", errors));
}

absl::StatusOr<const CudaEntry*> Entry() {
  static const auto& entry = *new absl::StatusOr<const CudaEntry*>(Load());
  return entry;
}

}  // namespace

bool IsBuiltWithCuda() {
#if defined(QUANTGATE_HAS_CUDA)
  return true;
#else
  return false;
#endif
}

absl::StatusOr<int> CountCudaDevices() {
  QG_ASSIGN_OR_RETURN(const CudaEntry* entry, Entry());
  const int count = entry->count_devices();
  if (count > 0) return count;
  return absl::FailedPreconditionError("no CUDA device: the driver is here and shows none");
}

absl::StatusOr<std::unique_ptr<Engine>> MakeCudaEngine(int ordinal) {
  QG_ASSIGN_OR_RETURN(const int count, CountCudaDevices());
  if (ordinal < 0 || ordinal >= count) {
    return absl::FailedPreconditionError(absl::StrCat("device cuda:", ordinal,
                                                      ": the driver shows ", count,
                                                      count == 1 ? " device" : " devices"));
  }
  QG_ASSIGN_OR_RETURN(const CudaEntry* entry, Entry());
  return entry->make_engine(ordinal);
}

absl::StatusOr<const CudaCollectives*> FindCudaCollectives() {
  QG_ASSIGN_OR_RETURN(const CudaEntry* entry, Entry());
  return entry->collectives();
}

absl::Status CublasLtOnCpuError(const Arithmetic& arithmetic) {
  const bool is_built = IsBuiltWithCuda();
  return StatusOf(
      {.code = is_built ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kUnimplemented,
       .field = "arithmetic",
       .value = arithmetic.ToString(),
       .rule = absl::StrCat(is_built ? "it needs a CUDA device, and this engine runs on "
                                       "the CPU"
                                     : "this build has no CUDA engine",
                            "; sm90 is its model, with the same bits")});
}

}  // namespace quantgate
