// quantgate explain: which arithmetic, or which scale and rounding rule, produced these bytes.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "client/cli/commands/commands.h"
#include "client/cli/commands/subcommand.h"
#include "client/cli/exit.h"
#include "client/cli/layer_command.h"
#include "client/cli/options/gemm_options.h"
#include "client/cli/options/quantized_metadata.h"
#include "client/tensor_name.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/files/tensor_file.h"
#include "server/report/answers/render_explanation.h"
#include "server/report/report_json.h"

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
  QG_ASSIGN_OR_RETURN(const v1::ExplainResponse response, connection->Explain(request));
  if (invocation.is_table()) {
    PrintExplanation(response, invocation.uses_colour(), invocation.out());
  } else {
    invocation.PrintJson("explain", JsonOf(response));
  }
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
