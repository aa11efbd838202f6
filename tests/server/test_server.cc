#include "tests/server/test_server.h"

#include <arpa/inet.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <future>

#include "kernels/tensor/fingerprint.h"

namespace quantgate {

TestServer::TestServer(Change change) {
  options_.listen = {"127.0.0.1:0"};
  options_.start_http = &HttpEndpoint::Start;
  options_.data_dir = directory_.path() + "/data";
  options_.engine.threads = 2;
  if (change) change(options_);
  Start();
}

void TestServer::Start() {
  auto server = Server::Start(options_);
  if (!server.ok()) {
    ADD_FAILURE() << server.status();
    std::abort();
  }
  server_ = *std::move(server);
  channel_ = NewChannel();
  info_ = v1::Info::NewStub(channel_);
  blobs_ = v1::Blobs::NewStub(channel_);
  tensors_ = v1::Tensors::NewStub(channel_);
  engine_ = v1::Engine::NewStub(channel_);
}

void TestServer::Restart() {
  server_ = nullptr;
  Start();
}

std::string TestServer::address() const {
  return "127.0.0.1:" + std::to_string(server_->ports().front());
}

std::shared_ptr<grpc::Channel> TestServer::NewChannel() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address(), grpc::InsecureChannelCredentials(), arguments);
}

namespace {

int ConnectTo(int port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // As long as probes wait at most.
  const timeval patience = {10, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  EXPECT_EQ(::connect(socket, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  return socket;
}

}  // namespace

int TestServer::ConnectHttp() { return ConnectTo(server_->metrics_port()); }

std::string TestServer::HttpGet(const std::string& path) {
  return HttpGetFrom(server_->metrics_port(), path);
}

std::string HttpGetFrom(int port, const std::string& path) {
  const int socket = ConnectTo(port);
  std::string response;
  const std::string request =
      "GET " + path + " HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
  (void)!::write(socket, request.data(), request.size());
  char buffer[65536];
  for (ssize_t count; (count = ::read(socket, buffer, sizeof(buffer))) > 0;) {
    response.append(buffer, static_cast<size_t>(count));
  }
  ::close(socket);
  return response;
}

std::string TestBytes(size_t size, uint32_t seed) {
  std::string bytes(size, '\0');
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (char& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<char>(state >> 56);
  }
  return bytes;
}

v1::Digest DigestFor(const std::string& bytes) {
  const Sha256 sha256 = Sha256Of(std::as_bytes(std::span(bytes)));
  v1::Digest digest;
  digest.set_sha256(sha256.bytes.data(), sha256.bytes.size());
  digest.set_size(static_cast<int64_t>(bytes.size()));
  return digest;
}

v1::ErrorDetail DetailOf(const grpc::Status& status) {
  v1::ErrorDetail detail;
  EXPECT_TRUE(detail.ParseFromString(status.error_details()));
  return detail;
}

WriteOutcome WriteMessages(v1::Blobs::Stub& blobs, const std::vector<v1::WriteRequest>& messages) {
  WriteOutcome outcome;
  grpc::ClientContext context;
  const auto writer = blobs.Write(&context, &outcome.response);
  for (const v1::WriteRequest& message : messages) {
    if (!writer->Write(message)) break;
  }
  writer->WritesDone();
  outcome.status = writer->Finish();
  return outcome;
}

WriteOutcome WriteBlob(v1::Blobs::Stub& blobs, const std::string& upload_id,
                       const std::string& bytes, int64_t offset, size_t chunk_bytes) {
  std::vector<v1::WriteRequest> messages(1);
  messages[0].mutable_header()->set_upload_id(upload_id);
  *messages[0].mutable_header()->mutable_digest() = DigestFor(bytes);
  messages[0].mutable_header()->set_offset(offset);
  for (size_t at = static_cast<size_t>(offset); at < bytes.size(); at += chunk_bytes) {
    if (at != static_cast<size_t>(offset)) messages.emplace_back();
    messages.back().set_data(bytes.substr(at, chunk_bytes));
  }
  return WriteMessages(blobs, messages);
}

grpc::Status ReadBlob(v1::Blobs::Stub& blobs, const v1::Digest& digest, int64_t offset,
                      int64_t limit, std::string* bytes) {
  v1::ReadRequest request;
  *request.mutable_digest() = digest;
  request.set_offset(offset);
  request.set_limit(limit);
  grpc::ClientContext context;
  const auto reader = blobs.Read(&context, request);
  bytes->clear();
  v1::ReadResponse response;
  while (reader->Read(&response)) bytes->append(response.data());
  return reader->Finish();
}

grpc::Status SendBytes(TestServer& server, const std::string& method, const std::string& message,
                       std::string* response) {
  grpc::Slice slice(message);
  grpc::ByteBuffer request_buffer(&slice, 1), response_buffer;
  grpc::GenericStub stub(server.channel());
  grpc::ClientContext context;
  std::promise<grpc::Status> done;
  stub.UnaryCall(&context, method, grpc::StubOptions(), &request_buffer, &response_buffer,
                 [&](grpc::Status status) { done.set_value(std::move(status)); });
  grpc::Status status = done.get_future().get();
  std::vector<grpc::Slice> slices;
  if (status.ok()) (void)response_buffer.Dump(&slices);
  for (const auto& part : slices) {
    response->append(reinterpret_cast<const char*>(part.begin()), part.size());
  }
  return status;
}

int HealthOf(TestServer& server, const std::string& service) {
  std::string request =
      service.empty() ? "" : std::string("\x0A") + static_cast<char>(service.size()) + service;
  std::string bytes;
  if (!SendBytes(server, "/grpc.health.v1.Health/Check", request, &bytes).ok()) return -1;
  return bytes.size() == 2 && bytes[0] == 0x08 ? bytes[1] : -1;
}

double MetricValue(const std::string& text, const std::string& series) {
  const size_t at = text.find("\n" + series + " ");
  return at == std::string::npos ? -1 : std::stod(text.substr(at + series.size() + 2));
}

grpc::Status ExecuteToEnd(TestServer& server, const v1::ExecuteRequest& request,
                          v1::RunFinished& finished) {
  grpc::ClientContext context;
  const auto reader = server.engine().Execute(&context, request);
  v1::RunEvent event;
  while (reader->Read(&event)) {
  }
  finished = event.finished();
  return reader->Finish();
}

v1::TensorSource Generated(const std::string& distribution, uint64_t seed, const std::string& dtype,
                           const std::vector<int64_t>& shape) {
  v1::TensorSource source;
  v1::GeneratorSpec& spec = *source.mutable_generate();
  spec.set_distribution(distribution);
  spec.set_seed(seed);
  spec.mutable_type()->set_dtype(dtype);
  spec.mutable_type()->mutable_shape()->Add(shape.begin(), shape.end());
  return source;
}

v1::TensorSource Inline(const std::string& dtype, const std::vector<int64_t>& shape,
                        const std::string& bytes) {
  v1::TensorSource source;
  source.mutable_inline_()->mutable_type()->set_dtype(dtype);
  source.mutable_inline_()->mutable_type()->mutable_shape()->Add(shape.begin(), shape.end());
  source.mutable_inline_()->set_data(bytes);
  return source;
}

v1::Variant MakeVariant(const std::string& recipe, const std::string& backward_override,
                        const std::string& arithmetic) {
  v1::Variant variant;
  variant.mutable_recipe()->set_name(recipe);
  variant.set_backward_override(backward_override);
  variant.set_arithmetic(arithmetic);
  return variant;
}

v1::RunSpec LinearSpec(int64_t m, int64_t n, int64_t k) {
  v1::RunSpec spec;
  spec.mutable_step()->mutable_layer()->set_kind("linear");
  *spec.mutable_step()->mutable_x() = Generated("normal", 1, "bf16", {m, k});
  (*spec.mutable_step()->mutable_parameters())["weight"] = Generated("normal", 2, "bf16", {n, k});
  *spec.mutable_step()->mutable_grad_output() = Generated("normal", 3, "bf16", {m, n});
  return spec;
}

}  // namespace quantgate
