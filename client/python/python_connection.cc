#include "client/python/python_connection.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/python/messages.h"
#include "client/python/status.h"
#include "client/remote_connection.h"
#include "kernels/base/refusal.h"

namespace nb = nanobind;

namespace quantgate::python {
namespace {

using google::protobuf::MessageLite;

nb::bytes BytesOfText(const std::string& text) { return nb::bytes(text.data(), text.size()); }

bool IsError(nb::python_error& error) {
  return nb::isinstance(error.value(), nb::module_::import_("quantgate._errors").attr("Error"));
}

/// Whether chunks to this address need no checksum of their own (IsOnThisMachine): Python does not
/// say who the peer is, and a name may be anybody's.
bool IsLoopback(const std::string& address) {
  return absl::StartsWith(address, "unix:") || absl::StartsWith(address, "127.") ||
         absl::StartsWith(address, "[::1]:");
}

class PythonConnection : public RemoteConnection {
 public:
  PythonConnection(nb::object transport, const std::string& address,
                   const ConnectionOptions& options)
      : RemoteConnection(address, options), transport_(std::move(transport)) {}
  ~PythonConnection() override {
    const nb::gil_scoped_acquire acquired;
    transport_.reset();
  }

  absl::StatusOr<Upload> UploadBlob(const SharedBytes& bytes, const v1::Digest& digest,
                                    const UploadProgress& progress) override {
    return RemoteConnection::UploadBlob(bytes, digest, progress ? progress : Progress("upload"));
  }
  absl::StatusOr<std::shared_ptr<Buffer>> DownloadBlob(const v1::Digest& digest,
                                                       const DownloadProgress& progress) override {
    return RemoteConnection::DownloadBlob(digest, progress ? progress : Progress("download"));
  }

  /// Guarded by the GIL.
  const std::exception_ptr& thrown() const { return thrown_; }

 private:
  /// Tells the object how far a blob is.
  std::function<void(int64_t, int64_t)> Progress(const char* what) {
    return [this, what](int64_t done, int64_t size) {
      InPython([&] { transport_.attr("progress")(what, done, size); }).IgnoreError();
    };
  }

  template <typename Body>
  absl::Status InPython(Body body) {
    const nb::gil_scoped_acquire acquired;
    try {
      body();
    } catch (nb::python_error& error) {
      if (IsError(error)) return StatusOfException(error);
      thrown_ = std::current_exception();
      Cancel();
      return absl::CancelledError("Python raised an exception of its own");
    }
    return absl::OkStatus();
  }

  /// Seconds that a call has, or None.
  nb::object TimeoutOf(Purpose purpose) const {
    if (purpose == Purpose::kFarewell) return nb::cast(absl::ToDoubleSeconds(kFarewellTimeout));
    if (options().deadline == absl::InfiniteFuture()) return nb::none();
    return nb::cast(std::max(0.0, absl::ToDoubleSeconds(options().deadline - absl::Now())));
  }

  absl::Status CallOnce(const std::string& method, Purpose purpose, const MessageLite& request,
                        MessageLite& response) override {
    const std::string asked = request.SerializeAsString();
    bool is_read = false;
    absl::Status status = InPython([&] {
      const auto answer = nb::cast<nb::bytes>(transport_.attr("unary")(
          method, BytesOfText(asked), TimeoutOf(purpose), purpose == Purpose::kFarewell));
      is_read = response.ParseFromArray(answer.c_str(), static_cast<int>(answer.size()));
    });
    if (status.ok() && !is_read) return NoMessage(method);
    return status;
  }

  absl::Status ReadStream(const std::string& method, Purpose purpose, const MessageLite& request,
                          MessageLite& message, absl::FunctionRef<bool()> on_message) override {
    const std::string asked = request.SerializeAsString();
    bool is_read = true;
    const auto take = [&](const nb::bytes& bytes) {
      is_read = message.ParseFromArray(bytes.c_str(), static_cast<int>(bytes.size()));
      return is_read && on_message();
    };
    absl::Status status = InPython([&] {
      transport_.attr("stream")(method, BytesOfText(asked), nb::cpp_function(take),
                                TimeoutOf(purpose), purpose == Purpose::kFarewell);
    });
    if (!is_read) return NoMessage(method);
    return status;
  }

  /// The messages of one upload for Python, which may ask for one more while the call that they
  /// belong to returns, on a thread of its own. The GIL guards it.
  struct Outgoing {
    UploadMessages* messages;  ///< Null once the call has returned.
    bool is_on_this_machine;
    bool is_given = false;  ///< A message was given, and is sent once the next one is asked for.
    bool is_busy = false;   ///< One is being made, or NoteSent() lets other threads have the GIL.
  };
  static nb::object NextOf(Outgoing& outgoing) {
    if (outgoing.messages == nullptr) return nb::none();
    outgoing.is_busy = true;
    if (outgoing.is_given) outgoing.messages->NoteSent();
    v1::WriteRequest request;
    std::span<const std::byte> data;
    nb::object message = nb::none();
    outgoing.is_given = outgoing.messages->Next(outgoing.is_on_this_machine, request, data);
    if (outgoing.is_given) {
      request.set_data(data.data(), data.size());
      message = BytesOf(request);
    }
    outgoing.is_busy = false;
    return message;
  }

  absl::Status WriteStream(UploadMessages& messages, v1::WriteResponse& response) override {
    const auto outgoing = std::make_shared<Outgoing>(&messages, IsLoopback(address()));
    const absl::Cleanup end = [&] {
      const nb::gil_scoped_acquire acquired;
      while (outgoing->is_busy) {
        const nb::gil_scoped_release released;
        std::this_thread::yield();
      }
      outgoing->messages = nullptr;
    };
    bool is_read = false;
    const absl::Status status = InPython([&] {
      const auto next = nb::cpp_function([outgoing] { return NextOf(*outgoing); });
      const auto answer = nb::cast<nb::bytes>(
          transport_.attr("write")("Blobs/Write", next, TimeoutOf(Purpose::kWork)));
      is_read = response.ParseFromArray(answer.c_str(), static_cast<int>(answer.size()));
    });
    if (status.ok() && !is_read) return NoMessage("Blobs/Write");
    return status;
  }

  void CancelCalls() override {
    InPython([&] { transport_.attr("cancel")(); }).IgnoreError();
  }

  bool SleepUntil(absl::Time wake) override {
    bool is_awake = false;
    const absl::Status status = InPython([&] {
      const double seconds = std::max(0.0, absl::ToDoubleSeconds(wake - absl::Now()));
      is_awake = nb::cast<bool>(transport_.attr("pause")(seconds));
    });
    return status.ok() && is_awake;
  }

  static absl::Status NoMessage(const std::string& method) {
    return absl::InternalError(method + ": the answer is no message");
  }

  nb::object transport_;
  std::exception_ptr thrown_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Connection>> ConnectThrough(nb::object transport,
                                                           const std::string& address,
                                                           const ConnectionOptions& options) {
  if (!IsServerAddress(address)) {
    return Refuse("address", absl::StrCat("\"", address, "\""), "must be host:port or unix:/path");
  }
  return std::make_unique<PythonConnection>(std::move(transport), address, options);
}

std::exception_ptr ThrownBy(const Connection& connection) {
  const auto* const python = dynamic_cast<const PythonConnection*>(&connection);
  return python == nullptr ? nullptr : python->thrown();
}

}  // namespace quantgate::python
