// Clients that take kSendRateLeast are never cut off, those that take nothing are: by a clock that
// only the test moves, and by the frames of HTTP/2 (RFC 9113), since a gRPC client takes a message
// whole or not at all.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>

#include "server/limits.h"
#include "tests/server/runs/run_outcome.h"
#include "tests/server/test_server.h"

namespace quantgate {
namespace QG_TEST_FILE {

using Clock = std::chrono::steady_clock;

std::atomic<Clock::rep> advanced{0};
Clock::time_point TestNow() { return Clock::time_point(Clock::duration(1 + advanced.load())); }
void Advance(Clock::duration time) { advanced += time.count(); }

/// One call of a server-streaming or unary method, whose answer comes as far as it is allowed to.
class SlowReader {
 public:
  SlowReader(int port, const std::string& path, const google::protobuf::Message& request)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
    const auto text = [](const std::string& value) {
      return std::string(1, static_cast<char>(value.size())) + value;
    };
    // RFC 7541 without compression: indexed ":method: POST" and ":scheme: http", then ":path",
    // ":authority" and "content-type" by indexed name, "te" as it is.
    const std::string headers = "\x83\x86\x04" + text(path) + "\x01" + text("test") + "\x0f\x10" +
                                text("application/grpc") + std::string(1, '\0') + text("te") +
                                text("trailers");
    const std::string message = request.SerializeAsString();
    SendAll("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(kSettings, 0, 0, "") +
            Frame(kWindowUpdate, 0, 0, Number(1 << 30)) + Frame(kHeaders, kEndHeaders, 1, headers) +
            Frame(kData, kEndStream, 1,
                  std::string(1, '\0') + Number(static_cast<uint32_t>(message.size())) + message));
  }
  ~SlowReader() { ::close(socket_); }
  SlowReader(const SlowReader&) = delete;
  SlowReader& operator=(const SlowReader&) = delete;

  /// Lets that much more come, and waits until it has, or the call has ended.
  void Take(int64_t bytes) {
    allowed_ += bytes;
    SendAll(Frame(kWindowUpdate, 0, 1, Number(static_cast<uint32_t>(bytes))));
    AwaitTaken();
  }
  /// Until all that is allowed has come, or the call has ended.
  void AwaitTaken() {
    while (taken_ < allowed_ && !has_ended_) ReceiveFrame();
  }
  /// By what has come without waiting.
  bool HasEnded() {
    char byte;
    while (!has_ended_ && ::recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0) ReceiveFrame();
    return has_ended_;
  }
  int64_t taken() const { return taken_; }

 private:
  enum Type : uint8_t {
    kData = 0,
    kHeaders = 1,
    kReset = 3,
    kSettings = 4,
    kPing = 6,
    kWindowUpdate = 8
  };
  static constexpr uint8_t kEndStream = 1, kAcknowledged = 1, kEndHeaders = 4;
  static constexpr int64_t kFirstWindow = 65535;

  static std::string Number(uint32_t value) {
    const uint32_t big_endian = htonl(value);
    return std::string(reinterpret_cast<const char*>(&big_endian), sizeof(big_endian));
  }
  static std::string Frame(uint8_t type, uint8_t flags, uint32_t stream,
                           const std::string& payload) {
    return Number(static_cast<uint32_t>(payload.size())).substr(1) +
           std::string{static_cast<char>(type), static_cast<char>(flags)} + Number(stream) +
           payload;
  }

  void SendAll(const std::string& bytes) {
    EXPECT_EQ(::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  /// False at the connection's end.
  bool ReceiveAll(char* out, size_t size) {
    for (size_t got = 0; got < size;) {
      const ssize_t count = ::read(socket_, out + got, size - got);
      if (count <= 0) return false;
      got += static_cast<size_t>(count);
    }
    return true;
  }

  void ReceiveFrame() {
    unsigned char head[9];
    std::string payload;
    bool is_there = ReceiveAll(reinterpret_cast<char*>(head), sizeof(head));
    if (is_there) {
      payload.resize(static_cast<size_t>(head[0] << 16 | head[1] << 8 | head[2]));
      is_there = ReceiveAll(payload.data(), payload.size());
    }
    const uint8_t type = head[3], flags = head[4];
    if (!is_there) {
      ADD_FAILURE() << "the connection ended";
      has_ended_ = true;
    } else if (type == kSettings && (flags & kAcknowledged) == 0) {
      SendAll(Frame(kSettings, kAcknowledged, 0, ""));
    } else if (type == kPing && (flags & kAcknowledged) == 0) {
      SendAll(Frame(kPing, kAcknowledged, 0, payload));
    } else if (type == kData) {
      taken_ += static_cast<int64_t>(payload.size());
    }
    const bool is_last = (type == kData || type == kHeaders) && (flags & kEndStream) != 0;
    if (type == kReset || is_last) has_ended_ = true;
  }

  const int socket_;
  int64_t allowed_ = kFirstWindow, taken_ = 0;
  bool has_ended_ = false;
};

/// A little more than kSendRateLeast.
constexpr auto kBetween = std::chrono::seconds(5);
constexpr int64_t kTaken = 5 * kSendRateLeast + 1024;

class SlowReadersTest : public testing::Test {
 protected:
  /// Until the server has looked twice for idle clients: at least once from its beginning on.
  void AwaitLook() {
    const int64_t before = looks_;
    while (looks_ < before + 2) {
    }
  }

  /// To the end of the call.
  void ReadSlowly(SlowReader& reader) {
    reader.AwaitTaken();
    while (!reader.HasEnded()) {
      Advance(kBetween);
      AwaitLook();
      reader.Take(kTaken);
    }
  }

  double CallsUnread() {
    return MetricValue(server_.HttpGet("/metrics"), "quantgate_calls_unread_total");
  }

  std::atomic<int64_t> looks_{0};
  TestServer server_{[this](ServerOptions& options) {
    options.metrics_listen = "127.0.0.1:0";
    options.now = &TestNow;
    options.maintenance_period = std::chrono::milliseconds(1);
    // The last thing that a look for idle clients is followed by.
    options.read_disk_room = [this](const std::string& path) {
      ++looks_;
      return ReadDiskRoom(path);
    };
  }};
};

TEST_F(SlowReadersTest, OfABlobAreServed) {
  const std::string bytes = TestBytes(6 << 20);
  ASSERT_TRUE(WriteBlob(server_.blobs(), "slow", bytes).status.ok());
  v1::ReadRequest request;
  *request.mutable_digest() = DigestFor(bytes);
  SlowReader reader(server_.server().ports()[0], "/quantgate.v1.Blobs/Read", request);
  // So quickly that the pieces grow as large as they get.
  reader.Take(3 << 20);
  ReadSlowly(reader);
  EXPECT_GT(reader.taken(), 6 << 20);
  EXPECT_EQ(CallsUnread(), 0);
}

TEST_F(SlowReadersTest, OfARunAreServed) {
  v1::ExecuteRequest execute;
  *execute.mutable_spec() = LinearSpec(512, 512, 256);
  *execute.mutable_spec()->add_variants() = MakeVariant("fp8_current", "", "sm90");
  v1::RunFinished finished;
  const grpc::Status executed = ExecuteToEnd(server_, execute, finished);
  ASSERT_TRUE(executed.ok()) << executed.error_message();
  const std::vector<v1::Run> runs = ListRuns(server_);
  ASSERT_EQ(runs.size(), 1u);
  v1::WaitRunRequest request;
  request.set_run_id(runs[0].run_id());
  SlowReader reader(server_.server().ports()[0], "/quantgate.v1.Engine/WaitRun", request);
  ReadSlowly(reader);
  EXPECT_GT(reader.taken(), 1 << 20);
  EXPECT_EQ(CallsUnread(), 0);
}

TEST_F(SlowReadersTest, OfAnAnswerAreServed) {
  v1::QuantizeRequest request;
  *request.mutable_tensor() = Generated("normal", 1, "bf16", {1000, 1024});
  request.mutable_recipe()->set_name("fp8_current");
  request.set_role("input");
  request.set_rowwise(true);
  SlowReader reader(server_.server().ports()[0], "/quantgate.v1.Engine/Quantize", request);
  ReadSlowly(reader);
  EXPECT_GT(reader.taken(), 1'000'000);
  EXPECT_EQ(CallsUnread(), 0);
}

// 65,535 bytes of HTTP/2's first window are less than the first message of 64 KiB, for which there
// are 45 s and what it takes at 16 KiB/s.
TEST_F(SlowReadersTest, WhoTakesNothingIsEnded) {
  const std::string bytes = TestBytes(1 << 20);
  ASSERT_TRUE(WriteBlob(server_.blobs(), "unread", bytes).status.ok());
  v1::ReadRequest request;
  *request.mutable_digest() = DigestFor(bytes);
  SlowReader reader(server_.server().ports()[0], "/quantgate.v1.Blobs/Read", request);
  reader.AwaitTaken();
  Advance(std::chrono::seconds(49));
  AwaitLook();
  EXPECT_FALSE(reader.HasEnded());
  Advance(std::chrono::seconds(1));
  while (!reader.HasEnded()) {
  }
  AwaitLook();  // It is counted by the time that the look ends.
  EXPECT_EQ(CallsUnread(), 1);
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
