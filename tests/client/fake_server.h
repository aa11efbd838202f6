// A server that speaks quantgate.v1 over loopback and fails on command, to show what the client
// does then.
#pragma once

#include <grpcpp/server.h>

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "client/connection.h"
#include "quantgate/v1/blobs_service.grpc.pb.h"
#include "quantgate/v1/engine_service.grpc.pb.h"
#include "quantgate/v1/error.pb.h"

namespace quantgate {

/// Blobs in memory. Each Write takes the next entry of `breaks`: the stream ends with that status
/// after so many bytes.
class FakeBlobs : public v1::Blobs::Service {
 public:
  struct Break {
    int64_t after_bytes = 0;
    grpc::Status status;
    bool forgets_upload = false;
  };

  std::deque<Break> breaks;
  std::deque<grpc::Status> find_missing_failures;
  std::deque<Break> read_breaks;
  bool reads_wrong_bytes = false;

  std::map<std::string, std::string> blobs;     ///< By SHA-256.
  std::map<std::string, std::string> partials;  ///< By upload id.
  std::set<std::string> busy;                   ///< Upload ids that somebody else is writing.
  int stalls = 0;  ///< Writes that take nothing until they are cancelled.
  std::vector<std::string> upload_ids;
  int find_missing_calls = 0;
  int write_calls = 0;
  int query_write_calls = 0;
  int good_crcs = 0;
  int bad_crcs = 0;

  grpc::Status FindMissing(grpc::ServerContext*, const v1::FindMissingRequest* request,
                           v1::FindMissingResponse* response) override;
  grpc::Status Write(grpc::ServerContext*, grpc::ServerReader<v1::WriteRequest>* reader,
                     v1::WriteResponse* response) override;
  grpc::Status QueryWrite(grpc::ServerContext*, const v1::QueryWriteRequest* request,
                          v1::QueryWriteResponse* response) override;
  grpc::Status Read(grpc::ServerContext*, const v1::ReadRequest* request,
                    grpc::ServerWriter<v1::ReadResponse>* writer) override;
};

/// Plays `events` of one run; a stream ends UNAVAILABLE after each count in `breaks`.
class FakeEngine : public v1::Engine::Service {
 public:
  std::vector<v1::RunEvent> events;
  std::deque<int> breaks;
  int stalls = 0;       ///< Streams that say nothing until they are cancelled.
  bool blocks = false;  ///< After the events, the stream waits for its cancellation.

  std::vector<std::string> request_ids;
  std::vector<int64_t> wait_sequences;
  std::vector<std::string> cancelled_runs;

  grpc::Status Execute(grpc::ServerContext* context, const v1::ExecuteRequest* request,
                       grpc::ServerWriter<v1::RunEvent>* writer) override;
  grpc::Status WaitRun(grpc::ServerContext* context, const v1::WaitRunRequest* request,
                       grpc::ServerWriter<v1::RunEvent>* writer) override;
  grpc::Status CancelRun(grpc::ServerContext*, const v1::CancelRunRequest* request,
                         v1::Run* run) override;

 private:
  grpc::Status Play(grpc::ServerContext* context, int64_t from,
                    grpc::ServerWriter<v1::RunEvent>* writer);
};

class FakeServer {
 public:
  FakeServer();
  ~FakeServer();
  std::string address() const;
  FakeBlobs blobs;
  FakeEngine engine;

 private:
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

/// A status whose details hold `detail`.
grpc::Status DetailedStatus(grpc::StatusCode code, const std::string& message,
                            const v1::ErrorDetail& detail);

}  // namespace quantgate
