// RemoteConnection: the API of a server, whatever carries the messages: a channel of gRPC
// (channel_connection.h) or an object of Python (python/python_connection.h). These make single
// calls; what has to be done again after one that broke is decided here.
//
// Every unary call of the API is idempotent (mutating ones carry a request id), so all of them are
// repeated with backoff when the server is UNAVAILABLE or names a time to try again. Streams are
// not: uploads, downloads and runs resume by their own means (blob_transfer.h, execute.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "client/blob_transfer.h"
#include "client/connection.h"

namespace quantgate {

/// Whether an address is written as "host:port", "unix:/path" or "unix:path".
bool IsServerAddress(const std::string& address);

/// One blob on its way: what is known between one stream and the next.
struct UploadUnderWay {
  const SharedBytes& shared;
  const v1::Digest& digest;
  const UploadProgress& progress;
  std::string upload_id;
  Upload upload;
};

/// The messages of one Blobs.Write: everything from an offset on.
class UploadMessages {
 public:
  UploadMessages(UploadUnderWay& upload, int64_t offset) : upload_(upload), offset_(offset) {}

  /// The next message without its data, and the data, whose owner is owner(). False after the last
  /// one. `is_on_this_machine`: whether the peer is known to be.
  bool Next(bool is_on_this_machine, v1::WriteRequest& request, std::span<const std::byte>& data);
  /// The message that Next gave is on its way.
  void NoteSent();
  const std::shared_ptr<const void>& owner() const { return upload_.shared.owner; }

 private:
  UploadUnderWay& upload_;
  int64_t offset_;
  int64_t count_ = 0;  ///< Bytes of the message that Next gave.
  bool is_first_ = true;
};

class RemoteConnection : public Connection {
 public:
  absl::StatusOr<Upload> UploadBlob(const SharedBytes& bytes, const v1::Digest& digest,
                                    const UploadProgress& progress) override;
  absl::StatusOr<std::shared_ptr<Buffer>> DownloadBlob(const v1::Digest& digest,
                                                       const DownloadProgress& progress) override;
  absl::StatusOr<v1::RunReport> ExecuteRun(const v1::RunSpec& spec,
                                           const RunObserverFunction& observer) override;
  absl::StatusOr<v1::RunReport> RunTrace(const v1::RunTraceRequest& request,
                                         const RunObserverFunction& observer) override;
  absl::StatusOr<v1::ScenarioRunFinished> RunScenarios(
      const v1::RunScenariosRequest& request, const ScenarioObserverFunction& observer) override;
  void Cancel() override;

  /// Is sent even after Cancel() or the deadline, and waits kFarewellTimeout at most.
  absl::StatusOr<v1::Run> CancelRun(const v1::CancelRunRequest& request);

 protected:
  using Connection::Connection;

  /// kWork ends with Cancel() and at options().deadline; kFarewell is made after them and has
  /// kFarewellTimeout.
  enum class Purpose { kWork, kFarewell };

  // What carries the messages; each makes one call, thread-safe.

  virtual absl::Status CallOnce(const std::string& method, Purpose purpose,
                                const google::protobuf::MessageLite& request,
                                google::protobuf::MessageLite& response) = 0;
  /// A call that a stream of messages answers. Each is read into `message`; where `on_message`
  /// returns false the call is ended, and is OK.
  virtual absl::Status ReadStream(const std::string& method, Purpose purpose,
                                  const google::protobuf::MessageLite& request,
                                  google::protobuf::MessageLite& message,
                                  absl::FunctionRef<bool()> on_message) = 0;
  /// Blobs.Write. A message that is not taken is no error yet: the status says whether the server
  /// ended the call early, and why.
  virtual absl::Status WriteStream(UploadMessages& messages, v1::WriteResponse& response) = 0;
  /// Ends the calls of kWork that are under way and every later one.
  virtual void CancelCalls() = 0;
  /// Sleeps until `wake`, or returns early (false) once cancelled.
  virtual bool SleepUntil(absl::Time wake);

 private:
  friend absl::StatusOr<Upload> WriteBlob(RemoteConnection& connection, const SharedBytes& bytes,
                                          const v1::Digest& digest, const UploadProgress& progress);

  absl::Status Call(const std::string& method, const google::protobuf::MessageLite& request,
                    const std::shared_ptr<google::protobuf::MessageLite>& response) override;
  /// Waits before try number `attempt` (1: the second). False: the deadline or Cancel() came first,
  /// or tries are used up.
  bool PauseBeforeRetry(int attempt, const absl::Status& status);

  absl::StatusOr<v1::QueryWriteResponse> CommittedOf(const UploadUnderWay& upload);
  absl::StatusOr<Upload> Send(UploadUnderWay& upload, int64_t offset);
  absl::Status ReceiveFrom(const v1::Digest& digest, Buffer& buffer, int64_t& received,
                           const DownloadProgress& progress);

  template <typename Request>
  absl::StatusOr<v1::RunReport> FollowToEnd(const std::string& method, Request request,
                                            const RunObserverFunction& observer);

  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace quantgate
