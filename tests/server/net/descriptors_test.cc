// More connections than quantgated has descriptors for: it refuses those of gRPC beyond its bound,
// says so, and serves again once they have gone; those of HTTP give way. In a process of its own,
// whose descriptors are few.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/client/process.h"
#include "tests/server/temporary_directory.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kDescriptors = 64;
constexpr int kConnections = 200;
constexpr int kSlowConnections = 700;
constexpr auto kRecovery = std::chrono::seconds(5);
/// An HTTP/2 client's first bytes, with empty settings (RFC 9113, section 3.4).
constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0";
constexpr size_t kFrameHeaderBytes = 9;

sockaddr_in LoopbackPort(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

class Connection {
 public:
  explicit Connection(int port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const sockaddr_in to = LoopbackPort(port);
    const timeval patience = {1, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    (void)::connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof(to));
  }
  Connection(Connection&& other) noexcept : socket_(other.socket_) { other.socket_ = -1; }
  ~Connection() {
    if (socket_ >= 0) ::close(socket_);
  }

  /// What comes back, up to `least` bytes or the connection's end.
  std::string Ask(const std::string& question, size_t least) {
    (void)!::send(socket_, question.data(), question.size(), MSG_NOSIGNAL);
    std::string answer;
    char buffer[4096];
    while (answer.size() < least) {
      const ssize_t count = ::read(socket_, buffer, sizeof(buffer));
      if (count <= 0) break;
      answer.append(buffer, static_cast<size_t>(count));
    }
    return answer;
  }

 private:
  int socket_;
};

bool IsServed(int port) {
  return Connection(port)
             .Ask(std::string(kPreface, sizeof(kPreface) - 1), kFrameHeaderBytes)
             .size() >= kFrameHeaderBytes;
}

std::string Get(int port, const std::string& path) {
  return Connection(port).Ask(
      "GET " + path + " HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n", std::string::npos);
}

bool Within(std::chrono::steady_clock::duration time, const std::function<bool()>& is_so) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (!is_so()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::yield();
  }
  return true;
}

/// The number behind `mark`, which an address ends with.
int PortBehind(const std::string& line, const std::string& mark) {
  return std::stoi(line.substr(line.find(mark) + mark.size()));
}

class DescriptorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string ready = server.ReadLine();
    ASSERT_THAT(ready, StartsWith("quantgated ready on "));
    port = PortBehind(ready, "on 127.0.0.1:");
    http_port = PortBehind(ready, "http://127.0.0.1:");
  }

  const TemporaryDirectory directory;
  const std::string limit = std::to_string(kDescriptors);
  BackgroundProcess server{{"/usr/bin/prlimit", "--nofile=" + limit + ":" + limit,
                            QUANTGATED_PROGRAM, "--listen", "127.0.0.1:0", "--metrics-listen",
                            "127.0.0.1:0", "--data-dir", directory.Path("data")}};
  int port = 0, http_port = 0;
};

TEST_F(DescriptorsTest, ServesAgainOnceConnectionsBeyondTheLimitHaveGone) {
  ASSERT_TRUE(IsServed(port));
  {
    std::vector<Connection> connections;
    for (int i = 0; i < kConnections; ++i) connections.emplace_back(port);
    EXPECT_TRUE(Within(kRecovery, [&] {
      return Get(http_port, "/readyz").starts_with("HTTP/1.1 503");
    })) << "ready although no connection is taken";
    const std::string metrics = Get(http_port, "/metrics");
    EXPECT_THAT(metrics, HasSubstr("\nquantgate_connections_refused_total "));
    EXPECT_THAT(metrics, Not(HasSubstr("\nquantgate_connections_refused_total 0\n")));
    EXPECT_THAT(metrics, HasSubstr("\nquantgate_ready{component=\"engine\"} 0\n"));
  }
  EXPECT_TRUE(Within(kRecovery, [&] { return IsServed(port); })) << "no connection is served";
  EXPECT_TRUE(Within(kRecovery, [&] {
    return Get(http_port, "/readyz").starts_with("HTTP/1.1 200");
  })) << "not ready";
  EXPECT_THAT(Get(http_port, "/metrics"), HasSubstr("\nquantgate_accept_failures_total 0\n"));
  server.Signal(SIGTERM);
  const ProcessResult result = server.Wait();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("further ones are refused"));
}

/// As many connections to a port as it is told, none of which asks: half of them say a little, and
/// each that is closed is replaced.
class SlowConnections {
 public:
  SlowConnections(int port, int count) : port_(port) {
    for (int i = 0; i < count; ++i) slow_.push_back({-1, POLLIN, 0});
    for (size_t i = 0; i < slow_.size(); ++i) Connect(i);
    thread_ = std::thread([this] { Keep(); });
  }
  ~SlowConnections() {
    is_over_ = true;
    thread_.join();
    for (const pollfd& slow : slow_) ::close(slow.fd);
  }

 private:
  void Connect(size_t i) {
    if (slow_[i].fd >= 0) ::close(slow_[i].fd);
    slow_[i].fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const sockaddr_in to = LoopbackPort(port_);
    (void)::connect(slow_[i].fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to));
    if (i % 2 == 0) (void)::send(slow_[i].fd, "GET /heal", 9, MSG_NOSIGNAL);
  }
  void Keep() {
    while (!is_over_) {
      ::poll(slow_.data(), slow_.size(), 100);
      for (size_t i = 0; i < slow_.size(); ++i) {
        if (slow_[i].revents != 0) Connect(i);
      }
    }
  }

  const int port_;
  std::vector<pollfd> slow_;
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

// HTTP's connections have a share of their own, in which slow ones make room.
TEST_F(DescriptorsTest, SlowHttpConnectionsKeepNobodyOut) {
  {
    const SlowConnections slow(http_port, kSlowConnections);
    for (int round = 0; round < 3; ++round) {
      EXPECT_TRUE(Within(kRecovery, [&] { return IsServed(port); })) << "no connection is served";
      EXPECT_TRUE(Within(kRecovery, [&] {
        return Get(http_port, "/healthz").starts_with("HTTP/1.1 200");
      })) << "no probe is answered";
      EXPECT_TRUE(Within(kRecovery, [&] {
        return Get(http_port, "/readyz").starts_with("HTTP/1.1 200");
      })) << "not ready";
    }
  }
  EXPECT_THAT(Get(http_port, "/metrics"), HasSubstr("\nquantgate_accept_failures_total 0\n"));
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait().exit_code, 0);
}

// What is left beside descriptors that are open already is too little to serve anybody with.
TEST(DescriptorLimit, RefusesToStartWithTooFew) {
  const TemporaryDirectory directory;
  const ProcessResult result =
      RunProcess({"/usr/bin/prlimit", "--nofile=32:32", QUANTGATED_PROGRAM, "--listen",
                  "127.0.0.1:0", "--metrics-listen", "", "--data-dir", directory.Path("data")});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("RLIMIT_NOFILE is 32"));
}

// SIGXFSZ would end either program (153) without a word.
TEST(FileSizeLimit, IsRefusedInWords) {
  const TemporaryDirectory directory;
  const ProcessResult server =
      RunProcess({"/usr/bin/prlimit", "--fsize=1024:1024", QUANTGATED_PROGRAM, "--listen",
                  "127.0.0.1:0", "--metrics-listen", "", "--data-dir", directory.Path("data")});
  EXPECT_EQ(server.exit_code, 2);
  EXPECT_THAT(server.err, HasSubstr("RLIMIT_FSIZE"));
  const std::string folder = directory.Path("out");
  std::filesystem::create_directory(folder);
  const ProcessResult command =
      RunProcess({"/usr/bin/prlimit", "--fsize=1024:1024", QUANTGATE_PROGRAM, "quantize",
                  "gen:normal,shape=64x64", "--recipe", "fp8_current", "--role", "input", "-o",
                  folder + "/codes.safetensors"});
  EXPECT_EQ(command.exit_code, 7) << command.err;
  EXPECT_THAT(command.err, HasSubstr("File too large"));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
