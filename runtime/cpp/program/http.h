// An HTTP server of bounded size: the only part that knows libmicrohttpd.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace hydrant {

// What a server takes at once, and where it listens.
struct HttpLimits {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;         // 0: one of the system's choice
  std::size_t body = 8U << 20U;      // most bytes of a request's body; of all together, and of long answers, 16 times
  std::size_t inputs = 1024;         // most inputs of a request
  std::uint64_t pixels = 1U << 25U;  // most pixels of all its pictures; up to 12 bytes each
  std::size_t text = 1U << 18U;      // most bytes of a text or pair; some 400 times as many while it is cut into tokens
  std::size_t connections = 256;     // most that are open; a further one waits
  std::size_t queue = 64;            // most requests that wait for a worker; a further one is answered with 503
  std::size_t workers = 2;           // requests that are worked on at once
  std::chrono::seconds idle{30};     // a connection on which nothing moves for that long is closed
  std::chrono::seconds transfer{60};  // and one on which a request takes longer to come, or an answer to go
  std::optional<std::string> token;   // secret that clients send as `Authorization: Bearer …`
};

// The header that gives the length of the JSON in a body, behind which tensors stand in binary form.
constexpr const char* kLengthHeader = "Inference-Header-Content-Length";

struct HttpRequest {
  std::string method;  // "GET", "POST", …
  std::string path;    // decoded up to a NUL (left as %00), without the query and a slash at its end; no file's name
  std::optional<std::string> encoding, type;  // Content-Encoding and Content-Type
  std::optional<std::string> host, origin;    // Host and Origin
  std::optional<std::string> authorization;   // Authorization
  std::optional<std::string> header_length;   // that of kLengthHeader
  std::string body;
};

struct HttpReply {
  int status = 200;
  std::string body;
  std::string allow;                     // the methods that are expected, of a reply with status 405
  std::optional<std::size_t> json_size;  // bytes of JSON, behind which stand others; nothing: all of it is JSON
};

class HttpServer {
 public:
  using Handler = std::function<HttpReply(const HttpRequest&)>;
  using Gate = std::function<std::optional<HttpReply>(const HttpRequest&)>;

  // Listens; a request with a body is answered by a worker. `refuse` sees the headers alone, before the body is kept.
  // Throws InputError: the host is no address, or the port is taken.
  HttpServer(const HttpLimits& limits, Gate refuse, Handler answer);
  ~HttpServer();  // answers what waits with 503, and closes every connection

  std::uint16_t port() const;

  // Takes no further connection, and closes each after its answer.
  void quiesce();

  // Requests that were begun and not yet answered.
  std::size_t open() const;

  // Closes connections on which a request takes too long to come, or an answer to go; called from time to time.
  void close_late();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A JSON object {"error": message}.
HttpReply http_error(int status, const std::string& message);

}  // namespace hydrant
