#include "client/python/client.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "client/blob_transfer.h"
#include "client/execute.h"
#include "client/layer_report.h"
#include "client/memory_connection.h"
#include "client/python/document.h"
#include "client/python/host_tensor.h"
#include "client/python/messages.h"
#include "client/python/python_connection.h"
#include "client/python/status.h"
#include "client/tensor_comparison.h"
#include "client/tensor_source.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/steady_time.h"
#include "server/report/comparison_verdict.h"

namespace nb = nanobind;

namespace quantgate::python {
namespace {

using NamedTensors = std::vector<std::pair<std::string, HostTensor>>;

/// Tensors of Python as those of a file that was read.
TensorFile FileOf(const NamedTensors& tensors) {
  TensorFile file;
  for (const auto& [name, tensor] : tensors) file.tensors.push_back({name, tensor.tensor});
  return file;
}

class Client {
 public:
  explicit Client(std::unique_ptr<Connection> connection) : connection_(std::move(connection)) {}

  static std::unique_ptr<Client> Local(const std::string& device, int threads) {
    LocalOptions local;
    local.device = device;
    local.threads = threads;
    return std::make_unique<Client>(ValueOf(ConnectInMemory({}, local, ConnectionOptions())));
  }
  static std::unique_ptr<Client> Remote(nb::object transport, const std::string& address) {
    return std::make_unique<Client>(ConnectThrough(std::move(transport), address));
  }

  /// A unary call: JSON of the request (protobuf's mapping) to the bytes of the response.
  nb::bytes Call(const std::string& method, const std::string& request) {
    CallTypes types = TypesOfCall(method);
    ParseJson(request, *types.request);
    Run([&] { return connection_->CallByName(method, *types.request, types.response); });
    return BytesOf(*types.response);
  }

  /// Where a request finds the tensor: JSON of a TensorSource. `stored`: by its digest, however
  /// small.
  std::string Place(const std::string& what, const HostTensor& tensor, bool stored) {
    v1::TensorSource source;
    Run([&]() -> absl::Status {
      // A connection in this process keeps what was placed, and a session reads it in later steps.
      Tensor kept = tensor.tensor;
      if (!stored) {
        QG_ASSIGN_OR_RETURN(kept, Tensor::FromBytes(kept.dtype(), kept.shape(), kept.bytes()));
      }
      QG_ASSIGN_OR_RETURN(
          source,
          Sources(stored ? Placement::kStored : Placement::kInlineWhenSmall).Place(what, kept));
      return absl::OkStatus();
    });
    return RequestJsonOf(source);
  }

  /// The tensor of a NamedTensor that a call returned.
  HostTensor Fetch(const nb::bytes& bytes) {
    v1::NamedTensor named;
    ParseInto(bytes, named);
    HostTensor tensor;
    Run([&]() -> absl::Status {
      QG_ASSIGN_OR_RETURN(tensor.tensor, FetchTensor(*connection_, named));
      // Tensors of the same bytes are one blob in this process, and two arrays must not be.
      if (fetched_.insert(std::as_const(tensor.tensor).data()).second) return absl::OkStatus();
      const Tensor& shared = tensor.tensor;
      QG_ASSIGN_OR_RETURN(tensor.tensor,
                          Tensor::FromBytes(shared.dtype(), shared.shape(), shared.bytes()));
      return absl::OkStatus();
    });
    return tensor;
  }

  /// Stores the bytes of a tensor as a blob: its SHA-256 and size.
  std::pair<nb::bytes, int64_t> Upload(const HostTensor& tensor) {
    v1::Digest digest;
    Run([&]() -> absl::Status {
      digest = DigestOf(tensor.tensor.bytes());
      return UploadBlob(*connection_, SharedBytesOf(tensor.tensor), digest).status();
    });
    return {nb::bytes(digest.sha256().data(), digest.sha256().size()), digest.size()};
  }
  nb::bytes Download(const nb::bytes& sha256, int64_t size) {
    v1::Digest digest;
    digest.set_sha256(sha256.c_str(), sha256.size());
    digest.set_size(size);
    std::shared_ptr<Buffer> buffer;
    Run([&]() -> absl::Status {
      QG_ASSIGN_OR_RETURN(buffer, DownloadBlob(*connection_, digest));
      return absl::OkStatus();
    });
    return nb::bytes(buffer->data(), buffer->size());
  }

  /// `kind`: run, compare. `spec`: JSON of a RunSpec.
  Document RunLayer(const std::string& kind, const std::string& spec, const std::string& command) {
    v1::RunSpec request;
    ParseJson(spec, request);
    Document document;
    Run([&] { return Execute(kind, request, command, document.report); });
    return document;
  }

  Document Verify(const std::string& spec, const std::string& name, const NamedTensors& subject,
                  const std::vector<std::string>& only, bool by_bound, const std::string& command) {
    v1::RunSpec request;
    ParseJson(spec, request);
    Document document;
    Run([&]() -> absl::Status {
      const absl::Time start = SteadyNow();
      VerifiedSubject verified;
      verified.name = name;
      verified.file = FileOf(subject);
      verified.only = only;
      verified.by_bound = by_bound;
      TensorSources sources = Sources();
      request.set_keep_outputs(true);
      if (by_bound) {
        for (const NamedTensor& tensor : BoundedSubjects(verified.file)) {
          QG_ASSIGN_OR_RETURN((*request.mutable_subjects())[tensor.name],
                              sources.Place(tensor.name, tensor.tensor));
        }
      }
      QG_RETURN_IF_ERROR(Execute("verify", request, command, document.report));
      return VerifyOutputs(*connection_, sources, verified, start, document.report);
    });
    return document;
  }

  Document Diff(const std::pair<std::string, std::string>& names, const NamedTensors& subject,
                const NamedTensors& reference, std::optional<int64_t> ulp_max,
                const std::string& command) {
    Document answer;
    ReportDocument& document = answer.report;
    document.kind = "diff";
    document.title = names.first + " against " + names.second;
    document.command = command;
    Run([&]() -> absl::Status {
      const absl::Time start = SteadyNow();
      TensorSources sources = Sources();
      v1::DiagnoseRequest diagnosis;
      QG_ASSIGN_OR_RETURN(document.comparisons,
                          CompareFiles(*connection_, sources, {names.first, FileOf(subject)},
                                       {names.second, FileOf(reference)}, diagnosis));
      document.verdict = JudgeComparisons(document.comparisons, ulp_max);
      AddDiagnosis(*connection_, std::move(diagnosis), start, document);
      return absl::OkStatus();
    });
    return answer;
  }

  /// JSON of a RunScenariosRequest; `on_event` gets JSON of each event as reports show it.
  std::string RunScenarios(const std::string& request, const nb::object& on_event) {
    v1::RunScenariosRequest asked;
    ParseJson(request, asked);
    v1::ScenarioRunFinished finished;
    std::exception_ptr thrown;  // By on_event: it ends the run.
    const auto tell = [&](const v1::ScenarioEvent& event) {
      if (thrown) return;
      const std::string text = JsonTextOf(event);
      const nb::gil_scoped_acquire acquired;
      try {
        on_event(text);
      } catch (...) {
        thrown = std::current_exception();
        connection_->Cancel();
      }
    };
    const absl::Status status = WithoutGil(
        /*is_long=*/true,
        [&]() -> absl::Status {
          QG_ASSIGN_OR_RETURN(finished, connection_->RunScenarios(asked, tell));
          return absl::OkStatus();
        },
        [&] { connection_->Cancel(); });
    if (thrown) std::rethrow_exception(thrown);
    ThrowIfError(status);
    return JsonTextOf(finished);
  }

  void Cancel() { connection_->Cancel(); }

 private:
  TensorSources Sources(Placement placement = Placement::kInlineWhenSmall) {
    return {*connection_, placement, {}};
  }

  absl::Status Execute(const std::string& kind, const v1::RunSpec& spec, const std::string& command,
                       ReportDocument& document) {
    QG_ASSIGN_OR_RETURN(v1::RunReport report, ExecuteRun(*connection_, spec));
    document = DocumentOfRun(kind, spec.step().layer().kind(), std::move(report));
    document.command = command;
    document.run.set_reproduce(command);
    return absl::OkStatus();
  }

  void Run(absl::FunctionRef<absl::Status()> body) {
    ThrowIfError(WithoutGil(/*is_long=*/true, body, [&] { connection_->Cancel(); }));
  }

  const std::unique_ptr<Connection> connection_;
  std::set<const std::byte*> fetched_;  ///< Where tensors lie that Fetch has given.
};

}  // namespace

void BindClient(nb::module_& module) {
  nb::class_<Client>(module, "Client")
      .def_static("local", &Client::Local, nb::arg("device"), nb::arg("threads"))
      .def_static("remote", &Client::Remote, nb::arg("transport"), nb::arg("address"))
      .def("call", &Client::Call, nb::arg("method"), nb::arg("request"))
      .def("place", &Client::Place, nb::arg("what"), nb::arg("tensor"), nb::arg("stored"))
      .def("fetch", &Client::Fetch, nb::arg("named_tensor"))
      .def("upload", &Client::Upload, nb::arg("tensor"))
      .def("download", &Client::Download, nb::arg("sha256"), nb::arg("size"))
      .def("run", &Client::RunLayer, nb::arg("kind"), nb::arg("spec"), nb::arg("command"))
      .def("verify", &Client::Verify, nb::arg("spec"), nb::arg("name"), nb::arg("subject"),
           nb::arg("only"), nb::arg("by_bound"), nb::arg("command"))
      .def("diff", &Client::Diff, nb::arg("names"), nb::arg("subject"), nb::arg("reference"),
           nb::arg("ulp_max").none(), nb::arg("command"))
      .def("run_scenarios", &Client::RunScenarios, nb::arg("request"), nb::arg("on_event"))
      .def("cancel", &Client::Cancel);
  module.def("new_request_id", &NewRequestId);
}

}  // namespace quantgate::python
