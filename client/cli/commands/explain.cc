// quantgate explain: which arithmetic, or which scale and rounding rule, produced these bytes.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/subcommand.h"
#include "client/cli/exit.h"
#include "client/cli/layer_command.h"
#include "client/cli/options/gemm_options.h"
#include "client/cli/options/quantized_metadata.h"
#include "client/tensor_name.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/files/tensor_file.h"
#include "server/report/number_text.h"
#include "server/report/report_json.h"
#include "server/report/text_table.h"

namespace quantgate {
namespace {

constexpr char kExplainExamples[] = R"(Examples:
  quantgate explain --a x.npy --b w.npy --d y.safetensors:y
  quantgate explain --a q.safetensors:a@f8_e4m3 --a-scale-inv q.safetensors:sa \
      --b q.safetensors:b@f8_e4m3 --b-scale-inv q.safetensors:sb --d q.safetensors:d
  quantgate explain --source x.npy --codes q.safetensors:codes@f8_e4m3 \
      --scale-inv q.safetensors:scale_inv --format json

With --d: every named arithmetic that takes the operands, and families of rules (chunk length L,
fraction bits F, promotion interval, split-K), counted against d. What matches entirely is
consistent with the bytes; several may be. Exits 0 when something matches entirely and at least one
named arithmetic does not, so that d tells them apart; else 1.

With --codes: every block shape, scale rule and rounding in use, counted against codes and scales
(f32, bf16, f16, E8M0, E4M3, or i32 of four E8M0 codes); the rules of other libraries are among
them. Integers and tables (int8, int4, nf4, bnb_fp4) in the spellings of libraries: one or two to a
byte, eight to an i32, with --zero-point where they have them. Where the codes are not those of this
build's quantizers, what went wrong: scales in another order, padded, rounded, reciprocal or another
tensor's; codes transposed, swapped or of another format; elements scaled or rounded in another way.
For NVFP4 also 4over6 (each error under each largest block scale) and, of a bf16 source, codes of
the Hadamard-transformed tensor, whose --amax is that after the transform. Stochastic rounding is
offered where no other rule gives every code and the codes are spread as its chances say. Exits 0
when a rule is established: it gives everything,
and enough distinct amaxes, values between two codes and, for an unusual rule, ties stand behind it
(docs/quantizers.md section 1.6); else 1.)";

struct ExplainOptions {
  GemmOptions gemm;
  std::string d, source, codes, scale_inv, scale_layout, amax, zero_point;
};

using Json = nlohmann::ordered_json;
using Response = v1::ExplainResponse;

bool IsEntire(const Response::GemmCandidate& candidate) {
  return candidate.match_count() == candidate.output_count();
}
template <typename Candidate>
std::string FirstDifferenceText(const Candidate& candidate) {
  if (!candidate.has_first_difference()) return "";
  const Response::Difference& at = candidate.first_difference();
  return absl::StrFormat("(%d, %d): 0x%x, not 0x%x", at.row(), at.column(), at.given(),
                         at.expected());
}

std::string CountText(int64_t matches, int64_t count) {
  return absl::StrCat(matches, " of ", count);
}

int CountEntire(const Response& response) {
  int entire = 0;
  for (const auto& candidate : response.gemm()) entire += IsEntire(candidate) ? 1 : 0;
  return entire;
}

std::string GemmConclusion(int entire, bool is_established) {
  if (entire == 0) return "nothing tried gives all of what was compared";
  if (!is_established) {
    return "no rule is established: every named arithmetic gives all of what was compared, so that "
           "this data tells none from another";
  }
  if (entire == 1) return "one candidate gives all of what was compared";
  return absl::StrCat(entire,
                      " candidates give all of what was compared; this data does not tell "
                      "them apart");
}

/// Whether two rules without a name agree with d in as many outputs and leave it in the same place.
bool IsEqual(const Response::GemmCandidate& one, const Response::GemmCandidate& other) {
  return one.arithmetic().empty() && other.arithmetic().empty() &&
         one.match_count() == other.match_count() && one.output_count() == other.output_count() &&
         FirstDifferenceText(one) == FirstDifferenceText(other);
}

/// Equal candidates are one row. 100 columns: 16 of matches, 22 of names, 33 of the rule, and a
/// difference of at most 29.
void PrintGemm(Invocation& invocation, const Response& response) {
  if (response.has_diagnosis()) {
    invocation.out() << response.diagnosis().sentence() << "\n\n";
  }
  TextTable table({"matches", "<arithmetic", "<rule", "<first difference"});
  for (int i = 0; i < response.gemm_size(); ++i) {
    const Response::GemmCandidate& candidate = response.gemm(i);
    int equal = 0;
    while (i + 1 < response.gemm_size() && IsEqual(candidate, response.gemm(i + 1))) {
      ++equal;
      ++i;
    }
    const std::string more = equal == 0 ? "" : absl::StrCat(", and ", equal, " equal");
    table.AddRow({CountText(candidate.match_count(), candidate.output_count()),
                  candidate.arithmetic().empty() ? "-" : Cut(candidate.arithmetic(), 22),
                  absl::StrCat(Cut(candidate.rule(), 33 - more.size()), more),
                  FirstDifferenceText(candidate)});
    if (IsEntire(candidate) && response.is_established()) table.SetTone(0, Tone::kGood);
  }
  table.Print(invocation.out(), invocation.uses_colour());
  invocation.out() << response.tried() << " rules on a sample of " << response.sample_count()
                   << " outputs; the best named ones on all.\n"
                   << GemmConclusion(CountEntire(response), response.is_established()) << "\n";
}

/// Words on lines of at most kTableColumns, the second and later ones behind `indent` spaces.
void PrintWords(std::ostream& out, const std::string& text, size_t indent) {
  std::string line;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    if (!line.empty() && line.size() + 1 + word.size() > kTableColumns) {
      out << line << "\n";
      line = std::string(indent, ' ') + std::string(word);
    } else {
      absl::StrAppend(&line, line.empty() ? "" : " ", word);
    }
  }
  out << line << "\n";
}

/// The table, and below it what is too long for it, row by row.
void PrintCodes(Invocation& invocation, const Response& response) {
  std::ostream& out = invocation.out();
  TextTable table({"row", "codes", "scales", "ties", "<element", "<block", "<library"});
  int shown = 0;
  for (const Response::CodesCandidate& candidate : response.codes()) {
    table.AddRow({absl::StrCat(++shown),
                  CountText(candidate.code_match_count(), candidate.code_count()),
                  CountText(candidate.scale_match_count(), candidate.scale_count()),
                  absl::StrCat(candidate.tie_count()), Cut(candidate.element(), 10),
                  Cut(candidate.block(), 14), Cut(candidate.scale_origin(), 17)});
    if (candidate.is_established()) table.SetTone(1, Tone::kGood);
  }
  if (response.codes_size() > 0) table.Print(out, invocation.uses_colour());
  int row = 0;
  for (const Response::CodesCandidate& candidate : response.codes()) {
    std::vector<std::string> parts = {candidate.block(), candidate.scale_rule(),
                                      candidate.element_rule()};
    if (!candidate.scale_origin().empty()) parts.push_back(candidate.scale_origin());
    const std::string difference = FirstDifferenceText(candidate);
    if (!difference.empty()) parts.push_back(absl::StrCat("first difference ", difference));
    PrintWords(out, absl::StrCat("  ", ++row, ": ", absl::StrJoin(parts, " | ")), 5);
  }
  out << response.tried() << " candidates tried.\n";
  for (const std::string& line : response.conclusion()) PrintWords(out, line, 2);
}

void PrintExplanation(Invocation& invocation, const Response& response) {
  if (invocation.is_table()) {
    return response.gemm_size() > 0 ? PrintGemm(invocation, response)
                                    : PrintCodes(invocation, response);
  }
  invocation.PrintJson("explain", JsonOf(response));
}

/// Adds layout and zero points as told, or else as the file of the scales has them: zero points
/// under the name of the scales with zero_point for scale_inv.
absl::Status AddWhatScalesHave(const ExplainOptions& options, TensorSources& sources,
                               v1::ExplainRequest::Codes& codes) {
  codes.set_scale_layout(options.scale_layout);
  std::string zero_point = options.zero_point;
  QG_ASSIGN_OR_RETURN(const TensorName name, ParseTensorName("--scale-inv", options.scale_inv));
  if (name.kind == TensorName::Kind::kSafetensors) {
    QG_ASSIGN_OR_RETURN(const TensorFile file, ReadKnownTensors("--scale-inv", name.path));
    if (options.scale_layout.empty()) {
      QG_ASSIGN_OR_RETURN(const v1::QuantizedDescription description, DescriptionOf(file.metadata));
      codes.set_scale_layout(description.scale_layout());
    }
    if (zero_point.empty()) zero_point = ZeroPointBeside(name, file);
  }
  if (zero_point.empty()) return absl::OkStatus();
  QG_ASSIGN_OR_RETURN(*codes.mutable_zero_point(), sources.Resolve("--zero-point", zero_point));
  return absl::OkStatus();
}

absl::StatusOr<v1::ExplainRequest> MakeRequest(const ExplainOptions& options,
                                               TensorSources& sources) {
  v1::ExplainRequest request;
  if (!options.d.empty()) {
    v1::ExplainRequest::Gemm& gemm = *request.mutable_gemm();
    QG_ASSIGN_OR_RETURN(*gemm.mutable_gemm(), MakeGemmRequest(options.gemm, sources));
    QG_ASSIGN_OR_RETURN(*gemm.mutable_d(), sources.Resolve("--d", options.d));
    return request;
  }
  v1::ExplainRequest::Codes& codes = *request.mutable_codes();
  QG_ASSIGN_OR_RETURN(*codes.mutable_source(), sources.Resolve("--source", options.source));
  QG_ASSIGN_OR_RETURN(*codes.mutable_codes(), sources.Resolve("--codes", options.codes));
  QG_ASSIGN_OR_RETURN(*codes.mutable_scale_inv(),
                      sources.Resolve("--scale-inv", options.scale_inv));
  if (!options.amax.empty()) {
    QG_ASSIGN_OR_RETURN(*codes.mutable_amax(), sources.Resolve("--amax", options.amax));
  }
  QG_RETURN_IF_ERROR(AddWhatScalesHave(options, sources, codes));
  return request;
}

absl::Status CheckOptions(const ExplainOptions& options) {
  const bool is_gemm = !options.d.empty(), is_codes = !options.codes.empty();
  if (is_gemm == is_codes) {
    return absl::InvalidArgumentError(
        "give --d with --a and --b to explain a GEMM, or --codes with --source and --scale-inv to "
        "explain a quantization");
  }
  const bool has_operands = !options.gemm.a.tensor.empty() || !options.gemm.b.tensor.empty();
  if (is_codes && has_operands) {
    return absl::InvalidArgumentError("--a and --b: given with --codes; they belong to --d");
  }
  if (is_gemm && !(options.source.empty() && options.scale_inv.empty() && options.amax.empty() &&
                   options.scale_layout.empty() && options.zero_point.empty())) {
    return absl::InvalidArgumentError(
        "--source, --scale-inv, --scale-layout, --zero-point and --amax: given with --d; they "
        "belong to --codes");
  }
  if (is_gemm && (options.gemm.a.tensor.empty() || options.gemm.b.tensor.empty())) {
    return absl::InvalidArgumentError("--d needs the operands: --a and --b");
  }
  if (is_codes && (options.source.empty() || options.scale_inv.empty())) {
    return absl::InvalidArgumentError("--codes needs --source and --scale-inv");
  }
  return absl::OkStatus();
}

absl::StatusOr<int> Explain(Invocation& invocation, const ExplainOptions& options) {
  QG_RETURN_IF_ERROR(CheckOptions(options));
  QG_ASSIGN_OR_RETURN(Connection * connection, invocation.Connect());
  TensorSources sources(*connection, Placement::kInlineWhenSmall, UploadProgressOf(invocation));
  QG_ASSIGN_OR_RETURN(const v1::ExplainRequest request, MakeRequest(options, sources));
  QG_ASSIGN_OR_RETURN(const Response response, connection->Explain(request));
  PrintExplanation(invocation, response);
  return response.is_established() ? kExitOk : kExitCriterionFailed;
}

}  // namespace

void AddExplainCommand(CLI::App& app, Command& chosen) {
  const auto [command, options] =
      AddSubcommand(app, chosen, "explain", "Which arithmetic or quantizer produced these bytes",
                    kExplainExamples, Explain);
  AddGemmOptions(*command, options->gemm, /*are_operands_required=*/false);
  command->add_option("--d", options->d, "[M][N]: the result to explain")->type_name("TENSOR");
  command->add_option("--source", options->source, "What was quantized")->type_name("TENSOR");
  command->add_option("--codes", options->codes, "Codes to explain")->type_name("TENSOR");
  command->add_option("--scale-inv", options->scale_inv, "Their scales")->type_name("TENSOR");
  command
      ->add_option("--scale-layout", options->scale_layout,
                   "Of the scales, as of quantize; default: what their file says, else logical")
      ->check(CLI::IsMember(LayoutNames()))
      ->type_name("LAYOUT");
  command
      ->add_option("--zero-point", options->zero_point,
                   "Zero points of integers; default: those beside the scales in their file")
      ->type_name("TENSOR");
  command
      ->add_option("--amax", options->amax,
                   "Amax of the whole tensor; default: of the source, transformed where the "
                   "codes are")
      ->type_name("TENSOR");
}

}  // namespace quantgate
