// The backend that runs a bundle, and how it is chosen.
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

// Runs one bundle. Every method is safe to call from many threads.
class Backend {
 public:
  Backend(std::string name, std::string precision) : name_(std::move(name)), precision_(std::move(precision)) {}
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  const std::string& name() const { return name_; }
  const std::string& precision() const { return precision_; }

  // Tokens of the longest text that it takes; nothing where it takes what the model reads.
  virtual std::optional<std::size_t> longest() const { return std::nullopt; }

  // Names of its outputs.
  virtual std::vector<std::string> outputs() const = 0;

  // Most inputs of a batch that it runs at once.
  virtual std::size_t chunk(std::size_t batch, std::size_t tokens) const = 0;

  // Outputs of one batch. Throws BackendError: the library behind it failed, or does not take these inputs.
  virtual Outputs run(const Views& inputs) const = 0;

 private:
  std::string name_;
  std::string precision_;
};

// The backend asked for, or with "auto" the first that can run; skipped ones go to `fallbacks`.
// Only absence makes "auto" go on; an altered file is a BundleError.
std::unique_ptr<const Backend> open_backend(const Bundle& bundle, const Architecture& architecture,
                                            const Options& options, std::vector<Fallback>& fallbacks);

}  // namespace hydrant
