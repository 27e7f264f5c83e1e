// An HTTP server of bounded size: the only part that knows libmicrohttpd.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "limits.h"

namespace hydrant {

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

  // Listens, and answers from now on: a request without a body at once, one with a body by a worker. `refuse` looks at
  // the headers alone, before any of the body is kept. Both are called from several threads.
  // Throws InputError: the host is no address, or the port is taken.
  HttpServer(const HttpLimits& limits, Gate refuse, Handler answer);
  ~HttpServer();  // answers what waits with 503, and closes every connection
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

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
