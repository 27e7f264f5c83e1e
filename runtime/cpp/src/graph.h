// The backends that run one of the bundle's graphs with an execution provider of ONNX Runtime.
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

// What one of these backends runs with.
struct GraphKind {
  std::string name;
  std::string provider;                 // of ONNX Runtime
  std::vector<std::string> precisions;  // preferred ones first
};

// Why ONNX Runtime cannot run a graph so, or nothing if it can.
std::optional<std::string> why_no_provider(const GraphKind& kind, const Options& options);

// Running a large batch on a CPU as several smaller ones: the activations of more rows no longer fit into its caches.
class Microbatch {
 public:
  // For the model of a bundle, by its plan. Throws BundleError.
  static Microbatch of(const Bundle& bundle, const Architecture& architecture);

  // Most inputs of a batch of texts of so many tokens (or of images) that go into one run.
  std::size_t chunk(std::size_t tokens) const;

 private:
  std::size_t image_tokens_ = 0;  // 0 for text, which may have any length
  double streams_ = 1.0;          // mean over the layers: 1 before the fork, M from it on
};

class Graph : public Backend {
 public:
  // Throws BackendError: no such graph or provider; BundleError: a file is altered or malformed.
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
