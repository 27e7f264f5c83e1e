#include "http.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "../src/messages.h"
#include "ascii.h"
#include "hydrant/hydrant.h"
#include "rows.h"

namespace hydrant {

HttpReply http_error(int status, const std::string& message) {
  return {status, to_line({{"error", one_line(message)}}), "", std::nullopt};
}

namespace {

constexpr std::size_t kHeaderBytes =
    32U << 10U;                        // of a connection's buffer: request line, headers, a piece of the body
constexpr std::size_t kDiscarded = 8;  // times the most of a body that is read before it is refused
constexpr std::uint64_t kHeld = 16;    // times the most of a body: what all bodies take at once, and all long answers
constexpr const char* kNul = "%00";    // as it stands in a path

using Clock = std::chrono::steady_clock;

HttpReply too_large(std::size_t most) {
  return http_error(413, "the request's body is larger than " + std::to_string(most) +
                             " bytes; send fewer inputs at once, or start the server with a larger --max-bytes");
}

HttpReply no_memory() { return http_error(503, "there is not enough memory for these inputs; send fewer at once"); }

constexpr const char* kCrowdedBodies =
    "the bodies of other requests take all the memory there is for them; ask again in a second";
constexpr const char* kCrowdedAnswers =
    "long answers that others have not taken yet hold all the memory there is for them; ask for less, or again in a "
    "second";

// Whether the other end of a connection was closed, or broke: nobody waits for an answer any more.
bool is_left(int socket) {
  char byte = 0;
  const ssize_t count = recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return count == 0 || (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

int socket_of(MHD_Connection* connection) {
  return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
}

// Whether a header continued on the next line. libmicrohttpd leaves name and value where they came, but copies those
// of a folded header elsewhere; both lie in the memory of the connection.
bool is_folded(const char* name_end, const char* value) {
  const std::less<> before;
  if (!before(name_end, value) || value - name_end > static_cast<std::ptrdiff_t>(kHeaderBytes)) return true;
  return !std::all_of(name_end, value, [](char each) { return each == '\0' || each == ' ' || each == '\t'; });
}

// A character that names of headers consist of (RFC 9110, 5.6.2).
bool is_of_name(char each) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  const char low = lowered(each);
  return (low >= 'a' && low <= 'z') || (low >= '0' && low <= '9') || kMarks.find(each) != std::string_view::npos;
}

// Checks that a request's headers give its length and host once, so that a proxy cannot read it as two requests.
class Framing {
 public:
  // A header, whose bytes outlive this; `folded`: it continues on the next line.
  void add(std::string_view name, std::string_view value, bool folded) noexcept;

  // The first error, or nothing; `named`: HTTP/1.1, which requires a Host.
  std::optional<std::string> wrong(bool named) const;

 private:
  std::optional<std::string_view> odd_;     // the first name that is none
  std::optional<std::string_view> folded_;  // the first that goes on
  std::string_view coding_;                 // of the body
  std::size_t hosts_ = 0, lengths_ = 0, codings_ = 0;
};

void Framing::add(std::string_view name, std::string_view value, bool folded) noexcept {
  if (!odd_ && (name.empty() || !std::all_of(name.begin(), name.end(), is_of_name))) odd_ = name;
  if (!folded_ && folded) folded_ = name;
  if (is_alike(name, "Host")) ++hosts_;
  if (is_alike(name, "Content-Length")) ++lengths_;
  if (is_alike(name, "Transfer-Encoding")) {
    ++codings_;
    coding_ = value;
  }
}

std::optional<std::string> Framing::wrong(bool named) const {
  if (folded_) return "the header " + cut(*folded_) + " goes on in the next line; expected each header on one line";
  if (odd_)
    return "a header is called " + cut(*odd_) + "; expected a name of letters, digits and marks, without spaces";
  if (named && hosts_ == 0) return "the request has no header called Host; expected one";
  if (hosts_ > 1) return "the request has " + std::to_string(hosts_) + " headers called Host; expected one";
  if (lengths_ + codings_ > 1)
    return "the request says more than once how long it is; expected Content-Length, or Transfer-Encoding, once";
  if (codings_ == 1 && !is_alike(coding_, "chunked"))
    return "the request has Transfer-Encoding " + cut(coding_) + "; expected chunked, or Content-Length instead";
  return std::nullopt;
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};

std::unique_ptr<addrinfo, FreeAddresses> address_of(const std::string& host, std::uint16_t port) {
  addrinfo wanted{};
  wanted.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed =
      getaddrinfo(host == "localhost" ? "127.0.0.1" : host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (failed != 0 || found == nullptr) {
    throw InputError("--host is " + cut(host) + ", which is no address of this machine (" + gai_strerror(failed) +
                     "); expected one such as 127.0.0.1, or 0.0.0.0 for all");
  }
  return std::unique_ptr<addrinfo, FreeAddresses>(found);
}

const char* header(MHD_Connection* connection, const char* name) {
  return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
}

std::optional<std::string> optional_header(MHD_Connection* connection, const char* name) {
  const char* value = header(connection, name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace

struct HttpServer::State {
  // One request, from its first header to the end of its answer.
  struct Exchange {
    HttpRequest request;
    std::size_t received = 0;  // bytes of the body, those that were thrown away included
    std::size_t kept = 0;      // those that were not
    std::size_t answer = 0;    // bytes of its answer, if that is a long one
    bool began = false;        // its headers were looked at
    bool named = false;        // it must have a Host
    bool nul = false;          // its path holds the character NUL, where libmicrohttpd takes it to end
    bool last = false;         // of its connection: nobody knows where it ends
    std::optional<HttpReply> reply;
    MHD_Connection* connection = nullptr;
    int socket = -1;
  };

  HttpLimits limits;
  Gate refuse;
  Handler answer;
  MHD_Daemon* daemon = nullptr;
  std::atomic<std::size_t> open{0};
  std::atomic<std::uint64_t> held{0};     // bytes of all bodies
  std::atomic<std::uint64_t> answers{0};  // bytes of all long answers
  std::atomic<bool> leaving{false};

  std::mutex guard;
  std::condition_variable news;
  std::deque<Exchange*> queue;
  bool stopped = false;
  std::vector<std::thread> workers;

  // A connection that waits for its client: for the rest of a request, or for it to take an answer.
  struct Waiting {
    int socket = -1;
    Clock::time_point end;
  };
  std::mutex clients_guard;
  std::map<MHD_Connection*, Waiting> clients;

  State(const HttpLimits& chosen, Gate gate, Handler handler)
      : limits(chosen), refuse(std::move(gate)), answer(std::move(handler)) {}
  ~State() {
    {
      const std::lock_guard<std::mutex> lock(guard);
      stopped = true;
    }
    news.notify_all();
    for (std::thread& worker : workers) worker.join();  // each connection is resumed by then
    if (daemon != nullptr) MHD_stop_daemon(daemon);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // Answers, and turns what nobody foresaw into an answer, too: a request never ends the server.
  HttpReply answered(const HttpRequest& request) const noexcept {
    try {
      try {
        return answer(request);
      } catch (const std::bad_alloc&) {
        return no_memory();
      } catch (const std::length_error&) {  // more values than any memory holds
        return no_memory();
      } catch (const std::exception& error) {
        return http_error(500, error.what());
      }
    } catch (const std::exception&) {  // nor for the words
      return {503, {}, {}, {}};
    }
  }

  static HttpReply refusal(int status, const char* message) noexcept {
    try {
      return http_error(status, message);
    } catch (const std::exception&) {
      return {503, {}, {}, {}};
    }
  }

  void work() {
    while (true) {
      std::unique_lock<std::mutex> lock(guard);
      news.wait(lock, [&] { return stopped || !queue.empty(); });
      if (queue.empty()) return;
      Exchange* exchange = queue.front();
      queue.pop_front();
      const bool late = stopped;
      lock.unlock();
      if (late) {
        exchange->reply = refusal(503, "the server is stopping; ask another one");
      } else if (is_left(exchange->socket)) {
        exchange->reply = refusal(499, "the client left before its answer");
      } else {
        exchange->reply = answered(exchange->request);
        if (!has_room(*exchange, exchange->reply->body.size())) exchange->reply = refusal(503, kCrowdedAnswers);
      }
      forget(*exchange);
      MHD_resume_connection(exchange->connection);  // from here the exchange belongs to the server's own thread
    }
  }

  // Whether an answer may wait for its client: a short one always, a long one within the limit or alone.
  bool has_room(Exchange& exchange, std::size_t bytes) {
    const std::uint64_t most = kHeld * limits.body;
    if (bytes <= most / limits.connections) return true;
    const std::uint64_t others = answers.fetch_add(bytes);
    if (others > 0 && others + bytes > most) {
      answers -= bytes;
      return false;
    }
    exchange.answer = bytes;
    return true;
  }

  // From now on the client has as long as a transfer may take, and as it may be idle before.
  void expect(MHD_Connection* connection, std::chrono::seconds before = {}) noexcept {
    try {
      const std::lock_guard<std::mutex> lock(clients_guard);
      clients[connection] = {socket_of(connection), Clock::now() + before + limits.transfer};
    } catch (const std::exception&) {  // no memory: it is closed when nothing moves
    }
  }

  // The client is not waited for: the server works for it, or it is gone.
  void expect_nothing(MHD_Connection* connection) {
    const std::lock_guard<std::mutex> lock(clients_guard);
    clients.erase(connection);
  }

  void close_late() {
    const std::lock_guard<std::mutex> lock(clients_guard);  // while it is held, no socket that stands there is closed
    for (const auto& [connection, waiting] : clients) {
      if (waiting.end < Clock::now()) shutdown(waiting.socket, SHUT_RDWR);  // the server's own thread sees its end
    }
  }

  // Hands a whole request to the workers. False: too many wait.
  bool hand_over(Exchange& exchange) {
    {
      const std::lock_guard<std::mutex> lock(guard);
      if (stopped || queue.size() >= limits.queue) return false;
      expect_nothing(exchange.connection);
      queue.push_back(&exchange);
      MHD_suspend_connection(exchange.connection);  // before a worker can see it, which waits for the guard
    }
    news.notify_one();
    return true;
  }

  // The reply is kept with the exchange, for it is sent from there.
  MHD_Result send(Exchange& exchange, HttpReply given) {
    MHD_Connection* const connection = exchange.connection;
    HttpReply& reply = exchange.reply.emplace(std::move(given));
    expect(connection);
    MHD_Response* made = MHD_create_response_from_buffer(reply.body.size(), reply.body.data(), MHD_RESPMEM_PERSISTENT);
    if (made == nullptr) return MHD_NO;
    const char* const type = reply.json_size ? "application/octet-stream" : "application/json";
    MHD_add_response_header(made, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (reply.json_size) MHD_add_response_header(made, kLengthHeader, std::to_string(*reply.json_size).c_str());
    MHD_add_response_header(made, "X-Content-Type-Options", "nosniff");
    if (!reply.allow.empty()) MHD_add_response_header(made, MHD_HTTP_HEADER_ALLOW, reply.allow.c_str());
    if (reply.status == 401) MHD_add_response_header(made, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (reply.status == 503) MHD_add_response_header(made, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    if (leaving || exchange.last) MHD_add_response_header(made, MHD_HTTP_HEADER_CONNECTION, "close");
    const MHD_Result queued = MHD_queue_response(connection, static_cast<unsigned>(reply.status), made);
    MHD_destroy_response(made);
    return queued;
  }

  // The headers have arrived. A body that is far too large is refused before it is read.
  MHD_Result begin(Exchange& exchange) {
    exchange.began = true;
    exchange.request.encoding = optional_header(exchange.connection, MHD_HTTP_HEADER_CONTENT_ENCODING);
    exchange.request.type = optional_header(exchange.connection, MHD_HTTP_HEADER_CONTENT_TYPE);
    exchange.request.host = optional_header(exchange.connection, MHD_HTTP_HEADER_HOST);
    exchange.request.origin = optional_header(exchange.connection, "Origin");
    exchange.request.authorization = optional_header(exchange.connection, MHD_HTTP_HEADER_AUTHORIZATION);
    exchange.request.header_length = optional_header(exchange.connection, kLengthHeader);
    Framing framing;
    MHD_get_connection_values_n(exchange.connection, MHD_HEADER_KIND, &State::on_header, &framing);
    if (const auto wrong = framing.wrong(exchange.named)) {
      exchange.last = true;
      return send(exchange, http_error(400, *wrong));
    }
    exchange.reply = refuse(exchange.request);
    const char* length = header(exchange.connection, MHD_HTTP_HEADER_CONTENT_LENGTH);
    if (length == nullptr) return MHD_YES;
    std::uint64_t bytes = 0;
    const char* end = length + std::strlen(length);
    const auto [last, failed] = std::from_chars(length, end, bytes);
    if (failed != std::errc() || last != end)
      return send(exchange, http_error(400, "Content-Length is no number of bytes"));
    if (bytes / kDiscarded > limits.body) return send(exchange, too_large(limits.body));
    if (bytes <= limits.body && !exchange.reply) exchange.request.body.reserve(std::min<std::size_t>(bytes, 1U << 16U));
    return MHD_YES;
  }

  // A piece of the body; what is too much is counted and thrown away, for a client listens once it has sent all.
  MHD_Result take(Exchange& exchange, const char* bytes, std::size_t& count) {
    exchange.received += count;
    if (exchange.received / kDiscarded > limits.body) return MHD_NO;  // closes the connection
    if (exchange.received <= limits.body && !exchange.reply) {
      keep(exchange, bytes, count);
    } else {
      forget(exchange);
    }
    count = 0;
    return MHD_YES;
  }

  void keep(Exchange& exchange, const char* bytes, std::size_t count) {
    if (held.fetch_add(count) + count > kHeld * limits.body) {
      held -= count;
      forget(exchange);
      exchange.reply = refusal(503, kCrowdedBodies);
      return;
    }
    exchange.kept += count;
    exchange.request.body.append(bytes, count);
  }

  void forget(Exchange& exchange) {
    std::string().swap(exchange.request.body);
    held -= exchange.kept;
    exchange.kept = 0;
  }

  MHD_Result finish(Exchange& exchange) {
    if (exchange.reply) return send(exchange, std::move(*exchange.reply));
    if (exchange.received > limits.body) return send(exchange, too_large(limits.body));
    if (exchange.received == 0) return send(exchange, answered(exchange.request));
    if (hand_over(exchange)) return MHD_YES;
    return send(exchange, http_error(503, "too many requests wait (" + std::to_string(limits.queue) +
                                              "); ask again in a second"));
  }

  static MHD_Result on_header(void* framing, MHD_ValueKind, const char* name, std::size_t name_size, const char* value,
                              std::size_t value_size) {
    const bool folded = value != nullptr && is_folded(name + name_size, value);
    static_cast<Framing*>(framing)->add({name, name_size}, {value == nullptr ? "" : value, value_size}, folded);
    return MHD_YES;
  }

  static MHD_Result on_request(void* self, MHD_Connection* connection, const char* path, const char* method,
                               const char* version, const char* bytes, std::size_t* count, void** slot) {
    State& state = *static_cast<State*>(self);
    auto* exchange = static_cast<Exchange*>(*slot);
    try {
      if (exchange == nullptr) return MHD_NO;
      if (!exchange->began) {
        exchange->connection = connection;
        exchange->socket = socket_of(connection);
        exchange->request.method = method;
        exchange->named = std::strcmp(version, MHD_HTTP_VERSION_1_0) != 0;
        exchange->request.path = path;
        if (exchange->request.path.size() > 1 && exchange->request.path.back() == '/')
          exchange->request.path.pop_back();
        if (exchange->nul) exchange->request.path = std::string(path) + kNul;  // that of nothing
        return state.begin(*exchange);
      }
      return *count > 0 ? state.take(*exchange, bytes, *count) : state.finish(*exchange);
    } catch (const std::exception&) {  // no memory for so much as an answer
      return MHD_NO;
    }
  }

  // The request line was read: whatever comes next belongs to one exchange, until `on_end`.
  static void* on_start(void* self, const char* address, MHD_Connection* connection) {
    State& state = *static_cast<State*>(self);
    auto* exchange = new (std::nothrow) Exchange;
    if (exchange != nullptr) {
      ++state.open;
      const std::string_view path(address, std::strcspn(address, "?"));
      exchange->nul = path.find(kNul) != std::string_view::npos;
    }
    state.expect(connection);
    return exchange;
  }

  static void on_end(void* self, MHD_Connection* connection, void** slot, MHD_RequestTerminationCode) {
    auto* exchange = static_cast<Exchange*>(*slot);
    *slot = nullptr;
    if (exchange == nullptr) return;
    State& state = *static_cast<State*>(self);
    state.forget(*exchange);
    state.answers -= exchange->answer;
    delete exchange;
    --state.open;
    state.expect(connection, state.limits.idle);  // the next one
  }

  static void on_connection(void* self, MHD_Connection* connection, void**, MHD_ConnectionNotificationCode what) {
    State& state = *static_cast<State*>(self);
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
      state.expect(connection);
    } else {
      state.expect_nothing(connection);
    }
  }
};

HttpServer::HttpServer(const HttpLimits& limits, Gate refuse, Handler answer)
    : state_(std::make_unique<State>(limits, std::move(refuse), std::move(answer))) {
  const auto address = address_of(limits.host, limits.port);
  const unsigned version6 = address->ai_family == AF_INET6 ? static_cast<unsigned>(MHD_USE_IPv6) : 0U;
  // poll, not epoll: whose edges this library may miss where a client leaves in the middle of a body
  state_->daemon = MHD_start_daemon(MHD_USE_POLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | version6, limits.port,
                                    nullptr, nullptr, &State::on_request, state_.get(),                         //
                                    MHD_OPTION_SOCK_ADDR, address->ai_addr,                                     //
                                    MHD_OPTION_CONNECTION_LIMIT, static_cast<unsigned>(limits.connections),     //
                                    MHD_OPTION_CONNECTION_TIMEOUT, static_cast<unsigned>(limits.idle.count()),  //
                                    MHD_OPTION_CONNECTION_MEMORY_LIMIT, kHeaderBytes,                           //
                                    MHD_OPTION_URI_LOG_CALLBACK, &State::on_start, state_.get(),                //
                                    MHD_OPTION_NOTIFY_CONNECTION, &State::on_connection, state_.get(),          //
                                    MHD_OPTION_NOTIFY_COMPLETED, &State::on_end, state_.get(), MHD_OPTION_END);
  if (state_->daemon == nullptr) {
    throw InputError("cannot listen on " + limits.host + ", port " + std::to_string(limits.port) + " (" +
                     std::generic_category().message(errno) + "); give another --host or --port");
  }
  try {
    for (std::size_t i = 0; i < limits.workers; ++i)
      state_->workers.emplace_back([state = state_.get()] { state->work(); });
  } catch (const std::system_error& error) {
    throw InputError("cannot start " + std::to_string(limits.workers) + " workers (" + error.code().message() +
                     "); give fewer with --workers");
  }
}

HttpServer::~HttpServer() = default;

std::uint16_t HttpServer::port() const { return MHD_get_daemon_info(state_->daemon, MHD_DAEMON_INFO_BIND_PORT)->port; }

void HttpServer::quiesce() {
  state_->leaving = true;
  const int socket = MHD_quiesce_daemon(state_->daemon);
  if (socket >= 0) close(socket);
}

std::size_t HttpServer::open() const { return state_->open; }

void HttpServer::close_late() { state_->close_late(); }

}  // namespace hydrant
