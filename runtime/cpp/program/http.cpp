#include "http.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "../src/files.h"
#include "../src/messages.h"
#include "ascii.h"
#include "hydrant/hydrant.h"
#include "rows.h"

namespace hydrant {

namespace {

constexpr std::size_t kBufferBytes = 32U << 10U;  // per connection: request line, headers, a piece of the body
constexpr std::size_t kDiscardFactor = 8;         // rejected bodies are read up to this multiple of the limit
constexpr std::uint64_t kMemoryFactor = 16;       // memory of all bodies, and of all long responses, in body limits
constexpr const char* kNul = "%00";               // in a path

using Clock = std::chrono::steady_clock;

HttpReply too_large(std::size_t most) {
  return http_error(413, concat("the body is larger than ", most,
                                " bytes; send fewer inputs, or start the server with a larger --max-bytes"));
}

constexpr const char* kBodiesFull = "bodies of other requests use all memory for bodies; retry in a second";
constexpr const char* kResponsesFull =
    "unread long responses use all memory for them; request less, or retry in a second";

// Returns true if the client has closed its connection.
bool is_closed(int socket) {
  char byte = 0;
  const ssize_t count = recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return count == 0 || (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

int socket_of(MHD_Connection* connection) {
  return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
}

// Returns true if a header continued on the next line; libmicrohttpd then moves its value within the connection's
// memory.
bool is_folded(const char* name_end, const char* value) {
  const std::less<> before;
  if (!before(name_end, value) || value - name_end > static_cast<std::ptrdiff_t>(kBufferBytes)) return true;
  return !std::all_of(name_end, value, [](char each) { return each == '\0' || each == ' ' || each == '\t'; });
}

// Returns true for characters of header names (RFC 9110, 5.6.2).
bool is_name_character(char each) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  const char low = lowered(each);
  return (low >= 'a' && low <= 'z') || (low >= '0' && low <= '9') || kMarks.find(each) != std::string_view::npos;
}

// Requires one length and one host in the headers, so that proxies cannot read two requests.
class Framing {
 public:
  // Adds a header, whose bytes must outlive this; `folded`: it continues on the next line.
  void add(std::string_view name, std::string_view value, bool folded) noexcept {
    if (!invalid_ && (name.empty() || !std::all_of(name.begin(), name.end(), is_name_character))) invalid_ = name;
    if (!folded_ && folded) folded_ = name;
    if (is_alike(name, "Host")) ++hosts_;
    if (is_alike(name, "Content-Length")) ++lengths_;
    if (is_alike(name, "Transfer-Encoding")) {
      ++codings_;
      coding_ = value;
    }
  }

  // The first error, or nothing; `needs_host`: HTTP/1.1.
  std::optional<std::string> error(bool needs_host) const {
    if (folded_) return "the header " + cut(*folded_) + " continues on the next line; expected one line per header";
    if (invalid_)
      return "a header is called " + cut(*invalid_) + "; expected letters, digits and marks, without spaces";
    if (hosts_ > 1 || (needs_host && hosts_ == 0))
      return concat("the request has ", hosts_, " Host headers; expected one");
    if (lengths_ + codings_ > 1)
      return "the request has several lengths; expected one Content-Length or Transfer-Encoding";
    if (codings_ == 1 && !is_alike(coding_, "chunked"))
      return "the request has Transfer-Encoding " + cut(coding_) + "; expected chunked, or Content-Length instead";
    return std::nullopt;
  }

 private:
  std::optional<std::string_view> invalid_, folded_;  // first such names
  std::string_view coding_;                           // of the body
  std::size_t hosts_ = 0, lengths_ = 0, codings_ = 0;
};

using Addresses = std::unique_ptr<addrinfo, Freed<freeaddrinfo>>;

Addresses address_of(const std::string& host, std::uint16_t port) {
  addrinfo wanted{};
  wanted.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* addresses = nullptr;
  const int failed =
      getaddrinfo(host == "localhost" ? "127.0.0.1" : host.c_str(), std::to_string(port).c_str(), &wanted, &addresses);
  if (failed != 0 || addresses == nullptr) {
    throw InputError(concat("--host is ", cut(host), ", which is not an address of this machine (",
                            gai_strerror(failed), "); expected an address such as 127.0.0.1, or 0.0.0.0 for all"));
  }
  return Addresses(addresses);
}

std::optional<std::string> header(MHD_Connection* connection, const char* name) {
  const char* value = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

}  // namespace

struct HttpServer::State {
  // One request, from its first header to the end of its response.
  struct Exchange {
    HttpRequest request;
    std::size_t received = 0, stored = 0;  // bytes of the body
    std::size_t response_bytes = 0;        // 0 for short responses
    bool started = false;                  // its headers were read
    bool needs_host = false;
    bool has_nul = false;  // in its path, where libmicrohttpd ends
    bool closes = false;   // its connection, since its end is unknown
    std::optional<HttpReply> reply;
    MHD_Connection* connection = nullptr;
    int socket = -1;
  };

  HttpLimits limits;
  Gate reject;
  Handler answer;
  MHD_Daemon* daemon = nullptr;
  std::atomic<std::size_t> open{0};
  std::atomic<std::uint64_t> body_bytes{0};      // of all bodies
  std::atomic<std::uint64_t> response_bytes{0};  // of all long responses
  std::atomic<bool> stopping{false};

  std::mutex guard;
  std::condition_variable changed;
  std::deque<Exchange*> queue;
  bool stopped = false;
  std::vector<std::thread> workers;

  // A connection that waits for its client to send a request or to read a response.
  struct Waiting {
    int socket = -1;
    Clock::time_point end;
  };
  std::mutex clients_guard;
  std::map<MHD_Connection*, Waiting> clients;

  State(const HttpLimits& chosen, Gate gate, Handler handler)
      : limits(chosen), reject(std::move(gate)), answer(std::move(handler)) {}
  ~State() {
    {
      const std::lock_guard<std::mutex> lock(guard);
      stopped = true;
    }
    changed.notify_all();
    for (std::thread& worker : workers) worker.join();  // all connections are then resumed
    if (daemon != nullptr) MHD_stop_daemon(daemon);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // Answers, also after unexpected errors: a request never ends the server.
  HttpReply answered(const HttpRequest& request) const noexcept {
    try {
      return answer(request);
    } catch (const std::bad_alloc&) {
      return refusal(503, kNoMemory);
    } catch (const std::length_error&) {  // more values than any memory holds
      return refusal(503, kNoMemory);
    } catch (const std::exception& error) {
      return refusal(500, error.what());
    }
  }

  static HttpReply refusal(int status, const char* message) noexcept {
    try {
      return http_error(status, message);
    } catch (const std::exception&) {  // not enough memory for the message
      return {503, {}, {}, {}};
    }
  }

  void work() {
    while (true) {
      std::unique_lock<std::mutex> lock(guard);
      changed.wait(lock, [&] { return stopped || !queue.empty(); });
      if (queue.empty()) return;
      Exchange* exchange = queue.front();
      queue.pop_front();
      const bool late = stopped;
      lock.unlock();
      if (late) {
        exchange->reply = refusal(503, "the server is stopping; use another server");
      } else if (is_closed(exchange->socket)) {
        exchange->reply = refusal(499, "the client closed its connection");
      } else {
        exchange->reply = answered(exchange->request);
        if (!reserve_response(*exchange, exchange->reply->body.size())) exchange->reply = refusal(503, kResponsesFull);
      }
      discard(*exchange);
      MHD_resume_connection(exchange->connection);  // the server's thread then owns the exchange
    }
  }

  // Reserves memory for a response: always if short or alone; false beyond the limit.
  bool reserve_response(Exchange& exchange, std::size_t bytes) {
    const std::uint64_t most = kMemoryFactor * limits.body;
    if (bytes <= most / limits.connections) return true;
    const std::uint64_t others = response_bytes.fetch_add(bytes);
    if (others > 0 && others + bytes > most) {
      response_bytes -= bytes;
      return false;
    }
    exchange.response_bytes = bytes;
    return true;
  }

  // Starts the client's transfer time, after the given idle time.
  void start_timer(MHD_Connection* connection, std::chrono::seconds before = {}) noexcept {
    try {
      const std::lock_guard<std::mutex> lock(clients_guard);
      clients[connection] = {socket_of(connection), Clock::now() + before + limits.transfer};
    } catch (const std::exception&) {  // no memory: the idle timeout applies
    }
  }

  // Stops the client's transfer time.
  void stop_timer(MHD_Connection* connection) {
    const std::lock_guard<std::mutex> lock(clients_guard);
    clients.erase(connection);
  }

  void close_late() {
    const std::lock_guard<std::mutex> lock(clients_guard);  // keeps the listed sockets open
    for (const auto& [connection, waiting] : clients) {
      if (waiting.end < Clock::now()) shutdown(waiting.socket, SHUT_RDWR);  // noticed by the server's thread
    }
  }

  // Queues a complete request for the workers; false if the queue is full.
  bool hand_over(Exchange& exchange) {
    {
      const std::lock_guard<std::mutex> lock(guard);
      if (stopped || queue.size() >= limits.queue) return false;
      stop_timer(exchange.connection);
      queue.push_back(&exchange);
      MHD_suspend_connection(exchange.connection);  // before a worker can take it
    }
    changed.notify_one();
    return true;
  }

  // Sends a reply; the exchange keeps its body until the end.
  MHD_Result send(Exchange& exchange, HttpReply new_reply) {
    MHD_Connection* const connection = exchange.connection;
    HttpReply& reply = exchange.reply.emplace(std::move(new_reply));
    start_timer(connection);
    MHD_Response* response =
        MHD_create_response_from_buffer(reply.body.size(), reply.body.data(), MHD_RESPMEM_PERSISTENT);
    if (response == nullptr) return MHD_NO;
    const char* const type = reply.json_size ? "application/octet-stream" : "application/json";
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (reply.json_size) MHD_add_response_header(response, kLengthHeader, std::to_string(*reply.json_size).c_str());
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (!reply.allow.empty()) MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, reply.allow.c_str());
    if (reply.status == 401) MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (reply.status == 503) MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    if (stopping || exchange.closes) MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    const MHD_Result queued = MHD_queue_response(connection, static_cast<unsigned>(reply.status), response);
    MHD_destroy_response(response);
    return queued;
  }

  // Reads the headers; rejects far too large bodies early.
  MHD_Result begin(Exchange& exchange) {
    exchange.started = true;
    MHD_Connection* const connection = exchange.connection;
    exchange.request.encoding = header(connection, MHD_HTTP_HEADER_CONTENT_ENCODING);
    exchange.request.type = header(connection, MHD_HTTP_HEADER_CONTENT_TYPE);
    exchange.request.host = header(connection, MHD_HTTP_HEADER_HOST);
    exchange.request.origin = header(connection, "Origin");
    exchange.request.authorization = header(connection, MHD_HTTP_HEADER_AUTHORIZATION);
    exchange.request.header_length = header(connection, kLengthHeader);
    Framing framing;
    MHD_get_connection_values_n(connection, MHD_HEADER_KIND, &State::on_header, &framing);
    if (const auto error = framing.error(exchange.needs_host)) {
      exchange.closes = true;
      return send(exchange, http_error(400, *error));
    }
    exchange.reply = reject(exchange.request);
    const auto length = header(connection, MHD_HTTP_HEADER_CONTENT_LENGTH);
    if (!length) return MHD_YES;
    const auto bytes = decimal(*length);
    if (!bytes)
      return send(exchange, http_error(400, "Content-Length is " + cut(*length) + "; expected a number of bytes"));
    if (*bytes / kDiscardFactor > limits.body) return send(exchange, too_large(limits.body));
    if (*bytes <= limits.body && !exchange.reply)
      exchange.request.body.reserve(std::min<std::size_t>(*bytes, 1U << 16U));
    return MHD_YES;
  }

  // Takes a piece of the body; discards too large bodies, since clients read responses only after sending all.
  MHD_Result take(Exchange& exchange, const char* bytes, std::size_t& count) {
    exchange.received += count;
    if (exchange.received / kDiscardFactor > limits.body) return MHD_NO;  // closes the connection
    if (exchange.received <= limits.body && !exchange.reply) {
      store(exchange, bytes, count);
    } else {
      discard(exchange);
    }
    count = 0;
    return MHD_YES;
  }

  void store(Exchange& exchange, const char* bytes, std::size_t count) {
    if (body_bytes.fetch_add(count) + count > kMemoryFactor * limits.body) {
      body_bytes -= count;
      discard(exchange);
      exchange.reply = refusal(503, kBodiesFull);
      return;
    }
    exchange.stored += count;
    exchange.request.body.append(bytes, count);
  }

  void discard(Exchange& exchange) {
    std::string().swap(exchange.request.body);
    body_bytes -= exchange.stored;
    exchange.stored = 0;
  }

  MHD_Result finish(Exchange& exchange) {
    if (exchange.reply) return send(exchange, std::move(*exchange.reply));
    if (exchange.received > limits.body) return send(exchange, too_large(limits.body));
    if (exchange.received == 0) return send(exchange, answered(exchange.request));
    if (hand_over(exchange)) return MHD_YES;
    return send(exchange, http_error(503, concat("too many waiting requests (", limits.queue, "); retry in a second")));
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
      if (!exchange->started) {
        exchange->connection = connection;
        exchange->socket = socket_of(connection);
        exchange->request.method = method;
        exchange->needs_host = std::strcmp(version, MHD_HTTP_VERSION_1_0) != 0;
        exchange->request.path = path;
        if (exchange->request.path.size() > 1 && exchange->request.path.back() == '/')
          exchange->request.path.pop_back();
        if (exchange->has_nul) exchange->request.path = std::string(path) + kNul;  // unknown
        return state.begin(*exchange);
      }
      return *count > 0 ? state.take(*exchange, bytes, *count) : state.finish(*exchange);
    } catch (const std::exception&) {  // not enough memory for a response
      return MHD_NO;
    }
  }

  // Creates an exchange after the request line; `on_end` destroys it.
  static void* on_start(void* self, const char* address, MHD_Connection* connection) {
    State& state = *static_cast<State*>(self);
    auto* exchange = new (std::nothrow) Exchange;
    if (exchange != nullptr) {
      ++state.open;
      const std::string_view path(address, std::strcspn(address, "?"));
      exchange->has_nul = path.find(kNul) != std::string_view::npos;
    }
    state.start_timer(connection);
    return exchange;
  }

  static void on_end(void* self, MHD_Connection* connection, void** slot, MHD_RequestTerminationCode) {
    auto* exchange = static_cast<Exchange*>(*slot);
    *slot = nullptr;
    if (exchange == nullptr) return;
    State& state = *static_cast<State*>(self);
    state.discard(*exchange);
    state.response_bytes -= exchange->response_bytes;
    delete exchange;
    --state.open;
    state.start_timer(connection, state.limits.idle);  // for the next request
  }

  static void on_connection(void* self, MHD_Connection* connection, void**, MHD_ConnectionNotificationCode what) {
    State& state = *static_cast<State*>(self);
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
      state.start_timer(connection);
    } else {
      state.stop_timer(connection);
    }
  }
};

HttpReply http_error(int status, const std::string& message) {
  return {status, to_line({{"error", one_line(message)}}), "", std::nullopt};
}

HttpServer::HttpServer(const HttpLimits& limits, Gate reject, Handler answer)
    : state_(std::make_unique<State>(limits, std::move(reject), std::move(answer))) {
  const auto address = address_of(limits.host, limits.port);
  const unsigned version6 = address->ai_family == AF_INET6 ? static_cast<unsigned>(MHD_USE_IPv6) : 0U;
  // poll, since this library may miss edges of epoll if a client leaves within a body
  state_->daemon = MHD_start_daemon(MHD_USE_POLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | version6, limits.port,
                                    nullptr, nullptr, &State::on_request, state_.get(),                         //
                                    MHD_OPTION_SOCK_ADDR, address->ai_addr,                                     //
                                    MHD_OPTION_CONNECTION_LIMIT, static_cast<unsigned>(limits.connections),     //
                                    MHD_OPTION_CONNECTION_TIMEOUT, static_cast<unsigned>(limits.idle.count()),  //
                                    MHD_OPTION_CONNECTION_MEMORY_LIMIT, kBufferBytes,                           //
                                    MHD_OPTION_URI_LOG_CALLBACK, &State::on_start, state_.get(),                //
                                    MHD_OPTION_NOTIFY_CONNECTION, &State::on_connection, state_.get(),          //
                                    MHD_OPTION_NOTIFY_COMPLETED, &State::on_end, state_.get(), MHD_OPTION_END);
  if (state_->daemon == nullptr) {
    throw InputError(concat("cannot listen on ", limits.host, ", port ", limits.port, " (",
                            std::generic_category().message(errno), "); use another --host or --port"));
  }
  try {
    for (std::size_t i = 0; i < limits.workers; ++i)
      state_->workers.emplace_back([state = state_.get()] { state->work(); });
  } catch (const std::system_error& error) {
    throw InputError(
        concat("cannot start ", limits.workers, " workers (", error.code().message(), "); use fewer --workers"));
  }
}

HttpServer::~HttpServer() = default;

std::uint16_t HttpServer::port() const { return MHD_get_daemon_info(state_->daemon, MHD_DAEMON_INFO_BIND_PORT)->port; }

void HttpServer::quiesce() {
  state_->stopping = true;
  const int socket = MHD_quiesce_daemon(state_->daemon);
  if (socket >= 0) close(socket);
}

std::size_t HttpServer::open() const { return state_->open; }

void HttpServer::close_late() { state_->close_late(); }

}  // namespace hydrant
