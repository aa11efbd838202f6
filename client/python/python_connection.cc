#include "client/python/python_connection.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <functional>
#include <utility>

#include "client/blob_transfer.h"
#include "client/execute.h"
#include "client/python/status.h"
#include "kernels/base/status_macros.h"
#include "server/report/number_text.h"

namespace nb = nanobind;

namespace quantgate::python {
namespace {

using google::protobuf::MessageLite;

nb::bytes BytesOfText(const std::string& text) { return nb::bytes(text.data(), text.size()); }

class PythonConnection : public Connection {
 public:
  PythonConnection(nb::object transport, const std::string& address)
      : Connection(address, ConnectionOptions()), transport_(std::move(transport)) {}
  ~PythonConnection() override {
    const nb::gil_scoped_acquire acquired;
    transport_.reset();
  }

  absl::StatusOr<Upload> UploadBlob(const SharedBytes& bytes, const v1::Digest& digest,
                                    const UploadProgress& progress) override {
    QG_RETURN_IF_ERROR(InPython([&] {
      const size_t shape[] = {bytes.bytes.size()};
      const nb::ndarray<nb::numpy, const uint8_t> data(bytes.bytes.data(), 1, shape, nb::none());
      transport_.attr("upload")(BytesOfText(digest.sha256()), nb::cast(data));
    }));
    if (progress) progress(digest.size(), digest.size());
    return Upload();
  }

  absl::StatusOr<std::shared_ptr<Buffer>> DownloadBlob(const v1::Digest& digest,
                                                       const DownloadProgress& progress) override {
    QG_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer, Buffer::Allocate(digest.size()));
    size_t received = 0;
    QG_RETURN_IF_ERROR(InPython([&] {
      const auto bytes = nb::cast<nb::bytes>(
          transport_.attr("download")(BytesOfText(digest.sha256()), digest.size()));
      received = bytes.size();
      if (received == buffer->size()) std::memcpy(buffer->data(), bytes.c_str(), received);
    }));
    if (received != buffer->size() ||
        DigestOf({buffer->data(), buffer->size()}).sha256() != digest.sha256()) {
      return absl::DataLossError("digest:" + DigestText(digest) + ": other bytes were received");
    }
    if (progress) progress(digest.size(), digest.size());
    return buffer;
  }

  absl::StatusOr<v1::RunReport> ExecuteRun(const v1::RunSpec& spec,
                                           const RunObserverFunction& observer) override {
    v1::ExecuteRequest request;
    *request.mutable_spec() = spec;
    request.set_request_id(NewRequestId());
    request.set_stream_outputs(true);
    return Follow("Engine/Execute", request, observer);
  }

  absl::StatusOr<v1::RunReport> RunTrace(const v1::RunTraceRequest& request,
                                         const RunObserverFunction& observer) override {
    v1::RunTraceRequest asked = request;
    asked.set_request_id(NewRequestId());
    return Follow("Sessions/RunTrace", asked, observer);
  }

  absl::StatusOr<v1::ScenarioRunFinished> RunScenarios(
      const v1::RunScenariosRequest& request, const ScenarioObserverFunction& observer) override {
    v1::ScenarioRunFinished finished;
    bool has_finished = false;
    QG_RETURN_IF_ERROR(Stream("Scenarios/Run", request, [&](const nb::bytes& bytes) {
      v1::ScenarioEvent event;
      if (!event.ParseFromArray(bytes.c_str(), static_cast<int>(bytes.size()))) return;
      if (event.has_finished()) {
        has_finished = true;
        finished = event.finished();
      }
      if (observer) observer(event);
    }));
    if (!has_finished) return absl::DataLossError("the scenarios ended without their last event");
    return finished;
  }

  void Cancel() override {
    InPython([&] { transport_.attr("cancel")(); }).IgnoreError();
  }

 private:
  template <typename Body>
  absl::Status InPython(Body body) {
    const nb::gil_scoped_acquire acquired;
    try {
      body();
    } catch (nb::python_error& error) {
      return StatusOfException(error);
    }
    return absl::OkStatus();
  }

  absl::Status Call(const std::string& method, const MessageLite& request,
                    const std::shared_ptr<MessageLite>& response) override {
    const std::string asked = request.SerializeAsString();
    bool is_read = false;
    QG_RETURN_IF_ERROR(InPython([&] {
      const auto answer = nb::cast<nb::bytes>(transport_.attr("unary")(method, BytesOfText(asked)));
      is_read = response->ParseFromArray(answer.c_str(), static_cast<int>(answer.size()));
    }));
    return is_read ? absl::OkStatus() : absl::InternalError(method + ": the answer is no message");
  }

  absl::Status Stream(const std::string& method, const MessageLite& request,
                      const std::function<void(const nb::bytes&)>& on_message) {
    const std::string asked = request.SerializeAsString();
    return InPython([&] {
      transport_.attr("stream")(method, BytesOfText(asked), nb::cpp_function(on_message));
    });
  }

  absl::StatusOr<v1::RunReport> Follow(const std::string& method, const MessageLite& request,
                                       const RunObserverFunction& observer) {
    RunFollower follower;
    QG_RETURN_IF_ERROR(Stream(method, request, [&](const nb::bytes& bytes) {
      v1::RunEvent event;
      if (event.ParseFromArray(bytes.c_str(), static_cast<int>(bytes.size()))) {
        follower.Take(event, observer);
      }
    }));
    if (!follower.has_finished())
      return absl::UnavailableError("the stream ended before the run did");
    return follower.Report();
  }

  nb::object transport_;
};

}  // namespace

std::unique_ptr<Connection> ConnectThrough(nb::object transport, const std::string& address) {
  return std::make_unique<PythonConnection>(std::move(transport), address);
}

}  // namespace quantgate::python
