// Backends of a bundle, and their selection.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "architecture.h"
#include "bundle.h"
#include "hydrant/hydrant.h"
#include "view.h"

namespace hydrant {

// Runs one bundle. All methods are thread-safe.
class Backend {
 public:
  Backend(std::string name, std::string precision) : name_(std::move(name)), precision_(std::move(precision)) {}
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  const std::string& name() const { return name_; }
  const std::string& precision() const { return precision_; }

  // Maximum tokens of a text; nothing if only the model limits them.
  virtual std::optional<std::size_t> longest() const { return std::nullopt; }

  virtual std::vector<std::string> outputs() const = 0;  // names

  virtual std::size_t chunk(std::size_t batch, std::size_t tokens) const = 0;  // maximum inputs per run

  // Outputs of one batch. Throws BackendError: the library failed or rejects these inputs.
  virtual Outputs run(const Views& inputs) const = 0;

 private:
  std::string name_;
  std::string precision_;
};

// Opens the named backend, or with "auto" the first available one; skipped ones go to `fallbacks`. Throws BundleError.
std::unique_ptr<const Backend> open_backend(const Bundle& bundle, const Architecture& architecture,
                                            const Options& options, std::vector<Fallback>& fallbacks);

}  // namespace hydrant
