#include "server/report/element_types.h"

#include <vector>

#include "server/report/report_document.h"

namespace quantgate {

void SetElementTypes(google::protobuf::Message& message, const std::string& subject,
                     const std::string& reference) {
  if (auto* pair = dynamic_cast<v1::ElementPair*>(&message)) {
    if (pair->subject_dtype().empty()) pair->set_subject_dtype(subject);
    if (pair->reference_dtype().empty()) pair->set_reference_dtype(reference);
    return;
  }
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const google::protobuf::FieldDescriptor* field : fields) {
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE ||
        field->is_map()) {
      continue;
    }
    if (!field->is_repeated()) {
      SetElementTypes(*reflection.MutableMessage(&message, field), subject, reference);
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      SetElementTypes(*reflection.MutableRepeatedMessage(&message, field, i), subject, reference);
    }
  }
}

void SetElementTypes(const std::string& dtype, v1::OutputReport& output) {
  if (output.has_against_unquantized()) {
    SetElementTypes(*output.mutable_against_unquantized(), dtype, "f32");
  }
  if (!output.has_against_exact()) return;
  v1::TensorComparison& exact = *output.mutable_against_exact();
  if (exact.has_parity()) SetElementTypes(*exact.mutable_parity(), dtype, dtype);
  if (exact.has_error()) SetElementTypes(*exact.mutable_error(), dtype, "f32");
}

void SetElementTypes(v1::VariantReport& variant) {
  for (v1::OutputReport& output : *variant.mutable_outputs()) {
    SetElementTypes(output.tensor().type().dtype(), output);
  }
  for (v1::TensorComparison& comparison : *variant.mutable_against_reference()) {
    const v1::OutputReport* output = FindOutput(variant, comparison.tensor());
    // Without parity the dtypes differ, and the reference's is not known here.
    if (output == nullptr || !comparison.has_parity()) continue;
    const std::string& dtype = output->tensor().type().dtype();
    SetElementTypes(comparison, dtype, dtype);
  }
}

}  // namespace quantgate
