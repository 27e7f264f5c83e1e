// What a server takes at once, and where it listens.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace hydrant {

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

}  // namespace hydrant
