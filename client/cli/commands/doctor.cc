// quantgate doctor: whether this machine and this server can be trusted with bits, and what is
// missing.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/subcommand.h"
#include "client/cli/exit.h"
#include "client/in_process.h"
#include "client/status.h"
#include "kernels/base/status_macros.h"
#include "kernels/engine/cuda_module.h"
#include "kernels/engine/engine.h"
#include "server/report/device_text.h"
#include "server/report/number_text.h"
#include "server/report/text_table.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quantgate {
namespace {

constexpr char kDoctorExamples[] = R"(Examples:
  quantgate doctor
  quantgate doctor --server gpu-host:7470 --format json
  quantgate doctor --gpu                       cuBLASLt against its models, a few seconds
  quantgate doctor --gpu --full --server gpu-host:7470

Exits 0 when all is well, 1 when a bit is wrong, 4 when the server, its store or a GPU that was
asked for cannot be used.)";

enum class Health { kGood, kNote, kBad };

struct Finding {
  std::string check;
  Health health = Health::kGood;
  std::string text;
};

const char* HealthText(Health health) {
  return health == Health::kGood ? "ok" : health == Health::kNote ? "note" : "FAILED";
}

/// MXCSR of the calling thread: flush-to-zero, denormals-are-zero, rounding.
std::string FloatEnvironmentFault() {
#if defined(__x86_64__)
  const unsigned control = _mm_getcsr();
  if (control & 0x8000) return "flush-to-zero is on";
  if (control & 0x0040) return "denormals-are-zero is on";
  if (control & 0x6000) return "rounding is not to nearest even";
#endif
  // Volatile: the compiler must not do the sum itself.
  volatile float smallest = 1.17549435e-38f;
  if (smallest / 2 == 0) return "subnormals are flushed to zero";
  return "";
}

Finding CheckFloatEnvironment() {
  std::string fault = FloatEnvironmentFault();
  std::string worker_fault;
  std::thread([&] { worker_fault = FloatEnvironmentFault(); }).join();
  if (!fault.empty() || !worker_fault.empty()) {
    return {"floating point", Health::kBad, fault.empty() ? worker_fault : fault};
  }
  return {"floating point", Health::kGood, "IEEE subnormals, round to nearest even"};
}

/// A quantization and an FP8 and a bf16 GEMM on one code path: their outputs.
absl::StatusOr<std::vector<Tensor>> SampleBits(Isa isa, int threads) {
  const std::unique_ptr<Engine> engine = MakeCpuEngine({.isa = isa, .threads = threads});
  GeneratorSpec x{Distribution::kLogNormalOutliers, 1, DType::kBF16, {80, 208}, 1.0f};
  GeneratorSpec w{Distribution::kNormal, 2, DType::kBF16, {72, 208}, 1.0f};
  QG_ASSIGN_OR_RETURN(const Tensor a, engine->Generate(x, nullptr));
  QG_ASSIGN_OR_RETURN(const Tensor b, engine->Generate(w, nullptr));
  QuantizerSpec fp8;
  fp8.format = QuantizerFormat::kFp8Tensor;
  QG_ASSIGN_OR_RETURN(const QuantizedTensor qa,
                      engine->Quantize(a, fp8, {true, false}, {}, nullptr));
  QG_ASSIGN_OR_RETURN(const QuantizedTensor qb,
                      engine->Quantize(b, fp8, {true, false}, {}, nullptr));
  std::vector<Tensor> bits = {qa.rowwise->data, qa.rowwise->scale, qb.rowwise->data};
  for (const char* arithmetic : {"sm90:fast", "sm90:split", "exact"}) {
    GemmDesc desc;
    desc.a = OperandOf(*qa.rowwise);
    desc.b = OperandOf(*qb.rowwise);
    QG_ASSIGN_OR_RETURN(desc.arithmetic, Arithmetic::Parse(arithmetic));
    QG_ASSIGN_OR_RETURN(const GemmResult result, engine->Gemm(desc, nullptr));
    bits.push_back(result.d);
  }
  GemmDesc desc;
  desc.a.data = a;
  desc.b.data = b;
  QG_ASSIGN_OR_RETURN(desc.arithmetic, Arithmetic::Parse("sm90"));
  QG_ASSIGN_OR_RETURN(const GemmResult result, engine->Gemm(desc, nullptr));
  bits.push_back(result.d);
  return bits;
}

bool AreEqual(const std::vector<Tensor>& left, const std::vector<Tensor>& right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(), HaveSameBytes);
}

Finding CheckBits() {
  const absl::StatusOr<std::vector<Tensor>> expected = SampleBits(Isa::kScalar, 1);
  if (!expected.ok()) return {"bits", Health::kBad, ErrorText(expected.status())};
  std::string paths;
  for (const Isa isa : RunnableIsas()) {
    for (const int threads : {1, AvailableCpus()}) {
      const absl::StatusOr<std::vector<Tensor>> bits = SampleBits(isa, threads);
      const std::string path = absl::StrCat(std::string(IsaName(isa)), " on ", threads, " threads");
      if (!bits.ok()) return {"bits", Health::kBad, ErrorText(bits.status())};
      if (!AreEqual(*expected, *bits)) {
        return {"bits", Health::kBad, absl::StrCat(path, " differs from scalar code")};
      }
    }
    absl::StrAppend(&paths, paths.empty() ? "" : " = ", std::string(IsaName(isa)));
  }
  return {"bits", Health::kGood,
          absl::StrCat(paths, ", 1 = ", AvailableCpus(), " threads: quantize, FP8 and bf16 GEMMs")};
}

Finding CheckIsa() {
  const std::string best(IsaName(BestIsa()));
  if (BestIsa() == Isa::kScalar) {
    return {"processor", Health::kNote, "neither AVX2 nor AVX-512: same bits, but slow"};
  }
  return {"processor", Health::kGood,
          absl::StrCat(best, ", ", AvailableCpus(), AvailableCpus() == 1 ? " CPU" : " CPUs")};
}

/// What the machine itself says of NVIDIA devices, whatever this build can do with them.
Finding CheckGpu(const v1::Environment* environment) {
  namespace fs = std::filesystem;
  std::error_code error;
  const bool has_driver = fs::exists("/proc/driver/nvidia/version", error);
  const bool has_device = fs::exists("/dev/nvidiactl", error);
  std::string text;
  if (environment != nullptr) {
    for (const v1::DeviceDescription& device : environment->devices()) {
      if (device.id().rfind("cuda", 0) != 0) continue;
      absl::StrAppend(&text, text.empty() ? "" : "; ", DeviceText(device, *environment));
    }
  }
  if (!text.empty()) return {"GPU", Health::kGood, text};
  if (!has_driver) {
    text = "none: no NVIDIA driver is loaded here (/proc/driver/nvidia/version does not exist)";
  } else if (!has_device) {
    text = "none: the driver is loaded, but no device is visible (/dev/nvidiactl does not exist)";
  } else {
    text = "a device is visible here";
  }
  if (environment != nullptr && environment->cuda().empty()) {
    absl::StrAppend(&text, "; the engine is built without CUDA");
  }
  return {"GPU", Health::kNote, absl::StrCat(text, "; the CPU engine gives the bits of an H200")};
}

/// Whether this process has the device.
absl::Status FindGpu(const std::string& device) {
  int ordinal = 0;
  const bool is_one = absl::SimpleAtoi(absl::StripPrefix(device, "cuda:"), &ordinal);
  return is_one ? MakeCudaEngine(ordinal).status() : CountCudaDevices().status();
}

/// Why there is no such device, and what to do.
std::string NoGpuText(const absl::Status& status) {
  return absl::StrCat(ErrorText(status),
                      absl::IsUnimplemented(status)
                          ? "; build it where the CUDA Toolkit 13 is (cmake --preset cuda)"
                          : "; run it where nvidia-smi lists a device",
                      ", or ask a server that has a GPU (--server HOST:PORT)");
}

/// The local store, without its lock and without making it.
Finding CheckStore(absl::Status& failure) {
  const absl::StatusOr<std::string> directory = DefaultStoreDirectory();
  if (!directory.ok()) return {"store", Health::kNote, ErrorText(directory.status())};
  // Where nothing was kept yet, what it would be made in.
  std::error_code error;
  std::filesystem::path there = *directory;
  while (!std::filesystem::exists(there, error) && there.has_relative_path()) {
    there = there.parent_path();
  }
  const bool is_directory = std::filesystem::is_directory(there, error);
  if (is_directory && ::access(there.c_str(), R_OK | W_OK | X_OK) == 0) {
    return {"store", Health::kGood, absl::StrCat(*directory, " can be written")};
  }
  failure = absl::FailedPreconditionError(absl::StrCat(
      "store: cannot write ", *directory, ": ", std::strerror(is_directory ? errno : ENOTDIR)));
  return {"store", Health::kBad, ErrorText(failure)};
}

/// `keeps`: what the server finds out is to be remembered.
void CheckServer(Invocation& invocation, bool keeps, std::vector<Finding>& findings,
                 absl::Status& failure) {
  const std::string check = invocation.options().server.empty() ? "store" : "server";
  const absl::StatusOr<Connection*> connection =
      keeps ? invocation.ConnectToKeep() : invocation.Connect();
  if (!connection.ok()) {
    failure = connection.status();
    findings.push_back({check, Health::kBad, ErrorText(failure)});
    return;
  }
  const absl::Time start = absl::Now();
  const absl::StatusOr<v1::Capabilities> capabilities = (*connection)->GetCapabilities();
  if (!capabilities.ok()) {
    failure = capabilities.status();
    findings.push_back({check, Health::kBad, ErrorText(failure)});
    findings.push_back(CheckGpu(nullptr));
    return;
  }
  if (invocation.options().server.empty()) findings.push_back(CheckStore(failure));
  const v1::Environment& environment = capabilities->environment();
  findings.push_back(
      {"server", Health::kGood,
       absl::StrCat((*connection)->address(), ", answered in ",
                    Seconds(absl::ToDoubleSeconds(absl::Now() - start)), ", version ",
                    environment.version(), " (", environment.build(), ")")});
  if (environment.version() != QUANTGATE_VERSION) {
    findings.push_back({"versions", Health::kNote,
                        absl::StrCat("this command is ", QUANTGATE_VERSION, ", the server ",
                                     environment.version())});
  } else {
    findings.push_back({"versions", Health::kGood,
                        absl::StrCat("command and server are both ", QUANTGATE_VERSION)});
  }
  findings.push_back(CheckGpu(&environment));
}

void PrintFindings(Invocation& invocation, const std::vector<Finding>& findings, bool is_healthy) {
  if (!invocation.is_table()) {
    nlohmann::ordered_json json;
    json["healthy"] = is_healthy;
    json["checks"] = nlohmann::ordered_json::array();
    for (const Finding& finding : findings) {
      json["checks"].push_back({{"check", finding.check},
                                {"result", HealthText(finding.health)},
                                {"text", finding.text}});
    }
    invocation.PrintJson("doctor", json);
    return;
  }
  TextTable table({"", "<", "<"});
  for (const Finding& finding : findings) {
    table.AddRow({finding.check, HealthText(finding.health), finding.text});
    table.SetTone(1, finding.health == Health::kGood  ? Tone::kGood
                     : finding.health == Health::kBad ? Tone::kBad
                                                      : Tone::kDim);
  }
  table.Print(invocation.out(), invocation.uses_colour());
}

struct DoctorOptions {
  bool gpu = false;
  bool full = false;
  bool again = false;
};

/// cuBLASLt of every CUDA device against its models; the lines of each go to `lines`.
void CheckHardware(Invocation& invocation, const DoctorOptions& options,
                   std::vector<Finding>& findings, std::vector<std::string>& lines,
                   absl::Status& failure) {
  const auto fail = [&](const absl::Status& status) {
    failure.Update(status);
    findings.push_back({"hardware", Health::kBad, ErrorText(status)});
  };
  const absl::StatusOr<Connection*> connection = invocation.ConnectToKeep();
  if (!connection.ok()) return fail(connection.status());
  const absl::StatusOr<v1::Capabilities> capabilities = (*connection)->GetCapabilities();
  if (!capabilities.ok()) return fail(capabilities.status());
  std::vector<std::string> devices;
  for (const v1::DeviceDescription& device : capabilities->environment().devices()) {
    if (device.id().rfind("cuda", 0) == 0) devices.push_back(device.id());
  }
  if (devices.empty()) devices.push_back("");  // The server says why there is none.
  for (const std::string& device : devices) {
    v1::CheckHardwareRequest request;
    request.set_device(device);
    request.set_full(options.full);
    request.set_again(options.again);
    const absl::StatusOr<v1::CheckHardwareResponse> check = (*connection)->CheckHardware(request);
    if (!check.ok() && device.empty()) {
      failure.Update(check.status());
      findings.push_back({"hardware", Health::kBad, NoGpuText(check.status())});
      return;
    }
    if (!check.ok()) return fail(check.status());
    findings.push_back(
        {"hardware", check->drifted() ? Health::kBad : Health::kGood,
         absl::StrCat(check->key(), ": ", check->runs(), " GEMMs, ", check->outputs(),
                      " outputs compared with their models, ", check->drifted_runs(),
                      " GEMMs differ (", Seconds(check->seconds()),
                      check->remembered() ? ", remembered; --again checks now)" : ")")});
    lines.insert(lines.end(), check->lines().begin(), check->lines().end());
  }
}

absl::StatusOr<int> Doctor(Invocation& invocation, const DoctorOptions& options) {
  const bool is_local = invocation.options().server.empty();
  // A server is asked for what it has.
  if (options.gpu && is_local) invocation.PreferDevice("cuda");
  const bool wants_gpu = invocation.options().device != "cpu";
  std::vector<Finding> findings = {CheckFloatEnvironment(), CheckIsa(), CheckBits()};
  bool bits_are_right = true;
  for (const Finding& finding : findings) bits_are_right &= finding.health != Health::kBad;
  absl::Status failure;
  const absl::Status gpu =
      wants_gpu && is_local ? FindGpu(invocation.options().device) : absl::OkStatus();
  if (gpu.ok()) {
    CheckServer(invocation, options.gpu, findings, failure);
  } else {
    findings.push_back(CheckStore(failure));
    findings.push_back({"GPU", Health::kBad, NoGpuText(gpu)});
    failure.Update(gpu);
  }
  std::vector<std::string> lines;
  if (options.gpu && failure.ok()) CheckHardware(invocation, options, findings, lines, failure);
  for (const Finding& finding : findings) {
    const bool is_drift = finding.check == "hardware" && finding.health == Health::kBad;
    bits_are_right &= !is_drift || !failure.ok();
  }
  PrintFindings(invocation, findings, bits_are_right && failure.ok());
  if (invocation.is_table()) {
    for (const std::string& line : lines) invocation.out() << line << "\n";
  }
  if (!bits_are_right) return kExitCriterionFailed;
  return failure.ok() ? kExitOk : kExitService;
}

}  // namespace

void AddDoctorCommand(CLI::App& app, Command& chosen) {
  const auto [command, options] =
      AddSubcommand(app, chosen, "doctor",
                    "Check floating point, code paths, store, server and GPU of this machine",
                    kDoctorExamples, Doctor);
  CLI::Option* gpu = command->add_flag("--gpu", options->gpu,
                                       "Check cuBLASLt of every GPU against its models too");
  command->add_flag("--full", options->full, "Every layout, output and epilogue, with --gpu")
      ->needs(gpu);
  command->add_flag("--again", options->again, "Check even what is remembered, with --gpu")
      ->needs(gpu);
}

}  // namespace quantgate
