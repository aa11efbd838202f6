// Why does this tensor differ from that one? Hypotheses about the two tensors alone, and about
// others that they may have been mistaken for (docs/reports.md section 10.1).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/tensor/files/tensor_file.h"
#include "kernels/validate/diagnosis/diagnosis.h"
#include "kernels/validate/diagnosis/fit.h"

namespace quantgate {

/// Tensors in host memory that `subject` may have been mistaken for, or that may have been added to
/// it: "bias", "main_grad", "dx". A bias is one whose name ends in that word.
struct TensorCase {
  std::string name;  ///< What sentences call the subject: "dw", "tensor".
  Tensor expected, subject;
  std::vector<NamedTensor> related;
  /// Tensors that what is compared was computed from, which may have NaN and infinities.
  std::vector<NamedTensor> inputs;
};

/// One hypothesis that fits.
struct Cause {
  std::string predicate;  ///< Follows the tensor's name: "is twice the expected".
  Fit fit;
  std::vector<std::string> figures = {};
  /// For rows in another order: the row of the expected that row i of the subject is.
  std::vector<int64_t> row_order = {};

  /// The predicate, what it does not give, and how sure it is.
  std::string Text() const { return predicate + fit.Suffix() + fit.Doubt(); }
};

/// What was found of one tensor.
struct TensorFindings {
  std::optional<Cause> cause;
  std::string place;  ///< Where the differing elements lie.
  std::vector<std::string> tried, not_tried;
  /// How many hypotheses were held against all elements; few places refute the others.
  int whole_fits = 0;
};

/// The largest tensor whose values are looked at; of a larger one only dtype, shape and bits.
inline constexpr int64_t kDiagnosedElementsMax = int64_t{1} << 24;

/// Tries the hypotheses in the order of their certainty and takes the best fit; those that give the
/// same bits are told together. Tensors may have
/// different dtypes and shapes. Errors: RESOURCE_EXHAUSTED (memory).
absl::StatusOr<TensorFindings> FindCause(const TensorCase& of, const DiagnosisBudget& budget);
/// The same of tensors of one shape whose values are at hand.
absl::StatusOr<TensorFindings> FindCause(const TensorCase& of, const Values& expected,
                                         const Values& subject, const DiagnosisBudget& budget);

/// The same as a sentence.
absl::StatusOr<Diagnosis> DiagnoseTensor(const TensorCase& of, const DiagnosisBudget& budget);

/// "25 of 3,072 elements differ, in rows 3 to 40 and columns 2 to 61". Of values of one size.
std::string PlaceText(const Values& expected, const Values& subject);
std::string PlaceText(const Values& expected, const Differences& found);

}  // namespace quantgate
