// The tensors that other libraries made of the sources of tests/data/libraries, and how they are
// compared.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/tensor/files/tensor_file.h"

namespace quantgate::testing {

/// One call of a library: tests/vectors/libraries/case_file.py has what the fields mean.
struct LibraryCase {
  std::string library, name, source, rule, block;
  nlohmann::json arguments;

  std::string Argument(const char* key) const {
    return arguments.contains(key) ? arguments[key].get<std::string>() : "";
  }
  bool IsTrue(const char* key) const { return arguments.value(key, false); }
  /// Whether its codes number levels (docs/quantizers.md section 11): those of level_rules_test,
  /// others are of library_rules_test.
  bool HasLevels() const;
};

struct LibraryFile {
  std::string name;  ///< With the version.
  TensorFile file;
  std::vector<LibraryCase> cases;

  std::optional<Tensor> Find(const LibraryCase& of, const char* kind) const {
    const auto tensor = file.Find(absl::StrCat(of.name, ".", kind));
    return tensor.ok() ? std::optional<Tensor>(*tensor) : std::nullopt;
  }
};

const TensorFile& LibrarySources();
const std::vector<LibraryFile>& LibraryFiles();
/// All of them, of any rule.
inline constexpr int kLibraryCases = 653;

/// The rows of a case, which may be fewer than its source's.
int64_t RowsOf(const LibraryCase& of, const Tensor& source);

/// The values of stored scales; those of bytes by `of_byte`.
std::vector<float> StoredScales(const Tensor& stored, float (*of_byte)(uint8_t));
/// `value` rounded to f32, bf16 or f16.
float RoundedTo(DType dtype, float value);
/// Whether two floats have the same bits, or are both NaN.
bool IsSameFloat(float a, float b);

/// A table of docs/evidence.md: for each library, rule of tests/vectors/libraries/rules.py and
/// quantizer, how many tensors and values (codes, scales, zero points) were compared.
class LibraryTable {
 public:
  void Add(const LibraryFile& library, const LibraryCase& of, const nlohmann::json& quantizer,
           int64_t values, bool differs);
  /// Expects the document to have these rows, and no others, below a line that starts so.
  void ExpectDocumented(const std::string& heading) const;

 private:
  struct Row {
    int64_t tensors = 0, values = 0, differing = 0;
  };
  std::map<std::string, Row> rows_;
};

}  // namespace quantgate::testing
