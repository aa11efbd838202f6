#include "tests/client/fake_server.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <thread>

#include "kernels/base/crc32c.h"
#include "kernels/tensor/fingerprint.h"

namespace quantgate {
namespace {

template <typename Item>
bool TakeFront(std::deque<Item>& queue, Item& item) {
  if (queue.empty()) return false;
  item = queue.front();
  queue.pop_front();
  return true;
}

std::string Sha256Bytes(const std::string& bytes) {
  const Sha256 sha256 = Sha256Of(std::as_bytes(std::span(bytes)));
  return std::string(sha256.bytes.begin(), sha256.bytes.end());
}

}  // namespace

grpc::Status FakeBlobs::FindMissing(grpc::ServerContext*, const v1::FindMissingRequest* request,
                                    v1::FindMissingResponse* response) {
  ++find_missing_calls;
  grpc::Status failure;
  if (TakeFront(find_missing_failures, failure)) return failure;
  for (const v1::Digest& digest : request->digests()) {
    if (!blobs.contains(digest.sha256())) *response->add_missing() = digest;
  }
  return grpc::Status::OK;
}

grpc::Status FakeBlobs::Write(grpc::ServerContext* context,
                              grpc::ServerReader<v1::WriteRequest>* reader,
                              v1::WriteResponse* response) {
  ++write_calls;
  if (stalls > 0) {
    --stalls;
    while (!context->IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  }
  Break stop;
  const bool breaks_off = TakeFront(breaks, stop);
  v1::WriteRequest request;
  v1::WriteHeader header;
  int64_t received = 0;
  while (reader->Read(&request)) {
    if (request.has_header()) {
      header = request.header();
      upload_ids.push_back(header.upload_id());
      if (busy.contains(header.upload_id())) {
        return grpc::Status(grpc::StatusCode::ABORTED, "another stream writes this upload");
      }
      if (header.offset() != static_cast<int64_t>(partials[header.upload_id()].size())) {
        return grpc::Status(grpc::StatusCode::OUT_OF_RANGE, "offset is not what is committed");
      }
    }
    if (request.has_crc32c()) {
      const uint32_t crc = ExtendCrc32c(0, std::as_bytes(std::span(request.data())));
      ++(request.crc32c() == crc ? good_crcs : bad_crcs);
    }
    std::string& partial = partials[header.upload_id()];
    for (const char byte : request.data()) {
      if (breaks_off && received == stop.after_bytes) break;
      partial += byte;
      ++received;
    }
    if (breaks_off && received == stop.after_bytes) {
      if (stop.forgets_upload) partials.erase(header.upload_id());
      return stop.status;
    }
  }
  const std::string& bytes = partials[header.upload_id()];
  if (Sha256Bytes(bytes) != header.digest().sha256()) {
    partials.erase(header.upload_id());
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "digest does not fit");
  }
  blobs[header.digest().sha256()] = bytes;
  response->set_committed_size(static_cast<int64_t>(bytes.size()));
  return grpc::Status::OK;
}

grpc::Status FakeBlobs::QueryWrite(grpc::ServerContext*, const v1::QueryWriteRequest* request,
                                   v1::QueryWriteResponse* response) {
  ++query_write_calls;
  const auto partial = partials.find(request->upload_id());
  if (partial == partials.end()) return grpc::Status(grpc::StatusCode::NOT_FOUND, "no upload");
  response->set_committed_size(static_cast<int64_t>(partial->second.size()));
  return grpc::Status::OK;
}

grpc::Status FakeBlobs::Read(grpc::ServerContext*, const v1::ReadRequest* request,
                             grpc::ServerWriter<v1::ReadResponse>* writer) {
  const auto blob = blobs.find(request->digest().sha256());
  if (blob == blobs.end()) return grpc::Status(grpc::StatusCode::NOT_FOUND, "no blob");
  Break stop;
  const bool breaks_off = TakeFront(read_breaks, stop);
  std::string rest = blob->second.substr(static_cast<size_t>(request->offset()));
  if (breaks_off) rest.resize(static_cast<size_t>(stop.after_bytes));
  if (reads_wrong_bytes && !rest.empty()) rest[0] ^= 1;
  v1::ReadResponse response;
  response.set_data(rest);
  writer->Write(response);
  return breaks_off ? stop.status : grpc::Status::OK;
}

grpc::Status FakeEngine::Play(grpc::ServerContext* context, int64_t from,
                              grpc::ServerWriter<v1::RunEvent>* writer) {
  if (stalls > 0) {
    --stalls;
    while (!context->IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  }
  int limit = -1;
  TakeFront(breaks, limit);
  for (const v1::RunEvent& event : events) {
    if (event.sequence() < from) continue;
    if (limit-- == 0) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the stream broke");
    writer->Write(event);
  }
  // Writing to a cancelled stream fails; until then every write is one the client has read or will
  // read.
  while (blocks && !context->IsCancelled() && writer->Write(events.back())) continue;
  return grpc::Status::OK;
}

grpc::Status FakeEngine::Execute(grpc::ServerContext* context, const v1::ExecuteRequest* request,
                                 grpc::ServerWriter<v1::RunEvent>* writer) {
  request_ids.push_back(request->request_id());
  return Play(context, 1, writer);
}

grpc::Status FakeEngine::WaitRun(grpc::ServerContext* context, const v1::WaitRunRequest* request,
                                 grpc::ServerWriter<v1::RunEvent>* writer) {
  wait_sequences.push_back(request->from_sequence());
  return Play(context, request->from_sequence(), writer);
}

grpc::Status FakeEngine::CancelRun(grpc::ServerContext*, const v1::CancelRunRequest* request,
                                   v1::Run*) {
  cancelled_runs.push_back(request->run_id());
  return grpc::Status::OK;
}

FakeServer::FakeServer() {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(&blobs);
  builder.RegisterService(&engine);
  server_ = builder.BuildAndStart();
}

FakeServer::~FakeServer() { server_->Shutdown(); }

std::string FakeServer::address() const { return "127.0.0.1:" + std::to_string(port_); }

grpc::Status DetailedStatus(grpc::StatusCode code, const std::string& message,
                            const v1::ErrorDetail& detail) {
  return grpc::Status(code, message, detail.SerializeAsString());
}

}  // namespace quantgate
