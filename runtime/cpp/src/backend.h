// The choice of a backend: which execution provider of ONNX Runtime runs which of the bundle's graphs.
#pragma once

#include <memory>
#include <vector>

#include "architecture.h"
#include "bundle.h"
#include "hydrant/hydrant.h"
#include "microbatch.h"
#include "session.h"

namespace hydrant {

// Runs one bundle. Safe to use from many threads.
class Backend {
 public:
  Backend(const Bundle& bundle, const Architecture& architecture, const std::string& name, const Options& options);

  const std::string& name() const { return name_; }
  const std::string& precision() const { return precision_; }

  // Most inputs of a batch that go into one run of the session.
  std::size_t chunk(std::size_t batch, std::size_t tokens) const;

  // Outputs of one batch, in parts of nearly equal size where it is larger than one run takes.
  Outputs run(const Tensors& inputs) const;

 private:
  std::string name_;
  std::string precision_;
  Microbatch microbatch_;
  std::unique_ptr<const Session> session_;
};

// The backend asked for, or with "auto" the first that can run; what was passed over goes to `fallbacks`.
// Only absence makes "auto" go on; a file that was altered is an error.
// Throws BackendError: unknown, or none can run; BundleError: a file is altered or malformed.
std::unique_ptr<const Backend> open_backend(const Bundle& bundle, const Architecture& architecture,
                                            const Options& options, std::vector<Fallback>& fallbacks);

}  // namespace hydrant
