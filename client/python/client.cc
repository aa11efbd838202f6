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

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/blob_transfer.h"
#include "client/capture.h"
#include "client/capture_report.h"
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

/// Bytes whose SHA-256 takes so long that an interrupt should be seen meanwhile.
constexpr size_t kLongHash = 64 << 20;

using NamedTensors = std::vector<std::pair<std::string, HostTensor>>;

/// Tensors of Python as those of a file that was read.
TensorFile FileOf(const NamedTensors& tensors) {
  TensorFile file;
  for (const auto& [name, tensor] : tensors) file.tensors.push_back({name, tensor.tensor});
  return file;
}

class Client {
 public:
  Client(std::unique_ptr<Connection> connection, bool is_remote)
      : connection_(std::move(connection)), is_remote_(is_remote) {}

  static std::unique_ptr<Client> Local(const std::string& device, int threads) {
    LocalOptions local;
    local.device = device;
    local.threads = threads;
    return std::make_unique<Client>(ValueOf(ConnectInMemory({}, local, ConnectionOptions())),
                                    /*is_remote=*/false);
  }
  /// `timeout`: seconds from now, for all its calls together. `backoff`: seconds.
  static std::unique_ptr<Client> Remote(nb::object transport, const std::string& address,
                                        std::optional<double> timeout, int attempts_max,
                                        double backoff) {
    ConnectionOptions options;
    if (timeout.has_value()) options.deadline = absl::Now() + absl::Seconds(*timeout);
    options.attempts_max = attempts_max;
    options.backoff = absl::Seconds(backoff);
    return std::make_unique<Client>(ValueOf(ConnectThrough(std::move(transport), address, options)),
                                    /*is_remote=*/true);
  }

  /// A unary call: JSON of the request (protobuf's mapping) to the bytes of the response.
  nb::bytes Call(const std::string& method, const std::string& request) {
    CallTypes types = TypesOfCall(method);
    ParseJson(request, *types.request);
    FillInline(*types.request);
    Run([&] { return connection_->CallByName(method, *types.request, types.response); });
    return BytesOf(*types.response);
  }

  /// Where a request finds the tensor: JSON of a TensorSource, which stands for the bytes of a
  /// small one in the next call. `stored`: by its digest, however small.
  std::string Place(const std::string& what, const HostTensor& tensor, bool stored) {
    v1::TensorSource source;
    Run(
        [&]() -> absl::Status {
          // A connection in this process keeps what was placed, and a session reads it in later
          // steps, when the caller may have written there.
          Tensor kept = tensor.tensor;
          if (!stored && !is_remote_) {
            QG_ASSIGN_OR_RETURN(kept, Tensor::FromBytes(kept.dtype(), kept.shape(), kept.bytes()));
          }
          QG_ASSIGN_OR_RETURN(
              source,
              Sources(stored ? Placement::kStored : Placement::kInlineWhenSmall).Place(what, kept));
          return absl::OkStatus();
        },
        tensor.tensor.byte_size());
    if (!source.has_inline_()) return RequestJsonOf(source);
    inline_.push_back(std::move(*source.mutable_inline_()));
    source.mutable_stored()->mutable_digest()->set_size(-static_cast<int64_t>(inline_.size()));
    return RequestJsonOf(source);
  }

  /// The tensor of a NamedTensor that a call returned.
  HostTensor Fetch(const nb::bytes& bytes) {
    v1::NamedTensor named;
    ParseInto(bytes, named);
    HostTensor tensor;
    Run(
        [&]() -> absl::Status {
          QG_ASSIGN_OR_RETURN(tensor.tensor, FetchTensor(*connection_, named));
          // Tensors of the same bytes are one blob in this process, and two arrays must not be.
          const Tensor& shared = tensor.tensor;
          if (is_remote_ || fetched_.insert(shared.data()).second) return absl::OkStatus();
          QG_ASSIGN_OR_RETURN(tensor.tensor,
                              Tensor::FromBytes(shared.dtype(), shared.shape(), shared.bytes()));
          return absl::OkStatus();
        },
        static_cast<size_t>(named.digest().size()));
    return tensor;
  }

  /// Stores the bytes of a tensor as a blob: its SHA-256 and size.
  std::pair<nb::bytes, int64_t> Upload(const HostTensor& tensor) {
    v1::Digest digest;
    Run(
        [&]() -> absl::Status {
          digest = DigestOf(tensor.tensor.bytes());
          return UploadBlob(*connection_, SharedBytesOf(tensor.tensor), digest).status();
        },
        tensor.tensor.byte_size());
    return {nb::bytes(digest.sha256().data(), digest.sha256().size()), digest.size()};
  }
  nb::bytes Download(const nb::bytes& sha256, int64_t size) {
    v1::Digest digest;
    digest.set_sha256(sha256.c_str(), sha256.size());
    digest.set_size(size);
    std::shared_ptr<Buffer> buffer;
    Run(
        [&]() -> absl::Status {
          QG_ASSIGN_OR_RETURN(buffer, DownloadBlob(*connection_, digest));
          return absl::OkStatus();
        },
        static_cast<size_t>(size));
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

  /// `variant`: JSON of a Variant, whose recipe and arithmetic may be absent.
  Document VerifyOfCapture(const std::string& path, const std::string& variant,
                           const std::string& layers, bool by_bound, const std::string& command) {
    CaptureCriterion criterion;
    ParseJson(variant, criterion.variant);
    criterion.layers = layers;
    criterion.by_bound = by_bound;
    criterion.capture_field = "directory";
    Document document;
    Run([&]() -> absl::Status {
      QG_ASSIGN_OR_RETURN(const Capture capture, ReadCapture("directory", path));
      TensorSources sources = Sources();
      QG_ASSIGN_OR_RETURN(document.report,
                          VerifyCapture(*connection_, sources, capture, criterion, {}));
      document.report.command = command;
      return absl::OkStatus();
    });
    return document;
  }

  Document DiffOfCaptures(const std::string& subject, const std::string& reference,
                          std::optional<int64_t> ulp_max, const std::string& command) {
    Document document;
    Run([&]() -> absl::Status {
      QG_ASSIGN_OR_RETURN(const Capture a, ReadCapture("a", subject));
      QG_ASSIGN_OR_RETURN(const Capture b, ReadCapture("b", reference));
      TensorSources sources = Sources();
      QG_ASSIGN_OR_RETURN(document.report, DiffCaptures(*connection_, sources, a, b, ulp_max, {}));
      document.report.command = command;
      return absl::OkStatus();
    });
    return document;
  }

  /// `request`: JSON of a RunTraceRequest.
  TraceDocument Play(const std::string& request, const std::string& command) {
    v1::RunTraceRequest asked;
    ParseJson(request, asked);
    TraceDocument document;
    Run([&]() -> absl::Status {
      const auto keep = [&](const v1::TraceStep& step, int64_t, int64_t) {
        document.outputs[{step.step() - 1, step.variant()}].assign(step.outputs().begin(),
                                                                   step.outputs().end());
      };
      QG_ASSIGN_OR_RETURN(document.report, PlayTrace(*connection_, asked, keep));
      document.report.command = command;
      return absl::OkStatus();
    });
    return document;
  }

  /// JSON of a RunScenariosRequest; `on_event` gets JSON of each event as reports show it.
  ScenarioDocument RunScenarios(const std::string& request, const nb::object& on_event) {
    v1::RunScenariosRequest asked;
    ParseJson(request, asked);
    ScenarioDocument run;
    std::exception_ptr thrown;  // By on_event: it ends the run.
    const auto tell = [&](const v1::ScenarioEvent& event) {
      if (thrown) return;
      if (!event.has_finished()) run.events.push_back(event);
      const std::string text = JsonTextOf(event);
      const nb::gil_scoped_acquire acquired;
      try {
        on_event(text);
      } catch (...) {
        thrown = std::current_exception();
        connection_->Cancel();
      }
    };
    const auto execute = [&]() -> absl::Status {
      QG_ASSIGN_OR_RETURN(run.finished, connection_->RunScenarios(asked, tell));
      return absl::OkStatus();
    };
    const absl::Status status = DoWithoutGil(execute);
    if (thrown) std::rethrow_exception(thrown);
    Finish(status);
    return run;
  }

  void Cancel() { connection_->Cancel(); }

 private:
  TensorSources Sources(Placement placement = Placement::kInlineWhenSmall) {
    return {*connection_, placement, {}};
  }

  /// Puts what Place() kept of small tensors where a request names it. Bytes in JSON would cost
  /// more than most calls.
  void FillInline(google::protobuf::Message& request) {
    ForEachMessage(request, [&](google::protobuf::Message& message) {
      auto* const source = dynamic_cast<v1::TensorSource*>(&message);
      if (source == nullptr || source->stored().digest().size() >= 0) return;
      const size_t index = -(source->stored().digest().size() + 1);
      if (index < inline_.size()) *source->mutable_inline_() = inline_[index];
    });
    inline_.clear();
  }

  absl::Status Execute(const std::string& kind, const v1::RunSpec& spec, const std::string& command,
                       ReportDocument& document) {
    QG_ASSIGN_OR_RETURN(v1::RunReport report, ExecuteRun(*connection_, spec));
    document = DocumentOfRun(kind, spec.step().layer().kind(), std::move(report));
    document.command = command;
    document.run.set_reproduce(command);
    return absl::OkStatus();
  }

  /// `bytes`: of a tensor that is to be hashed.
  void Run(absl::FunctionRef<absl::Status()> body, size_t bytes = 0) {
    Finish(DoWithoutGil(body, bytes));
  }
  void Finish(const absl::Status& status) {
    if (const std::exception_ptr thrown = ThrownBy(*connection_)) std::rethrow_exception(thrown);
    ThrowIfError(status);
  }

  /// What waits for a server waits in Python, which sees interrupts itself.
  absl::Status DoWithoutGil(absl::FunctionRef<absl::Status()> body, size_t bytes = 0) {
    return WithoutGil(!is_remote_ || bytes >= kLongHash, body, [&] { connection_->Cancel(); });
  }

  const std::unique_ptr<Connection> connection_;
  const bool is_remote_;
  /// Small tensors of the next call, whose JSON has the digest's size -1, -2, ... for them.
  std::vector<v1::InlineTensor> inline_;
  std::set<const std::byte*> fetched_;  ///< Where tensors lie that Fetch has given.
};

}  // namespace

void BindClient(nb::module_& module) {
  nb::class_<Client>(module, "Client")
      .def_static("local", &Client::Local, nb::arg("device"), nb::arg("threads"))
      .def_static("remote", &Client::Remote, nb::arg("transport"), nb::arg("address"),
                  nb::arg("timeout").none() = nb::none(),
                  nb::arg("attempts_max") = ConnectionOptions().attempts_max,
                  nb::arg("backoff") = absl::ToDoubleSeconds(ConnectionOptions().backoff))
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
      .def("play", &Client::Play, nb::arg("request"), nb::arg("command"))
      .def("verify_capture", &Client::VerifyOfCapture, nb::arg("directory"), nb::arg("variant"),
           nb::arg("layers"), nb::arg("by_bound"), nb::arg("command"))
      .def("diff_captures", &Client::DiffOfCaptures, nb::arg("a"), nb::arg("b"),
           nb::arg("ulp_max").none(), nb::arg("command"))
      .def("run_scenarios", &Client::RunScenarios, nb::arg("request"), nb::arg("on_event"))
      .def("cancel", &Client::Cancel);
  module.def("new_request_id", &NewRequestId);
}

}  // namespace quantgate::python
