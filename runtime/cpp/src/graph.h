// Backends for graphs, with an execution provider of ONNX Runtime.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "architecture.h"
#include "backend.h"
#include "bundle.h"
#include "session.h"

namespace hydrant {

struct GraphKind {
  std::string name;
  std::string provider;                 // of ONNX Runtime
  std::vector<std::string> precisions;  // preferred ones first
};

// The reason why ONNX Runtime lacks a provider; nothing if it has it.
std::optional<std::string> why_no_provider(const GraphKind& kind, const Options& options);

// Splits large batches on a CPU, so that activations fit into its caches.
class Microbatch {
 public:
  // Reads the bundle's plan. Throws BundleError.
  static Microbatch of(const Bundle& bundle, const Architecture& architecture);

  // Maximum inputs per run, for texts of this many tokens, or images.
  std::size_t chunk(std::size_t tokens) const;

 private:
  std::size_t image_tokens_ = 0;  // 0 for text
  double streams_ = 1.0;          // mean over the layers: 1 below the fork, M above; 0 to run whole batches
};

class Graph : public Backend {
 public:
  // Throws BackendError: the graph or provider is missing; BundleError: a file is altered or malformed.
  Graph(const Bundle& bundle, const Architecture& architecture, const GraphKind& kind, const Options& options);

  std::vector<std::string> outputs() const override { return session_->outputs(); }

  std::size_t chunk(std::size_t batch, std::size_t tokens) const override;

  // Splits large batches into nearly equal parts.
  Outputs run(const Views& inputs) const override;

 private:
  Microbatch microbatch_;
  std::unique_ptr<const Session> session_;
};

}  // namespace hydrant
