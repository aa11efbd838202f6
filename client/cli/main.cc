// quantgate: the command line.
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "client/cli/commands/commands.h"
#include "client/cli/exit.h"
#include "client/cli/options/option_names.h"
#include "client/cli/options/suggestion.h"
#include "client/status.h"
#include "kernels/base/standard_descriptors.h"

namespace quantgate {
namespace {

constexpr char kFooter[] = R"(Tensors:
  FILE.safetensors:NAME   FILE.npy   gen:normal,seed=1,shape=256x512,dtype=bf16   digest:SHA256/SIZE
  A trailing @DTYPE reinterprets stored bytes: f.safetensors:codes@f8_e4m3
Recipes:
  fp8_current   fp8_current:power_2_scales=true,fp8_format=e4m3   @recipe.json

Exit codes:
  0 done   1 a stated criterion failed   2 the request is wrong   4 the service is away or failed
  6 not permitted   7 a limit is exhausted   124 --timeout passed   130 interrupted

Examples:
  quantgate compare --input m.safetensors:x --weight m.safetensors:w --recipe bf16,fp8_current
  quantgate COMMAND --help)";

void AddGlobalOptions(CLI::App& app, GlobalOptions& options) {
  app.add_option("-s,--server", options.server,
                 "host:port or unix:/path of quantgated; default: compute in this process")
      ->envname("QUANTGATE_SERVER")
      ->type_name("ADDRESS");
  app.add_option("--device", options.device, "Engine to ask for: cpu, cuda (every GPU) or cuda:N")
      ->type_name("DEVICE")
      ->capture_default_str();
  app.add_option("--format", options.format, "What stdout gets")
      ->check(CLI::IsMember({"table", "json", "jsonl"}))
      ->capture_default_str();
  app.add_option("--timeout", options.timeout, "Give up (exit 124) after this long: 30s, 5m")
      ->type_name("DURATION");
  app.add_option("--threads", options.threads, "Threads of the in-process engine; 0: one per CPU")
      ->check(CLI::Range(0, 1024))
      ->type_name("N");
  app.add_flag("-q,--quiet", options.quiet, "No talk and no progress on stderr");
}

/// Says what is wrong with the command line, and what it may have meant.
int Refuse(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) {  // Help.
    app.exit(error);
    return kExitOk;
  }
  // What is misspelt says more than what is then missing.
  const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
  const bool has_unknown = !unknown.empty() && error.get_name() == "RequiredError";
  constexpr std::string_view kTooOften = ": At Most 1 required but received ";
  const std::string what = error.what();
  if (const size_t at = what.find(kTooOften); at != std::string::npos) {
    std::cerr << what.substr(0, at) << ": given " << what.substr(at + kTooOften.size())
              << " times; it takes one value\n";
    return kExitUsage;
  }
  app.exit(has_unknown ? CLI::ExtrasError("quantgate", unknown) : error);
  std::string suggestion = SuggestWords(app, unknown);
  if (suggestion.empty()) suggestion = SuggestValue(error.what());
  if (!suggestion.empty()) std::cerr << suggestion << (suggestion.back() == '\n' ? "" : "\n");
  return kExitUsage;
}

int Main(int argc, char** argv) {
  OpenStandardDescriptors();
  IgnoreFileSizeSignal();
  StartInterruptThread();
  ExitWhenMappedFilesShrink();
  CLI::App app(
      "Are these numbers the numbers they should be? Low-precision training arithmetic, "
      "checked to the bit.",
      "quantgate");
  app.set_version_flag("--version", std::string("quantgate ") + QUANTGATE_VERSION);
  app.require_subcommand(1);
  app.fallthrough();
  app.footer(kFooter);
  GlobalOptions options;
  AddGlobalOptions(app, options);
  Command chosen;
#define QG_ADD_COMMAND(Name) Add##Name##Command(app, chosen);
  QG_COMMANDS(QG_ADD_COMMAND)
#undef QG_ADD_COMMAND
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return Refuse(app, error);
  }

  Invocation invocation(options, std::vector<std::string>(argv + 1, argv + argc), std::cout,
                        std::cerr);
  const absl::StatusOr<int> result = chosen(invocation);
  invocation.progress().Clear();
  std::cout.flush();
  if (WasInterrupted()) {
    std::cerr << "quantgate: interrupted\n";
    return kExitCancelled;
  }
  if (!result.ok()) {
    const absl::Status named = NameOptions(result.status(), ChosenCommand(app));
    std::cerr << "quantgate: " << ErrorText(named) << "\n";
    const bool may_be_misspelt = absl::IsInvalidArgument(named) || absl::IsNotFound(named);
    const std::string suggestion =
        may_be_misspelt ? SuggestValue(std::string(named.message())) : "";
    if (!suggestion.empty()) std::cerr << "  " << suggestion << "\n";
    return ExitCodeOf(result.status());
  }
  if (!std::cout) {
    std::cerr << "quantgate: stdout: cannot be written\n";
    return kExitService;
  }
  return *result;
}

}  // namespace
}  // namespace quantgate

int main(int argc, char** argv) { return quantgate::Main(argc, argv); }
