#include "tests/server/store/store_contents.h"

#include <atomic>
#include <thread>

#include "quantgate/v1/blobs_service.pb.h"
#include "quantgate/v1/engine_service.pb.h"
#include "quantgate/v1/info_service.pb.h"
#include "quantgate/v1/scenarios_service.pb.h"
#include "quantgate/v1/sessions_service.pb.h"
#include "quantgate/v1/tensors_service.pb.h"
#include "tests/server/test_server.h"

namespace quantgate {
namespace {

constexpr int64_t kSide = 32;
constexpr size_t kUploadBytes = 5000, kInterruptedAt = 3000;

/// Calls one server and keeps what was said.
class Caller {
 public:
  explicit Caller(std::shared_ptr<grpc::Channel> channel) : channel_(std::move(channel)) {}

  template <typename Request>
  const Exchange& operator()(const std::string& method, const Request& request) {
    return Bytes(method, {request.SerializeAsString()});
  }
  const Exchange& Bytes(const std::string& method, const std::vector<std::string>& requests) {
    exchanges_.push_back(Ask(channel_, "quantgate.v1." + method, requests));
    return exchanges_.back();
  }
  /// The last response.
  template <typename Response>
  Response Last() const {
    Response response;
    if (!exchanges_.back().responses.empty()) {
      (void)response.ParseFromString(exchanges_.back().responses.back());
    }
    return response;
  }
  std::vector<Exchange> Take() { return std::move(exchanges_); }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::vector<Exchange> exchanges_;
};

v1::WriteRequest UploadOf(const std::string& id, const std::string& bytes, size_t sent) {
  v1::WriteRequest request;
  request.mutable_header()->set_upload_id(id);
  *request.mutable_header()->mutable_digest() = DigestFor(bytes);
  request.set_data(bytes.substr(0, sent));
  return request;
}

void FillBlobs(Caller& call) {
  const std::string bytes = TestBytes(kUploadBytes);
  call("Blobs/Write", UploadOf("whole", bytes, bytes.size()));
  const std::string other = TestBytes(kUploadBytes, 2);
  call("Blobs/Write", UploadOf("interrupted", other, kInterruptedAt));
  v1::QueryWriteRequest query;
  query.set_upload_id("interrupted");
  *query.mutable_digest() = DigestFor(other);
  call("Blobs/QueryWrite", query);
}

v1::TensorSource Stored(const v1::TensorRecord& record) {
  v1::TensorSource source;
  *source.mutable_stored()->mutable_digest() = record.digest();
  *source.mutable_stored()->mutable_type() = record.type();
  return source;
}

void FillTensors(Caller& call) {
  v1::PutTensorRequest put;
  *put.mutable_tensor() = Inline("bf16", {8, 16}, TestBytes(256, 3));
  put.set_name("inline");
  put.set_request_id("put-1");
  call("Tensors/Put", put);
  v1::PutTensorRequest stored;
  *stored.mutable_tensor()->mutable_stored()->mutable_digest() = DigestFor(TestBytes(kUploadBytes));
  stored.mutable_tensor()->mutable_stored()->mutable_type()->set_dtype("f8_e4m3");
  stored.mutable_tensor()->mutable_stored()->mutable_type()->add_shape(kUploadBytes);
  stored.set_name("uploaded");
  call("Tensors/Put", stored);
  for (const uint64_t seed : {1, 2, 3}) {
    v1::GenerateTensorRequest generate;
    *generate.mutable_spec() =
        Generated("normal", seed, "bf16", {kSide, kSide * static_cast<int64_t>(seed)}).generate();
    generate.set_name("generated " + std::to_string(seed));
    generate.set_request_id("generate-" + std::to_string(seed));
    call("Tensors/Generate", generate);
  }
}

void FillCalls(Caller& call) {
  call("Info/GetCapabilities", v1::GetCapabilitiesRequest());
  call("Info/ListRecipes", v1::ListRecipesRequest());
  call("Info/ListArithmetics", v1::ListArithmeticsRequest());
  call("Scenarios/List", v1::ListScenariosRequest());
  v1::QuantizeRequest quantize;
  *quantize.mutable_tensor() = Generated("normal", 1, "bf16", {kSide, kSide});
  quantize.mutable_recipe()->set_name("mxfp8");
  quantize.set_role("input");
  quantize.set_rowwise(true);
  call("Engine/Quantize", quantize);
  const auto quantized = call.Last<v1::QuantizeResponse>();
  v1::DequantizeRequest dequantize;
  for (const v1::NamedTensor& tensor : quantized.tensors()) {
    v1::InlineTensor& part = *(*dequantize.mutable_tensors())[tensor.name()].mutable_inline_();
    *part.mutable_type() = tensor.type();
    part.set_data(tensor.data());
  }
  *dequantize.mutable_description() = quantized.description();
  call("Engine/Dequantize", dequantize);
  v1::GemmRequest gemm;
  *gemm.mutable_a()->mutable_tensor() = Generated("normal", 1, "bf16", {kSide, kSide});
  *gemm.mutable_b()->mutable_tensor() = Generated("normal", 2, "bf16", {kSide, kSide});
  gemm.set_arithmetic("sm90");
  call("Engine/Gemm", gemm);
  const auto product = call.Last<v1::GemmResponse>();
  v1::CompareRequest compare;
  *compare.mutable_subject() = Inline("f32", {kSide, kSide}, product.d().data());
  *compare.mutable_reference() = Generated("normal", 4, "f32", {kSide, kSide});
  call("Engine/Compare", compare);
  v1::ExplainRequest explain;
  *explain.mutable_gemm()->mutable_gemm() = gemm;
  explain.mutable_gemm()->mutable_gemm()->clear_arithmetic();
  *explain.mutable_gemm()->mutable_d() = compare.subject();
  call("Engine/Explain", explain);
  gemm.set_arithmetic("sm91");
  call("Engine/Gemm", gemm);  // Refused, with a detail.
}

v1::ExecuteRequest RunRequest(const std::string& id, int64_t side) {
  v1::ExecuteRequest request;
  *request.mutable_spec() = LinearSpec(side, side, side);
  request.set_request_id(id);
  return request;
}

/// A run that is cancelled while it waits or computes.
void FillCancelledRun(Caller& call, const std::shared_ptr<grpc::Channel>& channel) {
  v1::ExecuteRequest request = RunRequest("", 1024);
  for (const char* recipe : {"bf16", "fp8_current", "fp8_block", "mxfp8", "nvfp4"}) {
    *request.mutable_spec()->add_variants() = MakeVariant(recipe, "none", "auto");
  }
  std::atomic<bool> has_ended{false};
  std::thread running(
      [&] { (void)Ask(channel, "quantgate.v1.Engine/Execute", {request.SerializeAsString()}); });
  v1::Run run;
  while (run.state() != v1::RUN_STATE_QUEUED && run.state() != v1::RUN_STATE_RUNNING) {
    v1::ListRunsResponse list;
    const Exchange listed = Ask(channel, "quantgate.v1.Engine/ListRuns", {""});
    if (listed.responses.empty() || !list.ParseFromString(listed.responses[0])) break;
    if (list.runs_size() > 0) run = list.runs(0);
  }
  v1::CancelRunRequest cancel;
  cancel.set_run_id(run.run_id());
  call("Engine/CancelRun", cancel);
  running.join();
}

void FillRuns(Caller& call, const std::shared_ptr<grpc::Channel>& channel) {
  v1::ExecuteRequest small = RunRequest("run-small", kSide);
  *small.mutable_spec()->add_variants() = MakeVariant("bf16", "none", "sm90");
  small.mutable_spec()->set_keep_outputs(true);
  call("Engine/Execute", small);
  v1::ExecuteRequest large = RunRequest("run-large", 2 * kSide);
  for (const char* recipe : {"fp8_current", "mxfp8"}) {
    *large.mutable_spec()->add_variants() = MakeVariant(recipe, "none", "auto");
  }
  large.mutable_spec()->set_error_budget(true);
  call("Engine/Execute", large);
  v1::ExecuteRequest streamed = RunRequest("", kSide);
  streamed.set_stream_outputs(true);
  for (const char* recipe : {"bf16", "fp8_current"}) {
    *streamed.mutable_spec()->add_variants() = MakeVariant(recipe, "none", "sm90");
  }
  streamed.mutable_spec()->set_reference(0);
  call("Engine/Execute", streamed);
  FillCancelledRun(call, channel);
}

void FillSession(Caller& call) {
  v1::OpenSessionRequest open;
  v1::SessionLayer& layer = *open.mutable_spec()->add_layers();
  layer.set_name("fc1");
  layer.mutable_layer()->set_kind("linear");
  (*open.mutable_parameters())["fc1.weight"] = Generated("normal", 7, "bf16", {kSide, kSide});
  open.mutable_spec()->mutable_recipe()->set_name("fp8_delayed");
  open.mutable_spec()->set_masters("f32");
  open.mutable_spec()->mutable_adam()->set_learning_rate(0.01f);
  open.set_request_id("open-1");
  call("Sessions/Open", open);
  const std::string id = call.Last<v1::Session>().session_id();
  v1::SessionStepRequest step;
  step.set_session_id(id);
  *step.mutable_forward()->mutable_x() = Generated("normal", 8, "bf16", {kSide, kSide});
  call("Sessions/Step", step);
  step.set_expected_step(1);
  *step.mutable_backward()->mutable_grad_output() = Generated("normal", 9, "bf16", {kSide, kSide});
  call("Sessions/Step", step);
  step.set_expected_step(2);
  step.mutable_optimize();
  call("Sessions/Step", step);
  v1::CheckpointRequest checkpoint;
  checkpoint.set_session_id(id);
  call("Sessions/Checkpoint", checkpoint);
  v1::GetSessionRequest get;
  get.set_session_id(id);
  get.set_with_tensors(true);
  call("Sessions/Get", get);
  v1::CloseSessionRequest close;
  close.set_session_id(id);
  call("Sessions/Close", close);
}

void AskBlob(Caller& call, const v1::Digest& digest) {
  v1::FindMissingRequest find;
  *find.add_digests() = digest;
  *find.add_digests() = DigestFor("never stored");
  call("Blobs/FindMissing", find);
  v1::ReadRequest read;
  *read.mutable_digest() = digest;
  call("Blobs/Read", read);
  read.set_offset(7);
  read.set_limit(100);
  call("Blobs/Read", read);
}

void AskTensors(Caller& call) {
  v1::ListTensorsRequest list;
  call("Tensors/List", list);
  const auto tensors = call.Last<v1::ListTensorsResponse>();
  list.set_page_size(2);
  do {
    call("Tensors/List", list);
    list.set_page_token(call.Last<v1::ListTensorsResponse>().next_page_token());
  } while (!list.page_token().empty());
  for (const v1::TensorRecord& tensor : tensors.tensors()) {
    v1::DescribeTensorRequest describe;
    *describe.mutable_tensor() = Stored(tensor);
    describe.set_with_statistics(true);
    call("Tensors/Describe", describe);
    describe.mutable_tensor()->mutable_stored()->clear_type();
    describe.set_with_statistics(false);
    call("Tensors/Describe", describe);
  }
}

void AskRuns(Caller& call) {
  v1::ListRunsRequest list;
  call("Engine/ListRuns", list);
  const auto runs = call.Last<v1::ListRunsResponse>();
  list.set_page_size(3);
  do {
    call("Engine/ListRuns", list);
    list.set_page_token(call.Last<v1::ListRunsResponse>().next_page_token());
  } while (!list.page_token().empty());
  for (const v1::Run& run : runs.runs()) {
    v1::GetRunRequest get;
    get.set_run_id(run.run_id());
    call("Engine/GetRun", get);
    v1::WaitRunRequest wait;
    wait.set_run_id(run.run_id());
    call("Engine/WaitRun", wait);
    wait.set_from_sequence(run.last_sequence());
    call("Engine/WaitRun", wait);
    wait.set_from_sequence(run.last_sequence() + 1);
    call("Engine/WaitRun", wait);
  }
  v1::GetRunRequest unknown;
  unknown.set_run_id("run-00000000000000000000000000000000");
  call("Engine/GetRun", unknown);
}

/// The outputs that a run was told to keep.
void AskOutputs(Caller& call, const Exchange& earlier) {
  for (const std::string& response : earlier.responses) {
    v1::RunEvent event;
    if (!event.ParseFromString(response)) continue;
    for (const v1::OutputReport& output : event.variant().report().outputs()) {
      if (output.tensor().has_digest()) AskBlob(call, output.tensor().digest());
    }
  }
}

/// A request that was made before, again and with other content.
template <typename Request>
void AskAgain(Caller& call, const Exchange& earlier, const std::string& method,
              void (*change)(Request&)) {
  if (earlier.method != "quantgate.v1." + method) return;
  Request request;
  (void)request.ParseFromString(earlier.requests[0]);
  if (request.request_id().empty()) return;
  call(method, request);
  change(request);
  call(method, request);
}

}  // namespace

std::vector<Exchange> FillStore(const std::shared_ptr<grpc::Channel>& channel) {
  Caller call(channel);
  FillBlobs(call);
  FillTensors(call);
  FillCalls(call);
  FillRuns(call, channel);
  FillSession(call);
  return call.Take();
}

std::vector<Exchange> AskStore(const std::shared_ptr<grpc::Channel>& channel,
                               const std::vector<Exchange>& filled) {
  Caller call(channel);
  AskTensors(call);
  AskRuns(call);
  v1::OpenSessionRequest opened;
  for (const Exchange& earlier : filled) {
    AskAgain<v1::PutTensorRequest>(call, earlier, "Tensors/Put",
                                   [](auto& request) { request.set_name("other"); });
    AskAgain<v1::GenerateTensorRequest>(call, earlier, "Tensors/Generate", [](auto& request) {
      request.mutable_spec()->set_seed(77);
    });
    AskAgain<v1::ExecuteRequest>(call, earlier, "Engine/Execute",
                                 [](auto& request) { request.mutable_spec()->set_seed(77); });
    if (earlier.method == "quantgate.v1.Engine/Execute") AskOutputs(call, earlier);
    if (earlier.method == "quantgate.v1.Blobs/QueryWrite")
      call.Bytes("Blobs/QueryWrite", earlier.requests);
    v1::WriteRequest write;
    if (earlier.method == "quantgate.v1.Blobs/Write" &&
        write.ParseFromString(earlier.requests[0])) {
      AskBlob(call, write.header().digest());
    }
    if (earlier.method == "quantgate.v1.Sessions/Open")
      (void)opened.ParseFromString(earlier.requests[0]);
    v1::CheckpointResponse checkpoint;
    if (earlier.method == "quantgate.v1.Sessions/Checkpoint" && !earlier.responses.empty() &&
        checkpoint.ParseFromString(earlier.responses[0])) {
      AskBlob(call, checkpoint.digest());
      v1::RestoreSessionRequest restore;
      *restore.mutable_checkpoint() = checkpoint.digest();
      *restore.mutable_spec() = opened.spec();
      call("Sessions/Restore", restore);
    }
  }
  return call.Take();
}

}  // namespace quantgate
