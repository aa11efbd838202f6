// How near uploads and small calls come to what the machine can do, measured in one run:
//   upload of 1 GiB over loopback, digest known, against a bare gRPC stream of the same messages,
//   SHA-256 on one core, and writes with one fsync to the same directory, through the page cache
//   and past it; a small unary call against a bare gRPC echo; 1000 open upload streams over 16
//   connections: threads and memory of the server.
//
//   server_upload_bench [--megabytes=1024] [--rounds=3] [--device=cpu] [DIRECTORY ...]     default:
//   the temporary directory and /dev/shm. With --device=cuda uploads also go to that device's
//   memory, and the ceilings are the bare stream and SHA-256.
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
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/blob_transfer.h"
#include "client/channel_connection.h"
#include "server/limits.h"
#include "server/process_memory.h"
#include "server/store/direct_file.h"
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
[[noreturn]] void Serve(const std::string& device, const std::string& data_dir, int to_parent) {
  KeepLargeBuffers();  // As quantgated does.
  ServerOptions options;
  options.devices = {device};
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
  ServerProcess(const std::string& device, const std::string& data_dir) {
    int ends[2];
    if (::pipe(ends) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      const std::string descriptor = std::to_string(ends[1]);
      ::execl("/proc/self/exe", "server_upload_bench", "--serve", device.c_str(), data_dir.c_str(),
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
  const auto connection = ChannelConnection::Dial(address, {}).value();
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

/// Through the page cache or past it; no time where the file system has no such way.
std::optional<double> WriteAndSync(const std::string& directory, const std::string& bytes,
                                   bool is_direct) {
  const std::string path = directory + "/raw";
  const auto start = Clock::now();
  File file = File::OpenForWriting(path).value();
  DirectFile direct_file = is_direct ? DirectFile::Open(path) : DirectFile();
  const auto all = std::as_bytes(std::span(bytes));
  const size_t step = is_direct ? kUploadWriteBytes : kChunkBytes;
  for (size_t at = 0; at < all.size(); at += step) {
    const auto part = all.subspan(at, std::min(all.size() - at, step));
    const auto offset = static_cast<int64_t>(at);
    const auto direct = direct_file.WriteFront(offset, {&part, 1}).value();
    if (is_direct && direct == 0) return std::nullopt;
    if (!file.Write(offset + direct, part.subspan(direct)).ok()) std::exit(1);
  }
  if (!file.Sync().ok()) std::exit(1);
  const double seconds = SecondsSince(start);
  RemoveFile(path);
  return seconds;
}

/// What one kind of transfer came to in each round: its rate, that over the smallest of the
/// round's ceilings, and CPU seconds of client and server together.
struct Rounds {
  std::vector<double> rates, ratios, cpu;
};

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

constexpr const char* kCpu = "cpu";
constexpr const char* kBareStream = "bare gRPC stream";
constexpr const char* kSha256 = "SHA-256, one core";
constexpr const char* kWrites = "fsynced writes";
constexpr const char* kDirectWrites = "fsynced writes, direct";
constexpr const char* kUpload = "upload, client library";
constexpr const char* kStubUpload = "upload, generated stub";

void MeasureRound(const std::string& device, const std::string& directory, const std::string& bytes,
                  const v1::Digest& digest, std::map<std::string, Rounds>& all) {
  std::map<std::string, double> rates;
  const auto note = [&](const std::string& name, double seconds) {
    rates[name] = static_cast<double>(bytes.size()) / (1 << 20) / seconds;
  };
  const auto send = [&](const std::string& name, auto function) {
    // A fresh server process each, whose memory is as cold as after its start.
    std::filesystem::create_directories(directory);
    {
      const ServerProcess server(device, directory);
      const double before = server.CpuSeconds();
      note(name, function(server));
      all[name].cpu.push_back(server.CpuSeconds() - before);
    }
    std::filesystem::remove_all(directory);  // The next upload of these bytes is one again.
  };
  std::filesystem::create_directories(directory);
  note(kWrites, *WriteAndSync(directory, bytes, /*is_direct=*/false));
  const auto direct = WriteAndSync(directory, bytes, /*is_direct=*/true);
  if (direct.has_value()) note(kDirectWrites, *direct);
  note(kSha256, HashOnOneCore(bytes));
  send(kBareStream, [&](const ServerProcess& server) {
    return SendStream(server.bare_address(), bytes, digest, "bare");
  });
  send(kUpload, [&](const ServerProcess& server) {
    return UploadWithClient(server.address(), bytes, digest);
  });
  send(kStubUpload, [&](const ServerProcess& server) {
    return SendStream(server.address(), bytes, digest, "upload");
  });
  const double writes = std::max(rates[kWrites], rates[kDirectWrites]);
  double ceiling = std::min(rates[kSha256], rates[kBareStream]);
  if (device == kCpu) ceiling = std::min(ceiling, writes);
  for (const auto& [name, rate] : rates) {
    if (rate == 0) continue;
    all[name].rates.push_back(rate);
    all[name].ratios.push_back(rate / ceiling);
  }
}

void MeasureUploads(const std::string& device, const std::string& parent, const std::string& bytes,
                    int rounds) {
  const v1::Digest digest = DigestFor(bytes);
  std::map<std::string, Rounds> all;
  for (int round = 0; round < rounds; ++round) {
    MeasureRound(device, parent + absl::StrFormat("/quantgate-bench-%d", ::getpid()), bytes, digest,
                 all);
  }
  std::printf("upload of %d MiB to %s and %s, medians of %d rounds; ratios to a round's smallest\n",
              static_cast<int>(bytes.size() >> 20), parent.c_str(), device.c_str(), rounds);
  for (const char* name : {kBareStream, kSha256, kWrites, kDirectWrites, kUpload, kStubUpload}) {
    if (!all.contains(name)) continue;
    const Rounds& row = all[name];
    std::printf("  %-24s %7.0f MiB/s   ratio %.2f, best %.2f", name, Median(row.rates),
                Median(row.ratios), *std::max_element(row.ratios.begin(), row.ratios.end()));
    if (!row.cpu.empty()) std::printf("   %.2f s of CPU, client and server", Median(row.cpu));
    std::printf("\n");
  }
}

double MicrosecondsOfCall(v1::Blobs::Stub& stub, const v1::FindMissingRequest& request) {
  v1::FindMissingResponse response;
  grpc::ClientContext context;
  const auto start = Clock::now();
  Check(stub.FindMissing(&context, request, &response));
  return SecondsSince(start) * 1e6;
}

// Calls to both in turn, so that what else the machine does meets both.
void MeasureCalls(const ServerProcess& server) {
  constexpr int kCalls = 20'000;
  const auto credentials = grpc::InsecureChannelCredentials();
  const auto real = v1::Blobs::NewStub(grpc::CreateChannel(server.address(), credentials));
  const auto bare = v1::Blobs::NewStub(grpc::CreateChannel(server.bare_address(), credentials));
  v1::FindMissingRequest request;
  *request.add_digests() = DigestFor("no such blob");
  std::vector<double> real_times, bare_times;
  for (int i = 0; i < kCalls; ++i) {
    bare_times.push_back(MicrosecondsOfCall(*bare, request));
    real_times.push_back(MicrosecondsOfCall(*real, request));
  }
  std::printf("small unary call: FindMissing %.1f us, bare echo %.1f us, ratio %.2f (medians)\n",
              Median(real_times), Median(bare_times), Median(real_times) / Median(bare_times));
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
  if (argc == 5 && std::string(argv[1]) == "--serve") {
    quantgate::Serve(argv[2], argv[3], std::stoi(argv[4]));
  }
  int megabytes = 1024, rounds = 3;
  std::string device = quantgate::kCpu;
  std::vector<std::string> directories;
  for (int i = 1; i < argc; ++i) {
    const std::pair<std::string, std::string> option =
        absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    if (option.first == "--megabytes") {
      (void)absl::SimpleAtoi(option.second, &megabytes);
    } else if (option.first == "--rounds") {
      (void)absl::SimpleAtoi(option.second, &rounds);
    } else if (option.first == "--device") {
      device = option.second;
    } else {
      directories.emplace_back(argv[i]);
    }
  }
  if (directories.empty()) directories = {std::filesystem::temp_directory_path(), "/dev/shm"};
  const std::string bytes = quantgate::TestBytes(static_cast<size_t>(megabytes) << 20);
  for (const std::string& directory : directories) {
    quantgate::MeasureUploads(device, directory, bytes, rounds);
  }
  if (device != quantgate::kCpu) return 0;

  const std::string directory = directories[0] + absl::StrFormat("/quantgate-bench-%d", ::getpid());
  {
    quantgate::ServerProcess server(device, directory);
    quantgate::MeasureCalls(server);
    quantgate::MeasureManyStreams(server, 1000, 16);
  }
  std::filesystem::remove_all(directory);
  return 0;
}
