// How near uploads and small calls come to what the machine can do, measured in one run:
//   upload of 1 GiB over loopback, digest known, against a bare gRPC stream of the same messages,
//   SHA-256 on one core, and writes with one fsync to the same directory; a small unary call
//   against a bare gRPC echo; 1000 open upload streams over 16 connections: threads and memory of
//   the server.
//
//   server_upload_bench [--megabytes=1024] [--rounds=3] [DIRECTORY ...]     default: the temporary
//   directory and /dev/shm
#include <grpcpp/create_channel.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/upload.h"
#include "server/allocator.h"
#include "server/limits.h"
#include "server/store/disk.h"
#include "tests/server/test_server.h"

namespace quantgate {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The same API without anything behind it.
class BareBlobs : public v1::Blobs::CallbackService {
 public:
  grpc::ServerReadReactor<v1::WriteRequest>* Write(grpc::CallbackServerContext*,
                                                   v1::WriteResponse*) override {
    class Drain : public grpc::ServerReadReactor<v1::WriteRequest> {
     public:
      Drain() { StartRead(&request_); }
      void OnReadDone(bool ok) override {
        if (!ok) return Finish(grpc::Status::OK);
        StartRead(&request_);
      }
      void OnDone() override { delete this; }

     private:
      v1::WriteRequest request_;
    };
    return new Drain;
  }
  grpc::ServerUnaryReactor* FindMissing(grpc::CallbackServerContext* context,
                                        const v1::FindMissingRequest* request,
                                        v1::FindMissingResponse* response) override {
    *response->mutable_missing() = request->digests();
    auto* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

/// Runs both servers and writes their two ports to a descriptor.
[[noreturn]] void Serve(const std::string& data_dir, int to_parent) {
  KeepLargeBuffers();  // As quantgated does.
  ServerOptions options;
  options.listen = {"127.0.0.1:0"};
  options.data_dir = data_dir;
  auto server = Server::Start(options).value();
  BareBlobs bare;
  grpc::ServerBuilder builder;
  int bare_port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &bare_port);
  builder.RegisterService(&bare);
  const auto bare_server = builder.BuildAndStart();
  const int ports[2] = {server->ports()[0], bare_port};
  if (::write(to_parent, ports, sizeof(ports)) != sizeof(ports)) std::abort();
  bare_server->Wait();
  std::abort();
}

/// Both servers in a process of their own, so that threads and memory are theirs. This program
/// again, with --serve, since gRPC does not survive a fork.
class ServerProcess {
 public:
  explicit ServerProcess(const std::string& data_dir) {
    int ends[2];
    if (::pipe(ends) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      const std::string descriptor = std::to_string(ends[1]);
      ::execl("/proc/self/exe", "server_upload_bench", "--serve", data_dir.c_str(),
              descriptor.c_str(), nullptr);
      std::abort();
    }
    int ports[2];
    if (::read(ends[0], ports, sizeof(ports)) != sizeof(ports)) std::abort();
    ::close(ends[0]);
    ::close(ends[1]);
    address_ = absl::StrFormat("127.0.0.1:%d", ports[0]);
    bare_address_ = absl::StrFormat("127.0.0.1:%d", ports[1]);
  }
  ~ServerProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  const std::string& address() const { return address_; }
  const std::string& bare_address() const { return bare_address_; }

  /// User and system time so far, of the server and of this process.
  double CpuSeconds() const {
    std::ifstream file(absl::StrFormat("/proc/%d/stat", pid_));
    std::string text;
    std::getline(file, text);
    const std::vector<std::string> fields = absl::StrSplit(text.substr(text.rfind(')') + 2), ' ');
    rusage own;
    ::getrusage(RUSAGE_SELF, &own);
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    };
    // utime and stime are fields 14 and 15 of proc(5); the first one here is 3.
    return (std::stod(fields[11]) + std::stod(fields[12])) /
               static_cast<double>(::sysconf(_SC_CLK_TCK)) +
           seconds(own.ru_utime) + seconds(own.ru_stime);
  }
  /// A line of /proc/PID/status, such as "Threads" or "VmRSS" (kB).
  int64_t StatusValue(const std::string& name) const {
    std::ifstream status(absl::StrFormat("/proc/%d/status", pid_));
    for (std::string line; std::getline(status, line);) {
      if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1));
    }
    return -1;
  }

 private:
  pid_t pid_;
  std::string address_, bare_address_;
};

void Check(const grpc::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.error_message().c_str());
  std::exit(1);
}

/// Seconds to send `bytes` in chunks as one Write; with a name, as a real upload.
double SendStream(const std::string& address, const std::string& bytes, const v1::Digest& digest,
                  const std::string& upload_id) {
  const auto stub =
      v1::Blobs::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  const auto start = Clock::now();
  grpc::ClientContext context;
  v1::WriteResponse response;
  const auto writer = stub->Write(&context, &response);
  v1::WriteRequest request;
  request.mutable_header()->set_upload_id(upload_id);
  *request.mutable_header()->mutable_digest() = digest;
  for (size_t at = 0; at < bytes.size(); at += kChunkBytes) {
    const size_t size = std::min<size_t>(bytes.size() - at, kChunkBytes);
    request.set_data(bytes.data() + at, size);
    if (!writer->Write(request)) break;
    request.clear_header();
  }
  writer->WritesDone();
  Check(writer->Finish());
  return SecondsSince(start);
}

/// The same with the client library, which copies nothing and adds a CRC-32C to every chunk.
double UploadWithClient(const std::string& address, const std::string& bytes,
                        const v1::Digest& digest) {
  const auto connection = Connection::Dial(address, {}).value();
  const auto start = Clock::now();
  // The bytes are main's and outlive every call.
  const auto upload = WriteBlob(*connection, {std::as_bytes(std::span(bytes)), nullptr}, digest);
  if (!upload.ok() || upload->already_present) std::exit(1);
  return SecondsSince(start);
}

double HashOnOneCore(const std::string& bytes) {
  const auto start = Clock::now();
  (void)Sha256Of(std::as_bytes(std::span(bytes)));
  return SecondsSince(start);
}

double WriteAndSync(const std::string& directory, const std::string& bytes) {
  const std::string path = directory + "/raw";
  const auto start = Clock::now();
  File file = File::OpenForWriting(path).value();
  const auto all = std::as_bytes(std::span(bytes));
  for (size_t at = 0; at < all.size(); at += kChunkBytes) {
    const size_t size = std::min<size_t>(all.size() - at, kChunkBytes);
    if (!file.Write(static_cast<int64_t>(at), all.subspan(at, size)).ok()) std::exit(1);
  }
  if (!file.Sync().ok()) std::exit(1);
  const double seconds = SecondsSince(start);
  RemoveFile(path);
  return seconds;
}

/// Removes the blobs, so that the next upload is one.
void Forget(const std::string& data_dir) { std::filesystem::remove_all(data_dir); }

void MeasureUploads(const std::string& parent, const std::string& bytes, int rounds) {
  const v1::Digest digest = DigestFor(bytes);
  const double megabytes = static_cast<double>(bytes.size()) / (1 << 20);
  std::map<std::string, double> best, cpu;
  const auto note = [&](const std::string& name, double seconds) {
    best[name] = std::max(best[name], megabytes / seconds);
  };
  for (int round = 0; round < rounds; ++round) {
    const std::string directory = parent + absl::StrFormat("/quantgate-bench-%d", ::getpid());
    std::filesystem::create_directories(directory);
    note("fsynced writes", WriteAndSync(directory, bytes));
    note("SHA-256, one core", HashOnOneCore(bytes));
    const auto send = [&](const ServerProcess& server, const std::string& name, auto function) {
      const double before = server.CpuSeconds();
      note(name, function());
      const double used = server.CpuSeconds() - before;
      cpu[name] = cpu.contains(name) ? std::min(cpu[name], used) : used;
    };
    // A fresh server process each, whose memory is as cold as after its start.
    {
      const ServerProcess server(directory);
      send(server, "bare gRPC stream",
           [&] { return SendStream(server.bare_address(), bytes, digest, "bare"); });
    }
    {
      const ServerProcess server(directory);
      send(server, "upload, client library",
           [&] { return UploadWithClient(server.address(), bytes, digest); });
    }
    Forget(directory);
    {
      const ServerProcess server(directory);
      send(server, "upload, generated stub",
           [&] { return SendStream(server.address(), bytes, digest, "upload"); });
    }
    Forget(directory);
  }
  const double ceiling =
      std::min({best["fsynced writes"], best["SHA-256, one core"], best["bare gRPC stream"]});
  std::printf("upload of %.0f MiB to %s, best of %d rounds\n", megabytes, parent.c_str(), rounds);
  for (const char* name : {"bare gRPC stream", "SHA-256, one core", "fsynced writes",
                           "upload, client library", "upload, generated stub"}) {
    std::printf("  %-24s %7.0f MiB/s   %.2f of the smallest", name, best[name],
                best[name] / ceiling);
    std::printf(cpu.contains(name) ? "   %.2f s of CPU, client and server\n" : "\n", cpu[name]);
  }
}

/// Microseconds per call, the median of many.
double CallTime(v1::Blobs::Stub& stub, int calls) {
  v1::FindMissingRequest request;
  *request.add_digests() = DigestFor("no such blob");
  std::vector<double> times;
  for (int i = 0; i < calls; ++i) {
    v1::FindMissingResponse response;
    grpc::ClientContext context;
    const auto start = Clock::now();
    Check(stub.FindMissing(&context, request, &response));
    times.push_back(SecondsSince(start) * 1e6);
  }
  std::nth_element(times.begin(), times.begin() + calls / 2, times.end());
  return times[calls / 2];
}

void MeasureCalls(const ServerProcess& server) {
  const auto credentials = grpc::InsecureChannelCredentials();
  const auto real = v1::Blobs::NewStub(grpc::CreateChannel(server.address(), credentials));
  const auto bare = v1::Blobs::NewStub(grpc::CreateChannel(server.bare_address(), credentials));
  double real_time = 1e9, bare_time = 1e9;
  for (int round = 0; round < 5; ++round) {
    bare_time = std::min(bare_time, CallTime(*bare, 4000));
    real_time = std::min(real_time, CallTime(*real, 4000));
  }
  std::printf("small unary call: FindMissing %.1f us, bare echo %.1f us, ratio %.2f\n", real_time,
              bare_time, real_time / bare_time);
}

void MeasureManyStreams(const ServerProcess& server, int streams, int connections) {
  struct OpenStream {
    grpc::ClientContext context;
    v1::WriteResponse response;
    std::unique_ptr<grpc::ClientWriter<v1::WriteRequest>> writer;
  };
  const int64_t threads_before = server.StatusValue("Threads"),
                memory_before = server.StatusValue("VmRSS");
  std::vector<std::unique_ptr<v1::Blobs::Stub>> stubs;
  for (int i = 0; i < connections; ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stubs.push_back(v1::Blobs::NewStub(grpc::CreateCustomChannel(
        server.address(), grpc::InsecureChannelCredentials(), arguments)));
  }
  const std::string chunk = TestBytes(kChunkBytes);
  std::vector<std::unique_ptr<OpenStream>> open;
  for (int i = 0; i < streams; ++i) {
    auto stream = std::make_unique<OpenStream>();
    stream->writer = stubs[i % connections]->Write(&stream->context, &stream->response);
    v1::WriteRequest request;
    request.mutable_header()->set_upload_id(absl::StrFormat("open-%d", i));
    *request.mutable_header()->mutable_digest() = DigestFor(std::to_string(i));
    request.mutable_header()->mutable_digest()->set_size(4 * kChunkBytes);
    request.set_data(chunk);
    if (!stream->writer->Write(request)) Check(stream->writer->Finish());
    open.push_back(std::move(stream));
  }
  // Every stream sends three chunks more, one after another, while all are open.
  for (int round = 0; round < 3; ++round) {
    for (const auto& stream : open) {
      v1::WriteRequest request;
      request.set_data(chunk);
      if (!stream->writer->Write(request)) Check(stream->writer->Finish());
    }
  }
  std::printf(
      "%d open upload streams over %d connections, %d MiB sent: threads %d (%d idle), resident %d "
      "MiB at most "
      "(%d MiB idle)\n",
      streams, connections, 4 * streams, static_cast<int>(server.StatusValue("Threads")),
      static_cast<int>(threads_before), static_cast<int>(server.StatusValue("VmHWM") >> 10),
      static_cast<int>(memory_before >> 10));
  for (const auto& stream : open) stream->context.TryCancel();
  for (const auto& stream : open) (void)stream->writer->Finish();
}

}  // namespace
}  // namespace quantgate

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--serve") quantgate::Serve(argv[2], std::stoi(argv[3]));
  int megabytes = 1024, rounds = 3;
  std::vector<std::string> directories;
  for (int i = 1; i < argc; ++i) {
    const std::pair<std::string, std::string> option =
        absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    if (option.first == "--megabytes") {
      (void)absl::SimpleAtoi(option.second, &megabytes);
    } else if (option.first == "--rounds") {
      (void)absl::SimpleAtoi(option.second, &rounds);
    } else {
      directories.emplace_back(argv[i]);
    }
  }
  if (directories.empty()) directories = {std::filesystem::temp_directory_path(), "/dev/shm"};
  const std::string bytes = quantgate::TestBytes(static_cast<size_t>(megabytes) << 20);
  for (const std::string& directory : directories)
    quantgate::MeasureUploads(directory, bytes, rounds);

  const std::string directory = directories[0] + absl::StrFormat("/quantgate-bench-%d", ::getpid());
  {
    quantgate::ServerProcess server(directory);
    quantgate::MeasureCalls(server);
    quantgate::MeasureManyStreams(server, 1000, 16);
  }
  std::filesystem::remove_all(directory);
  return 0;
}
