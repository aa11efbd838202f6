#include "absl/strings/str_cat.h"
#include "kernels/base/refusal.h"
#include "kernels/base/status_macros.h"
#include "quantgate/v1/blobs_service.grpc.pb.h"
#include "server/limits.h"
#include "server/rpc/download_stream.h"
#include "server/rpc/services.h"
#include "server/rpc/unary_call.h"
#include "server/rpc/upload_stream.h"
#include "server/wire/convert_tensor.h"
#include "server/wire/request_fields.h"

namespace quantgate {
namespace {

/// Write and Read exchange raw bytes, so that the data of a blob is hashed, written and sent from
/// the buffers that it was received or read into.
using RawStreamsService = v1::Blobs::WithCallbackMethod_FindMissing<
    v1::Blobs::WithRawCallbackMethod_Write<v1::Blobs::WithCallbackMethod_QueryWrite<
        v1::Blobs::WithRawCallbackMethod_Read<v1::Blobs::Service>>>>;

class BlobsService : public RawStreamsService {
 public:
  explicit BlobsService(ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* FindMissing(grpc::CallbackServerContext* server_context,
                                        const v1::FindMissingRequest* request,
                                        v1::FindMissingResponse* response) noexcept override {
    return AnswerOnExecutor(context_, Rpc("Blobs.FindMissing"), Admission::kAlways, server_context,
                            [this, request, response] { return FindMissing(*request, *response); });
  }

  grpc::ServerReadReactor<grpc::ByteBuffer>* Write(grpc::CallbackServerContext* server_context,
                                                   grpc::ByteBuffer* response) noexcept override {
    return new UploadStream(context_, server_context, response);
  }

  grpc::ServerUnaryReactor* QueryWrite(grpc::CallbackServerContext* server_context,
                                       const v1::QueryWriteRequest* request,
                                       v1::QueryWriteResponse* response) noexcept override {
    return AnswerOnExecutor(context_, Rpc("Blobs.QueryWrite"), Admission::kAlways, server_context,
                            [this, request, response] { return QueryWrite(*request, *response); });
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Read(
      grpc::CallbackServerContext* server_context,
      const grpc::ByteBuffer* request) noexcept override {
    return new DownloadStream(context_, server_context, request);
  }

 private:
  // FindMissing and QueryWrite run on the executor, since both ask the disk for sizes of files.
  absl::Status FindMissing(const v1::FindMissingRequest& request,
                           v1::FindMissingResponse& response) {
    if (request.digests_size() > kFindMissingMax) {
      return Refuse("digests", absl::StrCat(request.digests_size(), " digests"),
                    absl::StrCat("a request has at most ", kFindMissingMax));
    }
    for (int i = 0; i < request.digests_size(); ++i) {
      QG_ASSIGN_OR_RETURN(const Digest digest,
                          DigestFromProto(request.digests(i), absl::StrCat("digests[", i, "]")));
      if (!context_.blobs.Contains(digest)) *response.add_missing() = request.digests(i);
    }
    return absl::OkStatus();
  }

  absl::Status QueryWrite(const v1::QueryWriteRequest& request, v1::QueryWriteResponse& response) {
    QG_RETURN_IF_ERROR(CheckToken(request.upload_id(), "upload_id"));
    QG_ASSIGN_OR_RETURN(const Digest digest, DigestFromProto(request.digest(), "digest"));
    QG_ASSIGN_OR_RETURN(const UploadState state,
                        context_.blob_store.QueryUpload(request.upload_id(), digest));
    response.set_committed_size(state.committed_size);
    response.set_complete(state.complete);
    return absl::OkStatus();
  }

  ServiceContext& context_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeBlobsService(ServiceContext& context) {
  return std::make_unique<BlobsService>(context);
}

}  // namespace quantgate
