#include "server/net/http_endpoint.h"

#include <fcntl.h>
#include <microhttpd.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <list>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status_macros.h"
#include "server/net/listen_address.h"

namespace quantgate {
namespace {

constexpr char kPlainText[] = "text/plain; charset=utf-8";
constexpr char kExpositionText[] = "text/plain; version=0.0.4; charset=utf-8";

/// `text` compressed by gzip; empty where zlib has no memory.
std::string Gzipped(const std::string& text) {
  z_stream stream{};
  constexpr int kGzipWindow = 15 + 16;  // The largest window, with gzip's header.
  if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzipWindow, 8,
                   Z_DEFAULT_STRATEGY) != Z_OK) {
    return "";
  }
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  const bool is_whole = deflate(&stream, Z_FINISH) == Z_STREAM_END;
  packed.resize(is_whole ? stream.total_out : 0);
  deflateEnd(&stream);
  return packed;
}

/// Whether an Accept-Encoding header has gzip, with a weight above 0.
bool AcceptsGzip(const char* header) {
  if (header == nullptr) return false;
  for (const absl::string_view entry : absl::StrSplit(header, ',')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(entry, ';');
    const absl::string_view coding = absl::StripAsciiWhitespace(parts[0]);
    if (!absl::EqualsIgnoreCase(coding, "gzip") && coding != "*") continue;
    // Any weight other than 0 has a character that is not one of these.
    return parts.size() < 2 || parts[1].find_first_not_of("q=0. ") != absl::string_view::npos;
  }
  return false;
}

/// A response that may answer several requests.
class HttpAnswer {
 public:
  HttpAnswer(const std::string& body, const char* content_type)
      : response_(MHD_create_response_from_buffer(body.size(), const_cast<char*>(body.data()),
                                                  MHD_RESPMEM_MUST_COPY)) {
    if (response_ == nullptr) return;
    Add("Content-Type", content_type);
    Add("Connection", "close");
  }
  ~HttpAnswer() {
    if (response_ != nullptr) MHD_destroy_response(response_);
  }
  HttpAnswer(const HttpAnswer&) = delete;
  HttpAnswer& operator=(const HttpAnswer&) = delete;

  HttpAnswer& Add(const char* header, const char* value) {
    if (response_ != nullptr) MHD_add_response_header(response_, header, value);
    return *this;
  }
  /// Queues the response; MHD_NO ends the connection.
  MHD_Result AnswerTo(MHD_Connection* connection, unsigned code) {
    return response_ == nullptr ? MHD_NO : MHD_queue_response(connection, code, response_);
  }

 private:
  MHD_Response* const response_;
};

/// The metrics as they were at one time.
struct MetricsPage {
  /// `gzip` is null where no scrape accepts it, or where it could not be made.
  std::unique_ptr<HttpAnswer> plain, gzip;
};

/// A request for metrics, suspended until they are written.
struct Scrape {
  MHD_Connection* connection;
  bool takes_gzip;
  std::shared_ptr<MetricsPage> page;
};

using Clock = std::chrono::steady_clock;

/// The least time that a connection has for a request that did not arrive with it, before it is
/// closed to make room for others. So it also bounds how many connections come and go in a flood.
constexpr std::chrono::milliseconds kTurn{2};

struct OpenConnection {
  enum class State { kAsking, kSuspended, kAnswered };

  int socket;
  Clock::time_point accepted;
  State state = State::kAsking;
  /// Shut down. The library closes the connection then, or, while it is suspended, once it is
  /// resumed.
  bool is_ended = false;
};
using Connections = std::list<OpenConnection>;

/// Every function runs on `loop_`, unless its comment says otherwise.
class MicroHttpEndpoint : public HttpEndpoint {
 public:
  MicroHttpEndpoint(Sources sources, Bounds bounds)
      : sources_(std::move(sources)),
        connections_max_(static_cast<size_t>(std::max(2, bounds.connections_max))),
        request_time_max_(absl::ToChronoNanoseconds(bounds.request_time_max)),
        age_max_(absl::ToChronoNanoseconds(bounds.connection_age_max)),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    KeepSpares();
  }

  ~MicroHttpEndpoint() override {
    is_stopping_ = true;
    if (loop_.joinable()) {
      Wake();
      loop_.join();
    }
    if (rendering_.joinable()) {
      {
        const std::lock_guard lock(mutex_);
        is_rendering_over_ = true;
      }
      has_waiting_.notify_one();
      rendering_.join();  // From here on no connection is suspended.
    }
    if (daemon_ != nullptr) MHD_stop_daemon(daemon_);
    for (const int descriptor : {listener_, wake_}) {
      if (descriptor >= 0) ::close(descriptor);
    }
    for (const int spare : spares_) ::close(spare);
  }

  absl::Status Listen(const std::string& address);
  int port() const override { return port_; }

 private:
  void Serve();
  void Wake();
  int PollTimeout() const;
  void KeepSpares();
  bool Accept();
  bool EndOldest();
  void EndOld();
  Clock::time_point EndOf(const OpenConnection& connection) const;
  MHD_Result Answer(MHD_Connection* connection, const std::string& path, const std::string& method,
                    Scrape*& scrape);
  MHD_Result AnswerText(MHD_Connection* connection, unsigned code, const std::string& text);
  void Suspend(Scrape& scrape);
  void Render();
  void RenderFor(const std::vector<Scrape*>& scrapes);
  std::shared_ptr<MetricsPage> PageFor(const std::vector<Scrape*>& scrapes);

  static MHD_Result OnRequest(void* self, MHD_Connection* connection, const char* path,
                              const char* method, const char*, const char*, size_t* upload_size,
                              void** request) {
    *upload_size = 0;  // The body of a request is ignored.
    return static_cast<MicroHttpEndpoint*>(self)->Answer(connection, path, method,
                                                         reinterpret_cast<Scrape*&>(*request));
  }
  static void OnCompleted(void* self, MHD_Connection*, void** request, MHD_RequestTerminationCode) {
    if (*request != nullptr) --static_cast<MicroHttpEndpoint*>(self)->scrapes_;
    delete static_cast<Scrape*>(*request);
    *request = nullptr;
  }
  static void OnConnection(void* self, MHD_Connection* connection, void** context,
                           MHD_ConnectionNotificationCode what);

  const Sources sources_;
  const size_t connections_max_;
  const std::chrono::nanoseconds request_time_max_, age_max_;
  const int wake_;
  /// Descriptors that are set aside for connections to come.
  std::vector<int> spares_;
  int listener_ = -1;
  int port_ = 0;
  MHD_Daemon* daemon_ = nullptr;
  std::atomic<bool> is_stopping_{false};
  Connections connections_;  ///< The oldest first.
  size_t scrapes_ = 0;       ///< The number of them that wait for metrics.
  std::mutex mutex_;
  std::vector<Scrape*> waiting_ ABSL_GUARDED_BY(mutex_);
  bool is_rendering_over_ ABSL_GUARDED_BY(mutex_) = false;
  std::condition_variable has_waiting_;
  /// Started with the endpoint, since a thread might not be available later.
  std::thread rendering_;
  std::thread loop_;
};

absl::StatusOr<int> BoundSocket(const HostAddress& address, const std::string& text) {
  const int socket =
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int on = 1;
  if (socket >= 0) ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (socket >= 0 && ::bind(socket, address.get(), address.size) == 0 &&
      ::listen(socket, SOMAXCONN) == 0) {
    return socket;
  }
  const std::string why = std::strerror(errno);
  if (socket >= 0) ::close(socket);
  return absl::UnavailableError(
      absl::StrCat("--metrics-listen: cannot listen on ", text, ": ", why));
}

absl::Status MicroHttpEndpoint::Listen(const std::string& text) {
  QG_ASSIGN_OR_RETURN(const std::vector<HostAddress> addresses, ResolveHostPort(text));
  QG_ASSIGN_OR_RETURN(listener_, BoundSocket(addresses.front(), text));
  HostAddress bound;
  bound.size = sizeof(bound.storage);
  ::getsockname(listener_, reinterpret_cast<sockaddr*>(&bound.storage), &bound.size);
  port_ = bound.port();
  daemon_ = MHD_start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_NO_LISTEN_SOCKET, 0,
                             nullptr, nullptr, &OnRequest, this, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                             kHttpConnectionBytes, MHD_OPTION_NOTIFY_COMPLETED, &OnCompleted, this,
                             MHD_OPTION_NOTIFY_CONNECTION, &OnConnection, this, MHD_OPTION_END);
  if (daemon_ == nullptr) {
    return absl::UnavailableError(absl::StrCat("--metrics-listen: cannot serve HTTP on ", text));
  }
  rendering_ = std::thread([this] { Render(); });
  loop_ = std::thread([this] { Serve(); });
  return absl::OkStatus();
}

void MicroHttpEndpoint::Serve() {
  const int events = MHD_get_daemon_info(daemon_, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
  constexpr int kTurnMs = static_cast<int>(kTurn.count());
  bool is_starved = false;
  while (!is_stopping_) {
    KeepSpares();
    pollfd files[] = {{events, POLLIN, 0}, {wake_, POLLIN, 0}, {listener_, POLLIN, 0}};
    const int timeout = PollTimeout();
    if (is_starved) {
      ::poll(files, 2, timeout < 0 ? kTurnMs : std::min(timeout, kTurnMs));
    } else {
      ::poll(files, 3, timeout);
    }
    uint64_t wakes = 0;
    (void)!::read(wake_, &wakes, sizeof(wakes));
    is_starved = !Accept();
    EndOld();
    MHD_run(daemon_);
  }
}

/// Sets descriptors aside until they and the open connections together are kHttpConnectionsKept, or
/// connections_max_ if that is less.
void MicroHttpEndpoint::KeepSpares() {
  const size_t kept = std::min<size_t>(connections_max_, kHttpConnectionsKept);
  while (connections_.size() + spares_.size() < kept) {
    const int spare = ::fcntl(wake_, F_DUPFD_CLOEXEC, 0);
    if (spare < 0) return;
    spares_.push_back(spare);
  }
}

/// Accepts the connections that wait. False where one waits and there is no room for it.
bool MicroHttpEndpoint::Accept() {
  constexpr int kAtOnceMax = 64;  // Then the open connections have their turn.
  for (int i = 0; i < kAtOnceMax; ++i) {
    // Room is made before the connection is accepted, so that the bound is never exceeded.
    if (connections_.size() >= connections_max_ && !EndOldest()) return false;
    HostAddress peer;
    peer.size = sizeof(peer.storage);
    const int socket = ::accept4(listener_, reinterpret_cast<sockaddr*>(&peer.storage), &peer.size,
                                 SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket >= 0) {
      // Closes a socket that it does not take.
      MHD_add_connection(daemon_, socket, peer.get(), peer.size);
      // Answers a request that came with the connection before others are accepted.
      MHD_run(daemon_);
    } else if (errno == EAGAIN) {
      return true;
    } else if (errno == EMFILE || errno == ENFILE) {
      if (!spares_.empty()) {
        ::close(spares_.back());
        spares_.pop_back();
      } else if (!EndOldest()) {
        return false;
      }
    }
  }
  return true;
}

void MicroHttpEndpoint::Wake() {
  const uint64_t one = 1;
  (void)!::write(wake_, &one, sizeof(one));
}

Clock::time_point MicroHttpEndpoint::EndOf(const OpenConnection& connection) const {
  const bool is_asking = connection.state == OpenConnection::State::kAsking;
  return connection.accepted + (is_asking ? std::min(request_time_max_, age_max_) : age_max_);
}

/// Milliseconds until the library must run or a connection must be ended; -1 where neither is due.
int MicroHttpEndpoint::PollTimeout() const {
  MHD_UNSIGNED_LONG_LONG library_ms = 0;
  constexpr int64_t kLong = 3'600'000;  // Fits an int.
  int64_t wait = kLong;
  bool is_wanted = MHD_get_timeout(daemon_, &library_ms) == MHD_YES;
  if (is_wanted) wait = std::min(wait, static_cast<int64_t>(library_ms));
  const Clock::time_point now = Clock::now();
  for (const OpenConnection& connection : connections_) {
    if (connection.is_ended) continue;
    is_wanted = true;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(EndOf(connection) - now);
    wait = std::clamp<int64_t>(left.count(), 0, wait);
  }
  return is_wanted ? static_cast<int>(wait) : -1;
}

/// Shuts down connections whose time is over. To the library it looks as if their peers had gone.
void MicroHttpEndpoint::EndOld() {
  const Clock::time_point now = Clock::now();
  for (OpenConnection& connection : connections_) {
    if (connection.is_ended || EndOf(connection) > now) continue;
    ::shutdown(connection.socket, SHUT_RDWR);
    connection.is_ended = true;
  }
}

/// Ends the oldest connection that has not sent its request within kTurn, else the oldest one that
/// was answered. False where none could be closed: the library does not close a suspended
/// connection.
bool MicroHttpEndpoint::EndOldest() {
  const auto oldest = [&](OpenConnection::State state) {
    return std::find_if(connections_.begin(), connections_.end(),
                        [&](const OpenConnection& one) { return one.state == state; });
  };
  auto one = oldest(OpenConnection::State::kAsking);
  if (one == connections_.end() || one->accepted + kTurn > Clock::now()) {
    one = oldest(OpenConnection::State::kAnswered);
  }
  if (one == connections_.end()) return false;
  ::shutdown(one->socket, SHUT_RDWR);
  one->is_ended = true;
  const size_t before = connections_.size();
  MHD_run(daemon_);
  return connections_.size() < before;
}

void MicroHttpEndpoint::OnConnection(void* object, MHD_Connection* connection, void** context,
                                     MHD_ConnectionNotificationCode what) {
  Connections& connections = static_cast<MicroHttpEndpoint*>(object)->connections_;
  if (what == MHD_CONNECTION_NOTIFY_STARTED) {
    const int socket =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    connections.push_back({socket, Clock::now()});
    *context = new Connections::iterator(std::prev(connections.end()));
  } else {
    auto* const position = static_cast<Connections::iterator*>(*context);
    connections.erase(*position);
    delete position;
  }
}

MHD_Result MicroHttpEndpoint::AnswerText(MHD_Connection* connection, unsigned code,
                                         const std::string& text) {
  HttpAnswer response(text, kPlainText);
  if (code == MHD_HTTP_METHOD_NOT_ALLOWED) response.Add("Allow", "GET, HEAD");
  return response.AnswerTo(connection, code);
}

/// Answers a request. A request for metrics is answered in a second call, once they are written.
/// HEAD is answered as GET is; the library leaves out the body.
MHD_Result MicroHttpEndpoint::Answer(MHD_Connection* connection, const std::string& path,
                                     const std::string& method, Scrape*& scrape) {
  OpenConnection& open = **static_cast<Connections::iterator*>(
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context);
  open.state = OpenConnection::State::kAnswered;
  if (scrape != nullptr) {
    if (scrape->page == nullptr) {
      return AnswerText(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "no memory to write metrics\n");
    }
    HttpAnswer* const gzip = scrape->takes_gzip ? scrape->page->gzip.get() : nullptr;
    return (gzip != nullptr ? gzip : scrape->page->plain.get())->AnswerTo(connection, MHD_HTTP_OK);
  }
  if (path != "/metrics" && path != "/healthz" && path != "/readyz") {
    return AnswerText(connection, MHD_HTTP_NOT_FOUND,
                      "not found; there are /metrics, /healthz and /readyz\n");
  }
  if (method != MHD_HTTP_METHOD_GET && method != MHD_HTTP_METHOD_HEAD) {
    return AnswerText(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD\n");
  }
  if (path == "/healthz") return AnswerText(connection, MHD_HTTP_OK, "ok\n");
  if (path == "/readyz") {
    const std::string why = sources_.why_not_ready();
    if (why.empty()) return AnswerText(connection, MHD_HTTP_OK, "ready\n");
    return AnswerText(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
                      absl::StrCat("not ready: ", why, "\n"));
  }
  // Half of the connections are left for probes, however long metrics take.
  if (scrapes_ >= connections_max_ / 2) {
    return AnswerText(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "too many ask for metrics\n");
  }
  ++scrapes_;
  open.state = OpenConnection::State::kSuspended;
  scrape = new Scrape{connection,
                      AcceptsGzip(MHD_lookup_connection_value(connection, MHD_HEADER_KIND,
                                                              MHD_HTTP_HEADER_ACCEPT_ENCODING)),
                      nullptr};
  Suspend(*scrape);
  return MHD_YES;
}

/// Suspends a request for metrics. Requests that come while metrics are written share the next
/// page.
void MicroHttpEndpoint::Suspend(Scrape& scrape) {
  MHD_suspend_connection(scrape.connection);
  const std::lock_guard lock(mutex_);
  waiting_.push_back(&scrape);
  has_waiting_.notify_one();
}

/// Writes pages for the scrapes that wait. Runs on rendering_ until the end, when none waits any
/// more.
void MicroHttpEndpoint::Render() {
  std::unique_lock lock(mutex_);
  for (;;) {
    has_waiting_.wait(lock, [this] { return is_rendering_over_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::vector<Scrape*> scrapes = std::exchange(waiting_, {});
    lock.unlock();
    RenderFor(scrapes);
    lock.lock();
  }
}

/// The page for these scrapes; null where there is no memory for it.
std::shared_ptr<MetricsPage> MicroHttpEndpoint::PageFor(const std::vector<Scrape*>& scrapes) {
  try {
    const std::string text = sources_.metrics();
    auto page = std::make_shared<MetricsPage>();
    page->plain = std::make_unique<HttpAnswer>(text, kExpositionText);
    page->plain->Add("Vary", "Accept-Encoding");
    const bool wants_gzip = std::any_of(scrapes.begin(), scrapes.end(),
                                        [](const Scrape* scrape) { return scrape->takes_gzip; });
    const std::string packed = wants_gzip ? Gzipped(text) : "";
    if (!packed.empty()) {
      page->gzip = std::make_unique<HttpAnswer>(packed, kExpositionText);
      page->gzip->Add("Content-Encoding", "gzip").Add("Vary", "Accept-Encoding");
    }
    return page;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void MicroHttpEndpoint::RenderFor(const std::vector<Scrape*>& scrapes) {
  const std::shared_ptr<MetricsPage> page = PageFor(scrapes);
  for (Scrape* scrape : scrapes) {
    // `scrape` must not be touched once its connection is resumed.
    MHD_Connection* const connection = scrape->connection;
    scrape->page = page;
    MHD_resume_connection(connection);
  }
  // The library's own wake-up is lost where it comes between its search for resumed connections and
  // its reading of events.
  Wake();
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpEndpoint>> HttpEndpoint::Start(const std::string& listen,
                                                                  Sources sources, Bounds bounds) {
  auto endpoint = std::make_unique<MicroHttpEndpoint>(std::move(sources), bounds);
  QG_RETURN_IF_ERROR(endpoint->Listen(listen));
  return endpoint;
}

}  // namespace quantgate
