// A bundle as a service: routes and responses.
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

// Returns true if a URL's host, with or without a port, is this machine.
bool is_loopback(const std::string& host);

class Service {
 public:
  // Predicts once, to warm up and to list the outputs; `local`: only this machine can reach the service.
  Service(const Predictor& predictor, std::string name, bool local, const HttpLimits& limits);

  const std::string& name() const { return name_; }

  // Rejects other sites' pages, missing tokens and compressed bodies, by the headers. Thread-safe.
  std::optional<HttpReply> rejected(const HttpRequest& request) const;

  // The response to an accepted request. Thread-safe.
  HttpReply answer(const HttpRequest& request) const;

  // Reports not ready from now on.
  void stop() { stopping_ = true; }

 private:
  HttpReply routed(const HttpRequest& request) const;
  HttpReply of_model(const HttpRequest& request, const std::string& rest) const;
  HttpReply ready(OrderedJson body) const;
  std::optional<HttpReply> wrong_host(const HttpRequest& request) const;
  std::optional<HttpReply> wrong_origin(const HttpRequest& request) const;
  HttpReply infer(const HttpRequest& request) const;
  HttpReply predict(const HttpRequest& request) const;
  std::optional<HttpReply> unsupported(const RequestInputs& inputs) const;

  const Predictor& predictor_;
  std::string name_;
  bool local_;
  std::optional<std::string> token_;
  std::size_t most_inputs_;
  std::uint64_t most_pixels_;
  std::size_t longest_text_;
  bool reads_texts_, prepares_images_;
  OrderedJson metadata_;
  std::vector<std::string> outputs_;  // names
  std::atomic<bool> stopping_{false};
};

}  // namespace hydrant
