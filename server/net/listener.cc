#include "server/net/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/limits.h"
#include "server/net/listen_address.h"

namespace quantgate {
namespace {

constexpr char kUnixPrefix[] = "unix:";
/// The period, in milliseconds, in which accepting is tried again while no connection can be
/// accepted.
constexpr int kRetryPeriod = 100;
/// Connections accepted from one socket before the other sockets and a stop are looked at.
constexpr int kAcceptedAtOnce = 64;
/// The least time between two searches for ended connections. A search costs a system call for each
/// connection, so it is not made for each connection that is refused.
constexpr auto kDropPeriod = std::chrono::milliseconds(10);
constexpr auto kLogPeriod = std::chrono::seconds(10);

absl::Status CannotListen(const std::string& address, const std::string& why) {
  return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", why));
}

int PortOf(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

void SetPort(sockaddr* address, int port) {
  const auto number = htons(static_cast<uint16_t>(port));
  if (address->sa_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = number;
  } else {
    reinterpret_cast<sockaddr_in*>(address)->sin_port = number;
  }
}

void SetOption(int socket, int level, int option, int value) {
  ::setsockopt(socket, level, option, &value, sizeof(value));
}

/// Opens a socket that listens on `address`; returns -1 and sets errno where that fails. Two
/// servers never share a port: SO_REUSEADDR allows an address whose old connections have yet to
/// end, but not one that is listened on.
int ListenOn(const sockaddr* address, socklen_t size, bool takes_ipv4_too) {
  const int socket = ::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) return -1;
  if (address->sa_family != AF_UNIX) {
    SetOption(socket, SOL_SOCKET, SO_REUSEADDR, 1);
    // Accepted sockets inherit these options.
    SetOption(socket, IPPROTO_TCP, TCP_NODELAY, 1);
    SetOption(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, kUnsentBytesMax);
    SetOption(socket, IPPROTO_TCP, TCP_USER_TIMEOUT,
              static_cast<int>(absl::ToInt64Milliseconds(kKeepaliveTimeout)));
  }
  if (address->sa_family == AF_INET6) {
    const bool is_ipv4 =
        IN6_IS_ADDR_V4MAPPED(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr) != 0;
    SetOption(socket, IPPROTO_IPV6, IPV6_V6ONLY, takes_ipv4_too || is_ipv4 ? 0 : 1);
  }
  if (::bind(socket, address, size) == 0 && ::listen(socket, SOMAXCONN) == 0) return socket;
  const int error = errno;
  ::close(socket);
  errno = error;
  return -1;
}

/// The inode of a descriptor that is a socket; 0 for anything else.
ino_t SocketInode(int descriptor) {
  struct stat info;
  return ::fstat(descriptor, &info) == 0 && S_ISSOCK(info.st_mode) ? info.st_ino : 0;
}

/// Whether accept(2) failed because the system lacks descriptors or memory, and not because of one
/// connection.
bool IsExhaustion(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

absl::StatusOr<int64_t> ConnectionsMax(int64_t descriptor_limit, int64_t descriptors_open) {
  const int64_t left =
      descriptor_limit - descriptors_open - std::max<int64_t>(16, descriptor_limit / 4);
  if (left >= kConnectionsLeast) return std::min(left, kConnectionsMax);
  return absl::FailedPreconditionError(absl::StrCat(
      "RLIMIT_NOFILE is ", descriptor_limit, " and ", descriptors_open,
      " descriptors are open, which leaves fewer than ", kConnectionsLeast, " for connections"));
}

Listener::Listener() = default;

Listener::~Listener() {
  Stop();
  if (wake_ >= 0) ::close(wake_);
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Open(
    const std::vector<std::string>& addresses) {
  std::unique_ptr<Listener> listener(new Listener);
  listener->wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (listener->wake_ < 0) return absl::InternalError("eventfd failed");
  for (const std::string& address : addresses) {
    QG_RETURN_IF_ERROR(CheckListenAddress(address));
    if (absl::StartsWith(address, kUnixPrefix)) {
      QG_RETURN_IF_ERROR(listener->BindUnix(address));
      listener->ports_.push_back(0);
    } else {
      QG_ASSIGN_OR_RETURN(const int port, listener->BindHost(address));
      listener->ports_.push_back(port);
    }
  }
  return listener;
}

absl::StatusOr<int> Listener::BindHost(const std::string& address) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (absl::StrContains(host, ':')) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen: \"", address, "\": an IPv6 address stands in brackets"));
  }
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  const int failure =
      ::getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found);
  if (failure != 0) return CannotListen(address, ::gai_strerror(failure));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, ::freeaddrinfo);
  int port = 0, error = 0;
  for (addrinfo* next = found; next != nullptr; next = next->ai_next) {
    if (port != 0) SetPort(next->ai_addr, port);
    const int socket = ListenOn(next->ai_addr, next->ai_addrlen, host == "::");
    if (socket < 0) {
      error = errno;
      // "localhost" has an IPv6 address also where the machine has none.
      if (error == EADDRNOTAVAIL || error == EAFNOSUPPORT) continue;
      return CannotListen(address, std::strerror(error));
    }
    bound_.push_back({socket, "", 0, 0});
    sockaddr_storage name{};
    socklen_t size = sizeof(name);
    ::getsockname(socket, reinterpret_cast<sockaddr*>(&name), &size);
    port = PortOf(name);
  }
  if (port == 0) return CannotListen(address, std::strerror(error));
  return port;
}

absl::Status Listener::BindUnix(const std::string& address) {
  const std::string path = address.substr(sizeof(kUnixPrefix) - 1);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(name.sun_path)) {
    return CannotListen(address,
                        absl::StrCat("a path has from 1 to ", sizeof(name.sun_path) - 1, " bytes"));
  }
  std::memcpy(name.sun_path, path.data(), path.size());
  struct stat info;
  // CheckListenAddress has found that nobody listens there any more.
  if (::lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode)) ::unlink(path.c_str());
  const int socket = ListenOn(reinterpret_cast<const sockaddr*>(&name), sizeof(name), false);
  if (socket < 0) return CannotListen(address, std::strerror(errno));
  Bound& bound = bound_.emplace_back(Bound{socket, path, 0, 0});
  if (::lstat(path.c_str(), &info) == 0) {
    bound.device = info.st_dev;
    bound.inode = info.st_ino;
  }
  return absl::OkStatus();
}

void Listener::Start(int64_t connections_max, std::function<void(int)> take,
                     std::function<void(const std::string&)> log) {
  take_ = std::move(take);
  log_ = std::move(log);
  {
    const std::lock_guard lock(mutex_);
    usage_.connections_max = connections_max;
  }
  is_accepting_ = true;
  thread_ = std::thread([this] { Accept(); });
}

void Listener::Stop() {
  is_stopping_ = true;
  is_accepting_ = false;
  if (thread_.joinable()) {
    const uint64_t one = 1;
    (void)!::write(wake_, &one, sizeof(one));
    thread_.join();
  }
  for (const Bound& bound : bound_) {
    ::close(bound.descriptor);
    struct stat info;
    if (!bound.path.empty() && ::lstat(bound.path.c_str(), &info) == 0 &&
        info.st_dev == bound.device && info.st_ino == bound.inode) {
      ::unlink(bound.path.c_str());
    }
  }
  bound_.clear();
}

void Listener::Accept() {
  std::vector<pollfd> waited = {{wake_, POLLIN, 0}};
  for (const Bound& bound : bound_) waited.push_back({bound.descriptor, POLLIN, 0});
  while (!is_stopping_) {
    // A socket whose connections cannot be accepted would wake the thread at once.
    const nfds_t count = failure_.empty() ? waited.size() : 1;
    const bool is_settled = is_accepting_ && was_logged_accepting_;
    ::poll(waited.data(), count, is_settled ? -1 : kRetryPeriod);
    failure_.clear();
    // Also tries sockets where no connection waits: accept fails first where no descriptor is free.
    for (const Bound& bound : bound_) {
      if (!AcceptAll(bound.descriptor)) break;
    }
    const bool has_room = HasRoom();
    if (!is_stopping_) is_accepting_ = failure_.empty() && has_room;
    LogChange();
  }
}

bool Listener::AcceptAll(int socket) {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    const int descriptor = ::accept4(socket, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (descriptor >= 0) {
      Take(descriptor);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return true;
    } else if (IsExhaustion(errno)) {
      failure_ = std::strerror(errno);
      const std::lock_guard lock(mutex_);
      ++usage_.failures;
      return false;
    }
    // Anything else is of that connection alone: it ended while it waited.
  }
  return true;
}

// A connection beyond the bound is closed rather than left waiting: its client knows at once and
// tries again later, and old connections do not fill the queue of the socket.
void Listener::Take(int descriptor) {
  const ino_t inode = SocketInode(descriptor);
  sockaddr_storage peer;
  socklen_t size = sizeof(peer);
  // gRPC would log an error about a peer that has already disconnected.
  const bool is_there =
      ::getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &size) == 0 && inode != 0;
  const bool has_room = HasRoom();
  {
    const std::lock_guard lock(mutex_);
    if (is_there && has_room) {
      ++usage_.accepted;
      connections_.push_back({descriptor, inode});
    } else if (is_there) {
      ++usage_.refused;
    }
  }
  if (is_there && has_room) {
    take_(descriptor);
  } else {
    ::close(descriptor);
  }
}

bool Listener::HasRoom() {
  const std::lock_guard lock(mutex_);
  const auto is_full = [&] {
    return static_cast<int64_t>(connections_.size()) >= usage_.connections_max;
  };
  if (is_full() && std::chrono::steady_clock::now() - dropped_at_ >= kDropPeriod) DropEnded();
  return !is_full();
}

void Listener::DropEnded() {
  std::erase_if(connections_, [](const Connection& connection) {
    return SocketInode(connection.descriptor) != connection.inode;
  });
  dropped_at_ = std::chrono::steady_clock::now();
}

ListenerUsage Listener::usage() {
  const std::lock_guard lock(mutex_);
  DropEnded();
  usage_.connections = static_cast<int64_t>(connections_.size());
  return usage_;
}

// Writes at most one line in kLogPeriod, however often the state changes. The last state is always
// reported.
void Listener::LogChange() {
  const auto now = std::chrono::steady_clock::now();
  if (is_accepting_ == was_logged_accepting_ || is_stopping_) return;
  if (now - logged_at_ < kLogPeriod) return;
  logged_at_ = now;
  was_logged_accepting_ = is_accepting_;
  ListenerUsage usage;
  {
    const std::lock_guard lock(mutex_);
    usage = usage_;
  }
  if (was_logged_accepting_) {
    log_(absl::StrCat("connections are accepted again; ", usage.refused - logged_refused_,
                      " were refused"));
    logged_refused_ = usage.refused;
  } else if (!failure_.empty()) {
    log_(absl::StrCat("no connection can be accepted: ", failure_));
  } else {
    log_(absl::StrCat(usage.connections_max,
                      " connections, as many as there may be: further ones are refused"));
  }
}

}  // namespace quantgate
