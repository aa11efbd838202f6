#include "tests/server/report/sample_report.h"

#include <limits>

#include "google/protobuf/text_format.h"
#include "server/report/element_types.h"

namespace quantgate {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

template <typename Message>
Message Parse(const std::string& text) {
  Message message;
  google::protobuf::TextFormat::ParseFromString(text, &message);
  return message;
}

v1::ParityReport SampleParity() {
  return Parse<v1::ParityReport>(R"(
    element_count: 1000000 mismatch_count: 12
    first { coordinate: 0 coordinate: 7 subject: 1.5 reference: 1.5078125
            subject_bits: 0x3fc0 reference_bits: 0x3fc1 }
    worst { coordinate: 3 coordinate: 1 subject: nan reference: -2 subject_bits: 0x7fff
            reference_bits: 0xc000 }
    worst_ulp: 9223372036854775807
    ulp_histogram { lower: -8 upper: -5 count: 3 }
    ulp_histogram { lower: 0 upper: 0 count: 999988 }
    ulp_histogram { lower: 1 upper: 1 count: 8 }
    class_confusion { subject_class: "nan" reference_class: "negative" count: 1 }
    class_confusion { subject_class: "positive" reference_class: "positive" count: 999999 })");
}

v1::ErrorReport SampleError(double sqnr_db) {
  v1::ErrorReport error = Parse<v1::ErrorReport>(R"(
    element_count: 1000000 non_finite_count: 1 max_abs: 0.5 mean_abs: 0.25 rms: 0.3
    max_abs_at { coordinate: 3 coordinate: 1 subject: 2 reference: 2.5 subject_bits: 0x4000
                 reference_bits: 0x40200000 }
    mean_rel: 0.125 bias: -1e-9 cosine: 0.999 relative_frobenius: 0.02 saturated_count: 4
    heat_map { rows: 2 columns: 2
      row_edges: [0, 8, 16] column_edges: [0, 4, 8]
      rms_error: [0.1, 0.4, 0, nan] max_abs_error: [0.2, 0.5, 0, inf] }
    worst_blocks { row_begin: 0 row_end: 8 column_begin: 4 column_end: 8 rms_error: 0.4 max_abs_error: 0.5 })");
  error.set_max_rel(kInf);
  error.set_sqnr_db(sqnr_db);
  return error;
}

v1::OutputReport SampleOutput(const std::string& name, double sqnr_db, bool within_bound) {
  v1::OutputReport output = Parse<v1::OutputReport>(R"(
    tensor { type { dtype: "bf16" shape: 1000 shape: 1000 } fingerprint { high: 1 low: 2 } }
    arithmetic: "sm90:fast" exact_note: "fp64 exact: needs 40 of 53 bits"
    bound { factor: 0.06 derivation: "16 steps" worst_ratio: 0.5 pass: true })");
  output.mutable_tensor()->set_name(name);
  *output.mutable_against_unquantized() = SampleError(sqnr_db);
  output.mutable_against_exact()->set_tensor(name);
  output.mutable_against_exact()->set_reference("exact");
  *output.mutable_against_exact()->mutable_parity() = SampleParity();
  output.mutable_bound()->set_pass(within_bound);
  if (!within_bound) {
    output.mutable_bound()->set_worst_ratio(3.5);
    output.mutable_bound()->set_violation_count(17);
  }
  return output;
}

v1::VariantReport SampleVariant(const std::string& label, double sqnr_db, bool within_bound) {
  v1::VariantReport variant = Parse<v1::VariantReport>(R"(
    recipe: "fp8_current:fp8_format=e4m3" recipe_name: "fp8_current" recipe_digest: "d1"
    backward_override: "none" arithmetic: "sm90"
    saved { name: "x" content: "f8_e4m3 columnwise codes" used: true
            at_save { high: 3 low: 4 } at_use { high: 3 low: 4 }
            format: "mxfp8" data_bytes: 65536 scale_bytes: 2048 counted_bytes: 67584 }
    saved { name: "weight" content: "bf16 as given" used: true
            at_save { high: 5 low: 6 } at_use { high: 5 low: 7 }
            format: "bf16" data_bytes: 3145728 counted_bytes: 3145728 held_bytes: 3145728 }
    saved_bytes { bytes: 3213312 data_bytes: 3211264 scale_bytes: 2048 held_bytes: 3145728 }
    quantizations { role: "input" rowwise: true columnwise: true quantizer: "f8_e4m3 per tensor"
                    amax: inf scale: nan scale_inv: 0.5 counts { normal: 90 zero: 5 nan: 1 saturated: 4 } }
    gemms { role: "fprop" text: "m=8 n=8 k=16 -> bf16" a_source: "x" b_source: "weight"
            arithmetic: "sm90:fast" }
    stages { stage: "fprop" seconds: 0.012 } stages { stage: "dgrad" seconds: 0.5 })");
  variant.set_label(label);
  *variant.add_outputs() = SampleOutput("y", sqnr_db, true);
  *variant.add_outputs() = SampleOutput("dx", sqnr_db / 2, within_bound);
  return variant;
}

}  // namespace

ReportDocument SampleCompare() {
  ReportDocument document;
  document.kind = "compare";
  document.title = std::string("linear: ") + kHostileText;
  document.command = std::string("quantgate compare --input ") + kHostileText;
  document.has_run = true;
  v1::RunReport& run = document.run;
  run = Parse<v1::RunReport>(R"(
    schema_version: 1 run_id: "run-1" seconds: 1.5 reference: 0
    environment { version: "0.1.0" build: "abc, g++" devices { id: "cpu" name: "A CPU" architecture: "x86-64" } }
    inputs { name: "x" type { dtype: "bf16" shape: 8 shape: 16 } source: "inline" }
    pairs { subject: 1 reference: 0 tensor: "y" comparable: true mismatch_count: 5 element_count: 10
            relative_frobenius: 0.0151 }
    pairs { subject: 1 reference: 0 tensor: "dx" comparable: true element_count: 10 }
    verdict { criterion: REQUIREMENT_BOUND pass: false threshold: "ratio <= 1" source: "derived"
              finding: "dx of variant 1" })");
  run.set_reproduce(std::string("quantgate run ") + kHostileText);
  *run.add_variants() = SampleVariant("bf16 / none / sm90", 55.5, true);
  *run.add_variants() =
      SampleVariant(std::string("fp8_current / none / ") + kHostileText, 31.25, false);
  v1::VariantReport& second = *run.mutable_variants(1);
  second.add_notes(std::string("note ") + kHostileText);
  v1::TensorComparison& comparison = *second.add_against_reference();
  comparison.set_tensor("y");
  comparison.set_reference("bf16 / none / sm90");
  *comparison.mutable_parity() = SampleParity();
  *comparison.mutable_error() = SampleError(kNan);
  comparison.mutable_nearer()->set_subject_nearer(10);
  comparison.mutable_nearer()->set_tied(90);
  *second.add_outputs() = SampleOutput("db", kInf, true);
  second.mutable_outputs(2)->clear_bound();
  for (v1::VariantReport& variant : *run.mutable_variants()) SetElementTypes(variant);
  document.verdict = run.verdict();
  document.remarks = {kHostileText};
  return document;
}

ReportDocument SampleDiff() {
  ReportDocument document;
  document.kind = "diff";
  document.title = "a against b";
  document.command = "quantgate diff a b";
  document.verdict.set_criterion(v1::REQUIREMENT_BITWISE);
  document.verdict.set_threshold("0 differing elements");
  document.verdict.set_finding(kHostileText);
  SubjectComparison differs{"y", "bf16", "bf16", "a:y", "b:y", {}, {}, "", false, {}};
  *differs.result.mutable_parity() = SampleParity();
  *differs.result.mutable_error() = SampleError(40);
  SetElementTypes(differs.result, "bf16", "bf16");
  SubjectComparison equal{"dx", "f8_e4m3", "f8_e4m3", "a:dx", "b:dx", {}, {}, "", false, {}};
  equal.result.mutable_parity()->set_equal(true);
  equal.result.mutable_parity()->set_element_count(4);
  SubjectComparison absent{
      kHostileText, "f32", "", "", "", {}, {}, std::string("only in ") + kHostileText, false, {}};
  document.comparisons = {differs, equal, absent};
  return document;
}

}  // namespace quantgate
