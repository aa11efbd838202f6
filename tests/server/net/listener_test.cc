// The listener by itself: addresses, the bound on connections, and who may have an address.
#include "server/net/listener.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/temporary_directory.h"

namespace quantgate {
namespace QG_TEST_FILE {

using ::testing::HasSubstr;

/// Takes connections, and closes them when it is told to.
class Taker {
 public:
  ~Taker() { CloseAll(); }
  void Take(int descriptor) {
    const std::lock_guard lock(mutex_);
    taken_.push_back(descriptor);
    changed_.notify_all();
  }
  void Await(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return taken_.size() >= count; });
  }
  void CloseAll() {
    const std::lock_guard lock(mutex_);
    for (const int descriptor : taken_) ::close(descriptor);
    taken_.clear();
  }
  std::function<void(int)> AsFunction() {
    return [this](int descriptor) { Take(descriptor); };
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> taken_;
};

void Ignore(const std::string&) {}

std::unique_ptr<Listener> Opened(const std::vector<std::string>& addresses) {
  auto listener = Listener::Open(addresses);
  EXPECT_TRUE(listener.ok()) << listener.status();
  return *std::move(listener);
}

int Connect(int port) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  return socket;
}

/// Whether the other side has closed the connection, for which this waits.
bool AwaitEnd(int socket) {
  char byte;
  return ::read(socket, &byte, 1) <= 0;
}

TEST(ListenerTest, ClosesConnectionsBeyondTheBound) {
  Taker taker;
  const auto listener = Opened({"127.0.0.1:0"});
  listener->Start(2, taker.AsFunction(), Ignore);
  EXPECT_TRUE(listener->is_accepting());
  const int first = Connect(listener->ports()[0]), second = Connect(listener->ports()[0]);
  taker.Await(2);
  const int third = Connect(listener->ports()[0]);
  EXPECT_TRUE(AwaitEnd(third));
  while (listener->is_accepting()) std::this_thread::yield();  // It has closed the third before.
  ListenerUsage usage = listener->usage();
  EXPECT_EQ(usage.connections, 2);
  EXPECT_EQ(usage.connections_max, 2);
  EXPECT_EQ(usage.accepted, 2);
  EXPECT_EQ(usage.refused, 1);
  // Whoever took them has closed them, and told nobody.
  taker.CloseAll();
  while (!listener->is_accepting()) {
  }
  EXPECT_EQ(listener->usage().connections, 0);
  const int fourth = Connect(listener->ports()[0]);
  taker.Await(1);
  EXPECT_EQ(listener->usage().accepted, 3);
  for (const int socket : {first, second, third, fourth}) ::close(socket);
}

// A descriptor's number goes to the next file that is opened.
TEST(ListenerTest, CountsNoFileThatHasAnEndedConnectionsDescriptor) {
  Taker taker;
  const auto listener = Opened({"127.0.0.1:0"});
  listener->Start(8, taker.AsFunction(), Ignore);
  const int client = Connect(listener->ports()[0]);
  taker.Await(1);
  taker.CloseAll();
  std::vector<int> others;
  for (int i = 0; i < 64; ++i) others.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(listener->usage().connections, 0);
  for (const int other : others) ::close(other);
  ::close(client);
}

TEST(ListenerTest, SaysThatItCannotAcceptAndGoesOn) {
  Taker taker;
  std::mutex mutex;
  std::vector<std::string> lines;
  const auto listener = Opened({"127.0.0.1:0"});
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int client = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  listener->Start(8, taker.AsFunction(), [&](const std::string& line) {
    const std::lock_guard lock(mutex);
    lines.push_back(line);
  });
  rlimit none = before;
  none.rlim_cur = 3;  // Taken, all of them.
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(listener->ports()[0]));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(client, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  while (listener->is_accepting()) {
  }
  EXPECT_GT(listener->usage().failures, 0);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  // The connection that waited.
  taker.Await(1);
  while (!listener->is_accepting()) {
  }
  listener->Stop();
  ::close(client);
  ASSERT_FALSE(lines.empty());
  EXPECT_THAT(lines[0], HasSubstr("no connection can be accepted: Too many open files"));
}

TEST(ListenerTest, TakesNoAddressThatIsTaken) {
  const auto first = Opened({"127.0.0.1:0"});
  const std::string address = "127.0.0.1:" + std::to_string(first->ports()[0]);
  const absl::Status second = Listener::Open({address}).status();
  EXPECT_TRUE(absl::IsUnavailable(second)) << second;
  EXPECT_THAT(std::string(second.message()), HasSubstr(address + ": Address already in use"));
  first->Stop();
  EXPECT_TRUE(Listener::Open({address}).ok());
}

TEST(ListenerTest, TakesIPv4WrittenAsIPv6) {
  EXPECT_GT(Opened({"[::ffff:127.0.0.1]:0"})->ports()[0], 0);
}

TEST(ListenerTest, HasThePortsOfAllAddressesInTheirOrder) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/socket";
  const auto listener = Opened({"127.0.0.1:0", "unix:" + path, "localhost:0"});
  ASSERT_EQ(listener->ports().size(), 3u);
  EXPECT_GT(listener->ports()[0], 0);
  EXPECT_EQ(listener->ports()[1], 0);
  EXPECT_GT(listener->ports()[2], 0);
  EXPECT_NE(listener->ports()[0], listener->ports()[2]);
}

TEST(ListenerTest, RemovesItsSocketAndNoOther) {
  const TemporaryDirectory directory;
  const std::string path = directory.path() + "/socket";
  struct stat info;
  {
    const auto listener = Opened({"unix:" + path});
    ASSERT_EQ(::stat(path.c_str(), &info), 0);
    EXPECT_TRUE(S_ISSOCK(info.st_mode));
    const absl::Status other = Listener::Open({"unix:" + path}).status();
    EXPECT_THAT(std::string(other.message()), HasSubstr("another process does"));
  }
  EXPECT_NE(::stat(path.c_str(), &info), 0);
  const auto first = Opened({"unix:" + path});
  ASSERT_EQ(::unlink(path.c_str()), 0);
  const auto second = Opened({"unix:" + path});
  first->Stop();
  EXPECT_EQ(::stat(path.c_str(), &info), 0);
}

TEST(ListenerTest, NamesWhatIsWrongWithAnAddress) {
  const std::pair<std::string, std::string> cases[] = {
      {"::1:7470", "an IPv6 address stands in brackets"},
      {"no.such.host.invalid:7470", "cannot listen on no.such.host.invalid:7470: "},
      {"192.0.2.1:7470", "cannot listen on 192.0.2.1:7470: "},
      {"unix:" + std::string(108, 'x'), "a path has from 1 to 107 bytes"},
      {"unix:/no/such/directory/socket", "No such file or directory"}};
  for (const auto& [address, words] : cases) {
    EXPECT_THAT(std::string(Listener::Open({address}).status().message()), HasSubstr(words));
  }
}

TEST(ConnectionsMaxTest, LeavesWhatIsOpenAndAQuarterAtLeast16) {
  EXPECT_EQ(*ConnectionsMax(64, 18), 64 - 18 - 16);
  EXPECT_EQ(*ConnectionsMax(1024, 20), 1024 - 20 - 256);
  EXPECT_EQ(*ConnectionsMax(1 << 20, 20), 4096);
  EXPECT_EQ(*ConnectionsMax(38, 18), 4);
  EXPECT_THAT(std::string(ConnectionsMax(37, 18).status().message()),
              HasSubstr("RLIMIT_NOFILE is 37"));
}

}  // namespace QG_TEST_FILE
}  // namespace quantgate
