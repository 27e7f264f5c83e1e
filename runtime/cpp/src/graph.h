// The backends that run one of the bundle's graphs with an execution provider of ONNX Runtime.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend.h"
#include "microbatch.h"
#include "session.h"

namespace hydrant {

// What one of these backends runs with.
struct GraphKind {
  std::string name;
  std::string provider;                 // of ONNX Runtime
  std::vector<std::string> precisions;  // preferred ones first
};

// Why ONNX Runtime cannot run a graph so, or nothing if it can.
std::optional<std::string> why_no_provider(const GraphKind& kind, const Options& options);

class Graph : public Backend {
 public:
  // Throws BackendError: the bundle has no such graph, or the provider is not there or cannot run it; BundleError: a
  // file is altered or malformed.
  Graph(const Bundle& bundle, const Architecture& architecture, const GraphKind& kind, const Options& options);

  std::vector<std::string> outputs() const override { return session_->outputs(); }

  std::size_t chunk(std::size_t batch, std::size_t tokens) const override;

  // In parts of nearly equal size where the batch is larger than one run takes.
  Outputs run(const Views& inputs) const override;

 private:
  Microbatch microbatch_;
  std::unique_ptr<const Session> session_;
};

}  // namespace hydrant
