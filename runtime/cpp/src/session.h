// ONNX graphs in ONNX Runtime sessions.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hydrant/hydrant.h"
#include "view.h"

namespace hydrant {

// An execution provider of ONNX Runtime.
struct Provider {
  std::string name;  // "CPUExecutionProvider", …
  std::map<std::string, std::string> options;
  std::filesystem::path library;  // of a plug-in; empty for built-in providers
};

class Session {
 public:
  // Throws BackendError: the provider cannot run the graph; BundleError: the CPU cannot either.
  Session(const std::filesystem::path& graph, const Provider& provider, std::optional<int> threads);
  ~Session();

  const std::vector<std::string>& outputs() const;  // names

  // Outputs of one batch, float32 in row-major order. Thread-safe. Throws BackendError.
  Outputs run(const Views& inputs) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A graph for strings, with operators from a library.
class TextSession {
 public:
  // Throws BackendError: the library cannot be loaded; BundleError: the graph cannot be loaded.
  TextSession(const std::filesystem::path& graph, const std::string& library);
  ~TextSession();

  // All outputs, int64, for strings [n]. Thread-safe. Throws BackendError.
  std::map<std::string, std::vector<std::int64_t>> run(const std::vector<std::string>& texts) const;

  std::string metadata(const std::string& key) const;  // of the graph; empty if missing

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns true if this ONNX Runtime was built with a provider.
bool has_provider(const std::string& name);

}  // namespace hydrant
