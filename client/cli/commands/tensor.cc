// quantgate tensor: put, get, ls, stat, gen, rm, gc.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/blob_transfer.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/subcommand.h"
#include "client/cli/layer_command.h"
#include "client/cli/output.h"
#include "client/in_process.h"
#include "client/tensor_name.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/files/tensor_file.h"
#include "server/report/number_text.h"
#include "server/report/report_json.h"
#include "server/report/text_table.h"

namespace quantgate {
namespace {

constexpr char kTensorExamples[] = R"(Examples:
  quantgate tensor put m.safetensors:fc1.x m.safetensors:fc1.weight
  quantgate tensor put m.safetensors                  # every tensor of the file
  quantgate tensor ls
  quantgate tensor stat digest:SHA256/SIZE
  quantgate tensor get digest:SHA256/SIZE -o x.safetensors
  quantgate tensor gen gen:one_huge,seed=7,shape=256x512,dtype=bf16 -o x.safetensors
  quantgate tensor rm digest:SHA256/SIZE
  quantgate tensor gc

Without --server the store is the directory $XDG_DATA_HOME/quantgate (~/.local/share/quantgate); put
and gen keep tensors there, and other commands take them from there by their digests. rm removes
tensors from it, gc what no tensor of `tensor ls` refers to: partial uploads, results and runs of
earlier versions. Both are of the local store alone.)";

struct TensorOptions {
  std::vector<std::string> tensors;
  std::string tensor, name, output;
  bool all = false;
};

void PrintRecords(Invocation& invocation, const std::vector<v1::TensorRecord>& records) {
  if (invocation.is_jsonl()) {
    for (const v1::TensorRecord& record : records) {
      invocation.out() << JsonLine("tensor", JsonOf(record));
    }
    return;
  }
  if (invocation.is_json()) {
    nlohmann::ordered_json json;
    json["tensors"] = nlohmann::ordered_json::array();
    for (const v1::TensorRecord& record : records) json["tensors"].push_back(JsonOf(record));
    invocation.PrintJson("tensors", json);
    return;
  }
  TextTable table({"tensor", "<type", "<name"});
  for (const v1::TensorRecord& record : records) {
    table.AddRow({absl::StrCat("digest:", DigestText(record.digest())), TypeText(record.type()),
                  record.name()});
  }
  table.Print(invocation.out(), invocation.uses_colour());
}

/// "2^-12 #######": how the exponents of the values spread.
void PrintExponents(Invocation& invocation, const v1::TensorStatistics& statistics) {
  const std::map<int32_t, int64_t> histogram(statistics.exponent_histogram().begin(),
                                             statistics.exponent_histogram().end());
  int64_t most = 1;
  for (const auto& [exponent, count] : histogram) most = std::max(most, count);
  TextTable table({"|value| from", "elements", "<"});
  for (const auto& [exponent, count] : histogram) {
    table.AddRow({absl::StrCat("2^", exponent), Count(count),
                  std::string(1 + static_cast<size_t>(count * 50 / most), '#')});
  }
  table.Print(invocation.out(), invocation.uses_colour());
}

absl::StatusOr<int> Put(Invocation& invocation, const TensorOptions& options) {
  const absl::Status several =
      absl::InvalidArgumentError("--name: names one tensor, but several are given");
  if (!options.name.empty() && options.tensors.size() > 1) return several;
  QG_ASSIGN_OR_RETURN(Connection * connection, invocation.ConnectToKeep());
  TensorSources sources(*connection, Placement::kStored, UploadProgressOf(invocation));
  std::vector<v1::TensorRecord> records;
  const auto store = [&](const std::string& name, const Tensor& tensor) -> absl::Status {
    QG_ASSIGN_OR_RETURN(records.emplace_back(),
                        sources.Store(options.name.empty() ? name : options.name, tensor));
    return absl::OkStatus();
  };
  for (const std::string& text : options.tensors) {
    QG_ASSIGN_OR_RETURN(const TensorName name, ParseTensorName("TENSOR", text));
    if (name.kind == TensorName::Kind::kGenerated || name.kind == TensorName::Kind::kDigest) {
      return absl::InvalidArgumentError(
          absl::StrCat("TENSOR: \"", text, "\" lies in no file; use tensor gen or tensor stat"));
    }
    if (name.kind == TensorName::Kind::kSafetensors && name.entry.empty()) {
      QG_ASSIGN_OR_RETURN(const TensorFile file, ReadTensorFile("TENSOR", name.path));
      if (!options.name.empty() && file.tensors.size() > 1) return several;
      for (const NamedTensor& tensor : file.tensors) {
        QG_RETURN_IF_ERROR(store(tensor.name, tensor.tensor));
      }
      continue;
    }
    QG_ASSIGN_OR_RETURN(const Tensor tensor, LoadTensor(name));
    QG_RETURN_IF_ERROR(store(name.entry.empty() ? name.path : name.entry, tensor));
  }
  invocation.progress().Clear();
  invocation.Say(absl::StrCat(records.size(), records.size() == 1 ? " tensor, " : " tensors, ",
                              Bytes(sources.bytes_sent()), " sent"));
  PrintRecords(invocation, records);
  return 0;
}

absl::StatusOr<v1::TensorRecord> DescribeTensor(Connection& connection, TensorSources& sources,
                                                const std::string& text, bool with_statistics) {
  v1::DescribeTensorRequest request;
  QG_ASSIGN_OR_RETURN(*request.mutable_tensor(), sources.Resolve("TENSOR", text));
  request.set_with_statistics(with_statistics);
  return connection.DescribeTensor(request);
}

/// Writes a stored tensor as safetensors or, by its suffix, npy.
absl::Status WriteRecord(Invocation& invocation, Connection& connection,
                         const v1::TensorRecord& record, const TensorOptions& options) {
  v1::NamedTensor named;
  named.set_name(!options.name.empty()   ? options.name
                 : record.name().empty() ? "data"
                                         : record.name());
  *named.mutable_type() = record.type();
  *named.mutable_digest() = record.digest();
  QG_ASSIGN_OR_RETURN(
      const Tensor tensor, FetchTensor(connection, named, [&](int64_t done, int64_t size) {
        invocation.progress().Update(absl::StrCat("downloading ", named.name()), done, size);
      }));
  invocation.progress().Clear();
  if (absl::EndsWith(options.output, ".npy")) {
    QG_RETURN_IF_ERROR(WriteNpy(options.output, tensor));
  } else {
    QG_RETURN_IF_ERROR(WriteSafetensors(options.output, {{named.name(), tensor}}, {}));
  }
  invocation.Say(absl::StrCat("wrote ", options.output));
  return absl::OkStatus();
}

absl::StatusOr<int> GetTensor(Invocation& invocation, const TensorOptions& options) {
  QG_RETURN_IF_ERROR(CheckOutput("-o", options.output, {".safetensors", ".npy"}, {}));
  QG_ASSIGN_OR_RETURN(const TensorName name, ParseTensorName("TENSOR", options.tensor));
  if (name.kind == TensorName::Kind::kGenerated) {
    return absl::InvalidArgumentError(absl::StrCat(
        "TENSOR: \"", options.tensor, "\" is in no store; tensor gen -o makes and writes it"));
  }
  QG_ASSIGN_OR_RETURN(Connection * connection, invocation.Connect());
  TensorSources sources(*connection, Placement::kStored, UploadProgressOf(invocation));
  QG_ASSIGN_OR_RETURN(const v1::TensorRecord record,
                      DescribeTensor(*connection, sources, options.tensor, false));
  QG_RETURN_IF_ERROR(CheckOutput("-o", options.output, {".safetensors", ".npy"}, sources.files()));
  QG_RETURN_IF_ERROR(WriteRecord(invocation, *connection, record, options));
  PrintRecords(invocation, {record});
  return 0;
}

/// Whether there is a local store; says where it would be.
bool HasLocalStore(Invocation& invocation, const std::string& directory) {
  if (HasStore(DataDirOf(directory))) return true;
  invocation.Say(
      absl::StrCat("there is no local store yet; tensor put and tensor gen make it: ", directory));
  return false;
}

absl::StatusOr<int> ListStoredTensors(Invocation& invocation, const TensorOptions&) {
  if (invocation.options().server.empty()) {
    QG_ASSIGN_OR_RETURN(const std::string directory, DefaultStoreDirectory());
    if (!HasLocalStore(invocation, directory)) {
      PrintRecords(invocation, {});
      return 0;
    }
  }
  QG_ASSIGN_OR_RETURN(Connection * connection, invocation.ConnectToKeep());
  std::vector<v1::TensorRecord> records;
  v1::ListTensorsRequest request;
  request.set_page_size(1000);
  do {
    QG_ASSIGN_OR_RETURN(const v1::ListTensorsResponse page, connection->ListTensors(request));
    records.insert(records.end(), page.tensors().begin(), page.tensors().end());
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  PrintRecords(invocation, records);
  return 0;
}

absl::StatusOr<int> Stat(Invocation& invocation, const TensorOptions& options) {
  QG_ASSIGN_OR_RETURN(Connection * connection, invocation.Connect());
  TensorSources sources(*connection, Placement::kStored, UploadProgressOf(invocation));
  QG_ASSIGN_OR_RETURN(const v1::TensorRecord record,
                      DescribeTensor(*connection, sources, options.tensor, true));
  invocation.progress().Clear();
  PrintRecords(invocation, {record});
  if (!invocation.is_table() || !record.has_statistics()) return 0;
  const v1::TensorStatistics& statistics = record.statistics();
  invocation.out() << "\nfingerprint " << FingerprintText(record.fingerprint()) << "\namax "
                   << ExactReal(statistics.amax()) << ", mean " << ShortReal(statistics.mean())
                   << ", rms " << ShortReal(statistics.rms()) << "\n";
  TextTable classes({"elements", "zero", "subnormal", "inf", "nan"});
  classes.AddRow({"", Count(statistics.zero_count()), Count(statistics.subnormal_count()),
                  Count(statistics.infinite_count()), Count(statistics.nan_count())});
  classes.Print(invocation.out(), invocation.uses_colour());
  invocation.out() << "\n";
  PrintExponents(invocation, statistics);
  return 0;
}

absl::StatusOr<int> GenerateTensor(Invocation& invocation, const TensorOptions& options) {
  const std::string text =
      absl::StartsWith(options.tensor, "gen:") ? options.tensor : "gen:" + options.tensor;
  QG_ASSIGN_OR_RETURN(const TensorName name, ParseTensorName("TENSOR", text));
  if (!options.output.empty()) {
    QG_RETURN_IF_ERROR(CheckOutput("-o", options.output, {".safetensors", ".npy"}, {}));
  }
  QG_ASSIGN_OR_RETURN(Connection * connection, invocation.ConnectToKeep());
  v1::GenerateTensorRequest request;
  *request.mutable_spec() = name.generator;
  request.set_name(options.name.empty() ? text : options.name);
  request.set_request_id(NewRequestId());
  invocation.progress().Update(absl::StrCat("making ", text), 0, 0);
  QG_ASSIGN_OR_RETURN(const v1::TensorRecord record, connection->GenerateTensor(request));
  if (!options.output.empty()) {
    TensorOptions named = options;
    if (named.name.empty()) named.name = "data";
    QG_RETURN_IF_ERROR(WriteRecord(invocation, *connection, record, named));
  }
  PrintRecords(invocation, {record});
  return 0;
}

/// The local store, locked for rm and gc. Where nothing was ever kept there is no lock to take.
struct LockedStore {
  std::string directory;
  std::optional<StoreLock> lock;
};

absl::StatusOr<LockedStore> LockLocalStore(Invocation& invocation, const char* command) {
  if (!invocation.options().server.empty()) {
    return absl::UnimplementedError(
        absl::StrCat("tensor ", command, ": --server ", invocation.options().server,
                     ": a server removes nothing yet; without --server (and QUANTGATE_SERVER) this "
                     "is of the local store"));
  }
  LockedStore store;
  QG_ASSIGN_OR_RETURN(store.directory, DefaultStoreDirectory());
  if (!HasLocalStore(invocation, store.directory)) return store;
  QG_ASSIGN_OR_RETURN(StoreLock lock, invocation.LockStore());
  store.lock.emplace(std::move(lock));
  return store;
}

int PrintCleared(Invocation& invocation, const char* kind, const Cleared& cleared,
                 const std::string& directory) {
  if (!invocation.is_table()) {
    nlohmann::ordered_json json;
    json["store"] = directory;
    json["tensors"] = cleared.tensors;
    json["bytes"] = cleared.bytes;
    invocation.PrintJson(kind, json);
    return 0;
  }
  if (cleared.tensors > 0) {
    invocation.out() << cleared.tensors << (cleared.tensors == 1 ? " tensor, " : " tensors, ");
  }
  invocation.out() << Bytes(cleared.bytes) << " freed in " << directory << ", "
                   << Bytes(UsageOf(directory).bytes) << " left\n";
  return 0;
}

absl::StatusOr<int> RemoveStored(Invocation& invocation, const TensorOptions& options) {
  if (options.all != options.tensors.empty()) {
    return absl::InvalidArgumentError("TENSOR: give digests, or --all for every tensor");
  }
  std::vector<Digest> digests;
  for (const std::string& text : options.tensors) {
    QG_ASSIGN_OR_RETURN(const TensorName name, ParseTensorName("TENSOR", text));
    if (name.kind != TensorName::Kind::kDigest) {
      return absl::InvalidArgumentError(absl::StrCat(
          "TENSOR: \"", text, "\": a stored tensor is digest:SHA256/SIZE; tensor ls shows them"));
    }
    if (name.stored.has_type()) {
      return absl::InvalidArgumentError(absl::StrCat("TENSOR: \"", text,
                                                     "\": a digest goes with all its types; give ",
                                                     text.substr(0, text.find(',')), " alone"));
    }
    const v1::Digest& proto = name.stored.digest();
    QG_ASSIGN_OR_RETURN(const Sha256 sha256,
                        Sha256::FromHex(absl::BytesToHexString(proto.sha256())));
    digests.push_back({sha256, proto.size()});
  }
  QG_ASSIGN_OR_RETURN(const LockedStore store, LockLocalStore(invocation, "rm"));
  const std::string data_dir = DataDirOf(store.directory);
  QG_ASSIGN_OR_RETURN(const Cleared cleared,
                      options.all ? RemoveAllTensors(data_dir) : RemoveTensors(data_dir, digests));
  return PrintCleared(invocation, "tensor_rm", cleared, store.directory);
}

absl::StatusOr<int> CollectStored(Invocation& invocation, const TensorOptions&) {
  QG_ASSIGN_OR_RETURN(const LockedStore store, LockLocalStore(invocation, "gc"));
  QG_ASSIGN_OR_RETURN(const Cleared cleared, CollectGarbage(DataDirOf(store.directory)));
  return PrintCleared(invocation, "tensor_gc", cleared, store.directory);
}

}  // namespace

void AddTensorCommand(CLI::App& app, Command& chosen) {
  CLI::App* group =
      app.add_subcommand("tensor", "Tensors in the store: put, get, ls, stat, gen, rm, gc");
  group->require_subcommand(1);
  group->footer(kTensorExamples);
  const auto add = [&](const char* name, const char* summary, auto function) {
    return AddSubcommand(*group, chosen, name, summary, kTensorExamples, function);
  };
  auto [put, put_options] = add("put", "Upload tensors of files", Put);
  put->add_option("TENSOR", put_options->tensors, "FILE.safetensors[:NAME] or FILE.npy")
      ->required();
  put->add_option("--name", put_options->name, "What to call it; default: its name in the file");
  auto [get, get_options] = add("get", "Download a tensor", GetTensor);
  get->add_option("TENSOR", get_options->tensor, "digest:SHA256/SIZE")->required();
  get->add_option("-o,--output", get_options->output, "FILE.safetensors or FILE.npy")
      ->required()
      ->type_name("FILE");
  get->add_option("--name", get_options->name, "Its name in the safetensors file");
  add("ls", "List stored tensors, newest first", ListStoredTensors);
  auto [stat, stat_options] = add("stat", "Statistics of one tensor", Stat);
  stat->add_option("TENSOR", stat_options->tensor, "Any tensor")->required();
  auto [gen, gen_options] = add("gen", "Make a seeded tensor in the store", GenerateTensor);
  gen->add_option("TENSOR", gen_options->tensor,
                  "DISTRIBUTION,shape=RxC[,seed=N][,dtype=T][,scale=F]; distributions: quantgate "
                  "info")
      ->required();
  gen->add_option("-o,--output", gen_options->output, "Also write it: FILE.safetensors or FILE.npy")
      ->type_name("FILE");
  gen->add_option("--name", gen_options->name, "What to call it");
  auto [rm, rm_options] = add("rm", "Remove tensors from the local store", RemoveStored);
  rm->add_option("TENSOR", rm_options->tensors, "digest:SHA256/SIZE");
  rm->add_flag("--all", rm_options->all, "Every tensor");
  add("gc", "Remove from the local store what no tensor refers to", CollectStored);
}

}  // namespace quantgate
