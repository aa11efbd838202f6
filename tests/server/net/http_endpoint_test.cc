// HTTP by its wire: probes and metrics while other connections are slow, and what is refused.
#include "server/net/http_endpoint.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include <zlib.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <iterator>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace quantgate {
namespace QG_TEST_FILE {

using testing::AllOf;
using testing::Each;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

/// What an endpoint tells, which tests change under way.
struct Told {
  std::mutex mutex;
  std::string why_not_ready;
  std::function<std::string()> metrics = [] { return std::string("up 1\n"); };
};

class HttpEndpointTest : public testing::Test {
 protected:
  void Start(HttpEndpoint::Bounds bounds) {
    auto started = HttpEndpoint::Start("127.0.0.1:0",
                                       {[this] { return told_.metrics(); },
                                        [this] {
                                          const std::lock_guard lock(told_.mutex);
                                          return told_.why_not_ready;
                                        }},
                                       bounds);
    ASSERT_TRUE(started.ok()) << started.status();
    endpoint_ = *std::move(started);
  }

  int Connect() const {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ConnectTo(socket);
    return socket;
  }

  void ConnectTo(int socket) const {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(endpoint_->port()));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience = {30, 0};
    ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    EXPECT_EQ(::connect(socket, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  }

  static bool Send(int socket, const std::string& text) {
    return ::send(socket, text.data(), text.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(text.size());
  }

  /// All until the peer closes.
  static std::string Receive(int socket) {
    std::string text;
    char buffer[65536];
    for (ssize_t count; (count = ::read(socket, buffer, sizeof(buffer))) > 0;) {
      text.append(buffer, static_cast<size_t>(count));
    }
    return text;
  }
  static std::string ReceiveAll(int socket) {
    std::string text = Receive(socket);
    ::close(socket);
    return text;
  }

  std::string Ask(const std::string& request) {
    const int socket = Connect();
    EXPECT_TRUE(Send(socket, request));
    return ReceiveAll(socket);
  }
  std::string Get(const std::string& path) {
    return Ask("GET " + path + " HTTP/1.1\r\nHost: test\r\n\r\n");
  }

  Told told_;
  std::unique_ptr<HttpEndpoint> endpoint_;
};

std::string Body(const std::string& response) {
  return response.substr(response.find("\r\n\r\n") + 4);
}

TEST_F(HttpEndpointTest, AnswersProbesAndMetrics) {
  Start({});
  EXPECT_THAT(Get("/healthz"), AllOf(StartsWith("HTTP/1.1 200"), EndsWith("\r\n\r\nok\n")));
  EXPECT_THAT(Get("/readyz"), AllOf(StartsWith("HTTP/1.1 200"), EndsWith("\r\n\r\nready\n")));
  EXPECT_THAT(Get("/metrics"),
              AllOf(StartsWith("HTTP/1.1 200"), EndsWith("\r\n\r\nup 1\n"),
                    HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n")));
  // As the image's health check asks.
  EXPECT_THAT(Ask("GET /readyz HTTP/1.0\r\n\r\n"), HasSubstr(" 200 "));
  EXPECT_THAT(Get("/metrics?name=up"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpEndpointTest, SaysWhyItIsNotReady) {
  Start({});
  {
    const std::lock_guard lock(told_.mutex);
    told_.why_not_ready = "draining";
  }
  EXPECT_THAT(Get("/readyz"),
              AllOf(StartsWith("HTTP/1.1 503"), EndsWith("\r\n\r\nnot ready: draining\n")));
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpEndpointTest, HeadIsGetWithoutBody) {
  Start({});
  for (const auto& [path, length] :
       {std::pair{"/healthz", 3}, std::pair{"/readyz", 6}, std::pair{"/metrics", 5}}) {
    EXPECT_THAT(Ask("HEAD " + std::string(path) + " HTTP/1.1\r\nHost: test\r\n\r\n"),
                AllOf(StartsWith("HTTP/1.1 200"), EndsWith("\r\n\r\n"),
                      HasSubstr("Content-Length: " + std::to_string(length) + "\r\n")))
        << path;
  }
}

TEST_F(HttpEndpointTest, RefusesOtherPathsMethodsAndHeaders) {
  Start({});
  EXPECT_THAT(Get("/etc/passwd"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Get("/metrics/"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Ask("POST /metrics HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 405"), HasSubstr("Allow: GET, HEAD\r\n")));
  EXPECT_THAT(Ask("DELETE /readyz HTTP/1.1\r\nHost: test\r\n\r\n"), StartsWith("HTTP/1.1 405"));
  // A request that does not fit is refused, however it goes on.
  const std::string long_header = "GET /healthz HTTP/1.1\r\nHost: test\r\nX: ";
  EXPECT_THAT(Ask(long_header + std::string(kHttpConnectionBytes, 'x') + "\r\n\r\n"),
              StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpEndpointTest, CompressesMetricsForThoseWhoTakeIt) {
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += "series_" + std::to_string(i) + " 0\n";
  told_.metrics = [text] { return text; };
  Start({});
  const auto ask = [this](const std::string& accepted) {
    return Ask("GET /metrics HTTP/1.1\r\nHost: test\r\nAccept-Encoding: " + accepted + "\r\n\r\n");
  };
  for (const char* accepted : {"gzip", "deflate, GZIP;q=0.5", "*"}) {
    const std::string response = ask(accepted);
    ASSERT_THAT(response, HasSubstr("Content-Encoding: gzip\r\n")) << accepted;
    std::string body = Body(response);
    EXPECT_LT(body.size(), text.size() / 4);
    std::string unpacked(text.size() + 1, '\0');
    z_stream stream{};
    ASSERT_EQ(inflateInit2(&stream, 15 + 16), Z_OK);
    stream.next_in = reinterpret_cast<Bytef*>(body.data());
    stream.avail_in = static_cast<uInt>(body.size());
    stream.next_out = reinterpret_cast<Bytef*>(unpacked.data());
    stream.avail_out = static_cast<uInt>(unpacked.size());
    EXPECT_EQ(inflate(&stream, Z_FINISH), Z_STREAM_END);
    unpacked.resize(stream.total_out);
    inflateEnd(&stream);
    EXPECT_EQ(unpacked, text);
  }
  for (const char* accepted : {"identity", "gzip;q=0", "deflate"}) {
    const std::string response = ask(accepted);
    EXPECT_THAT(response, Not(HasSubstr("Content-Encoding"))) << accepted;
    EXPECT_EQ(Body(response), text);
  }
}

TEST_F(HttpEndpointTest, MetricsThatTakeLongHoldUpNoProbe) {
  std::promise<void> written, asked;
  told_.metrics = [&] {
    asked.set_value();
    written.get_future().wait();
    return std::string("late 1\n");
  };
  Start({});
  std::future<std::string> scrape =
      std::async(std::launch::async, [this] { return Get("/metrics"); });
  asked.get_future().wait();
  EXPECT_THAT(Get("/readyz"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200"));
  written.set_value();
  EXPECT_THAT(scrape.get(), EndsWith("late 1\n"));
}

TEST_F(HttpEndpointTest, ManyScrapesAtOnceAreAllAnswered) {
  Start({});
  std::vector<std::future<std::string>> scrapes;
  for (int i = 0; i < 32; ++i) {
    scrapes.push_back(std::async(std::launch::async, [this] { return Get("/metrics"); }));
  }
  for (auto& scrape : scrapes) EXPECT_THAT(scrape.get(), EndsWith("\r\n\r\nup 1\n"));
}

// A thread that is first wanted when somebody scrapes may be one too many then.
TEST_F(HttpEndpointTest, ScrapesNeedNoThreadBesideThoseOfTheStart) {
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
  };
  std::ptrdiff_t while_written = 0;
  told_.metrics = [&] {
    while_written = threads();
    return std::string("up 1\n");
  };
  Start({});
  const std::ptrdiff_t at_start = threads();
  EXPECT_THAT(Get("/metrics"), EndsWith("up 1\n"));
  EXPECT_EQ(while_written, at_start);
}

TEST_F(HttpEndpointTest, SaysThatThereIsNoMemoryForMetrics) {
  told_.metrics = []() -> std::string { throw std::bad_alloc(); };
  Start({});
  EXPECT_THAT(Get("/metrics"), AllOf(StartsWith("HTTP/1.1 503 "), HasSubstr("no memory")));
  told_.metrics = [] { return std::string("up 1\n"); };
  EXPECT_THAT(Get("/metrics"), EndsWith("up 1\n"));
}

TEST_F(HttpEndpointTest, OneThousandSlowConnectionsHoldUpNoProbe) {
  Start({});
  std::vector<int> slow(1000);
  for (size_t i = 0; i < slow.size(); ++i) {
    slow[i] = Connect();
    if (i % 2 == 0) Send(slow[i], "GET /metrics HT");
  }
  for (int round = 0; round < 20; ++round) {
    // Those that were ended are dripped upon in vain.
    for (size_t i = 0; i < slow.size(); i += 2) Send(slow[i], "T");
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THAT(Get("/readyz"), StartsWith("HTTP/1.1 200"));
    // Kubernetes gives a probe a second unless told otherwise.
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  }
  for (const int socket : slow) ::close(socket);
}

TEST_F(HttpEndpointTest, TheOldestOfTooManyGoes) {
  Start({.connections_max = 4});
  std::vector<int> silent(5);
  for (int& socket : silent) socket = Connect();
  EXPECT_EQ(ReceiveAll(silent[0]), "");
  // The others still may ask; the first of them does not make it over the bound.
  EXPECT_TRUE(Send(silent[4], "GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n"));
  EXPECT_THAT(ReceiveAll(silent[4]), StartsWith("HTTP/1.1 200"));
  for (int i : {1, 2, 3}) ::close(silent[static_cast<size_t>(i)]);
}

// Who waits for metrics has asked, and keeps the place; but half of the places are for probes.
TEST_F(HttpEndpointTest, ScrapesLeaveHalfOfThePlaces) {
  std::promise<void> written;
  told_.metrics = [is_written = written.get_future().share()] {
    is_written.wait();
    return std::string("late 1\n");
  };
  Start({.connections_max = 4});
  const int first = Connect(), second = Connect();
  for (const int scrape : {first, second}) {
    EXPECT_TRUE(Send(scrape, "GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n"));
    // The answer to the probe says that the scrape has its place, too.
    EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200"));
  }
  EXPECT_THAT(Get("/metrics"),
              AllOf(StartsWith("HTTP/1.1 503"), EndsWith("too many ask for metrics\n")));
  std::vector<int> silent(8);
  for (int& socket : silent) socket = Connect();
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200"));
  written.set_value();
  EXPECT_THAT(ReceiveAll(first), EndsWith("late 1\n"));
  EXPECT_THAT(ReceiveAll(second), EndsWith("late 1\n"));
  for (const int socket : silent) ::close(socket);
}

TEST_F(HttpEndpointTest, AConnectionLivesForABoundedTime) {
  Start({.connection_age_max = absl::Milliseconds(50)});
  const int silent = Connect(), dripping = Connect();
  EXPECT_TRUE(Send(dripping, "GET /hea"));
  EXPECT_EQ(ReceiveAll(silent), "");
  EXPECT_EQ(ReceiveAll(dripping), "");
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200"));
}

// The age that a connection may have is for answers: a scrape waits beside those that are ended.
TEST_F(HttpEndpointTest, ARequestHasAShorterTimeThanItsAnswer) {
  std::promise<void> written;
  told_.metrics = [&] {
    written.get_future().wait();
    return std::string("late 1\n");
  };
  Start({.request_time_max = absl::Milliseconds(50), .connection_age_max = absl::Hours(1)});
  const int scrape = Connect();
  EXPECT_TRUE(Send(scrape, "GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n"));
  const int silent = Connect(), dripping = Connect();
  EXPECT_TRUE(Send(dripping, "GET /hea"));
  EXPECT_EQ(ReceiveAll(silent), "");
  EXPECT_EQ(ReceiveAll(dripping), "");
  written.set_value();
  EXPECT_THAT(ReceiveAll(scrape), EndsWith("late 1\n"));
}

TEST_F(HttpEndpointTest, AProbeIsAnsweredWithoutADescriptorLeft) {
  Start({});
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<int> probes(3);
  for (int& probe : probes) probe = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  // The endpoint shares this process's descriptors.
  const rlimit few = {static_cast<rlim_t>(probes.back()) + 16, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<int> taken;
  for (int one; (one = ::dup(probes[0])) >= 0;) taken.push_back(one);
  for (const int probe : probes) {
    ConnectTo(probe);
    EXPECT_TRUE(Send(probe, "GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n"));
  }
  std::vector<std::string> answers;
  for (const int probe : probes) answers.push_back(Receive(probe));
  for (const int one : taken) ::close(one);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(answers, Each(StartsWith("HTTP/1.1 200")));
  for (const int probe : probes) ::close(probe);
}

TEST_F(HttpEndpointTest, EndsWithRequestsUnderWay) {
  std::promise<void> asked;
  told_.metrics = [&] {
    asked.set_value();
    return std::string("up 1\n");
  };
  Start({});
  const int scrape = Connect(), dripping = Connect();
  EXPECT_TRUE(Send(dripping, "GET /hea"));
  EXPECT_TRUE(Send(scrape, "GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n"));
  asked.get_future().wait();
  endpoint_ = nullptr;
  ReceiveAll(scrape);
  EXPECT_EQ(ReceiveAll(dripping), "");
}

TEST(HttpEndpointAddressTest, NamesWhatItCannotListenOn) {
  for (const char* address : {"9470", "127.0.0.1:", "127.0.0.1:65536", ":9470", "127.0.0.1:-1"}) {
    const auto started = HttpEndpoint::Start(address, {}, {});
    EXPECT_EQ(started.status().code(), absl::StatusCode::kInvalidArgument) << address;
    EXPECT_THAT(std::string(started.status().message()), HasSubstr(address));
  }
  const auto sources = [] {
    return HttpEndpoint::Sources{[] { return std::string(); }, [] { return std::string(); }};
  };
  const auto first = HttpEndpoint::Start("127.0.0.1:0", sources(), {});
  ASSERT_TRUE(first.ok());
  const std::string taken = "127.0.0.1:" + std::to_string((*first)->port());
  const auto second = HttpEndpoint::Start(taken, sources(), {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(taken));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
