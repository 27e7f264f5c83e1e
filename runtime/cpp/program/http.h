// An HTTP server with limits; the only user of libmicrohttpd.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace hydrant {

// Limits and address of a server.
struct HttpLimits {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;          // 0: any free port
  std::size_t body = 8U << 20U;       // maximum bytes of a body; 16 times for all bodies, and for all long responses
  std::size_t inputs = 1024;          // maximum inputs of a request
  std::uint64_t pixels = 1U << 25U;   // maximum pixels of its images; up to 12 bytes each
  std::size_t text = 1U << 18U;       // maximum bytes of a text or pair; tokenizing needs about 400 times as many
  std::size_t connections = 256;      // maximum open connections; more must wait
  std::size_t queue = 64;             // maximum waiting requests; more are rejected with 503
  std::size_t workers = 2;            // concurrent requests
  std::chrono::seconds idle{30};      // timeout of idle connections
  std::chrono::seconds transfer{60};  // timeout of receiving a request or sending a response
  std::optional<std::string> token;   // secret for `Authorization: Bearer …`
};

// The header with the length of the JSON before binary tensors.
constexpr const char* kLengthHeader = "Inference-Header-Content-Length";

struct HttpRequest {
  std::string method;                         // "GET", "POST", …
  std::string path;                           // decoded up to a NUL (kept as %00), without query and final slash
  std::optional<std::string> encoding, type;  // Content-Encoding and Content-Type
  std::optional<std::string> host, origin, authorization;
  std::optional<std::string> header_length;  // kLengthHeader
  std::string body;
};

struct HttpReply {
  int status = 200;
  std::string body;
  std::string allow;                     // expected methods, with status 405
  std::optional<std::size_t> json_size;  // bytes of JSON before binary tensors; nothing: JSON alone
};

class HttpServer {
 public:
  using Handler = std::function<HttpReply(const HttpRequest&)>;
  using Gate = std::function<std::optional<HttpReply>(const HttpRequest&)>;

  // Listens; workers answer requests with a body. `reject` sees the headers before the body is stored.
  // Throws InputError: the host is not an address, or the port is taken.
  HttpServer(const HttpLimits& limits, Gate reject, Handler answer);
  ~HttpServer();  // answers waiting requests with 503, and closes all connections

  std::uint16_t port() const;

  // Accepts no new connections, and closes each after its response.
  void quiesce();

  std::size_t open() const;  // unfinished requests

  // Closes connections with slow transfers; call regularly.
  void close_late();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A JSON object {"error": message}.
HttpReply http_error(int status, const std::string& message);

}  // namespace hydrant
