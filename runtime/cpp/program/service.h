// A bundle as a service: which request is answered with what.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "http.h"
#include "hydrant/hydrant.h"
#include "protocol.h"
#include "rows.h"

namespace hydrant {

// Whether a host, as a URL has it, with a port or without, is this machine itself.
bool is_loopback(const std::string& host);

class Service {
 public:
  // Predicts once, to warm up and to learn the outputs; `local`: only this machine can reach it.
  Service(const Predictor& predictor, std::string name, bool local, const HttpLimits& limits);

  const std::string& name() const { return name_; }

  // Refuses by the headers: a page of another site, no token, a compressed body. Safe to call from many threads.
  std::optional<HttpReply> refused(const HttpRequest& request) const;

  // The answer to a request that was not refused.
  HttpReply answer(const HttpRequest& request) const;

  // From now on it says that it is not ready.
  void leave() { leaving_ = true; }

 private:
  HttpReply routed(const HttpRequest& request) const;
  HttpReply of_model(const HttpRequest& request, const std::string& rest) const;
  HttpReply ready(OrderedJson body) const;
  std::optional<HttpReply> renamed(const HttpRequest& request) const;
  std::optional<HttpReply> foreign(const HttpRequest& request) const;
  HttpReply infer(const HttpRequest& request) const;
  HttpReply predict(const HttpRequest& request) const;
  std::optional<HttpReply> unfit(const Asked& asked) const;

  const Predictor& predictor_;
  std::string name_;
  bool local_;
  std::optional<std::string> token_;
  std::size_t most_inputs_;
  std::uint64_t most_pixels_;
  std::size_t longest_text_;
  bool reads_texts_, prepares_images_;
  OrderedJson metadata_;
  std::vector<std::string> outputs_;  // their names
  std::atomic<bool> leaving_{false};
};

}  // namespace hydrant
