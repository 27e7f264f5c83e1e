// An ONNX graph in an ONNX Runtime session, with one of its execution providers.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hydrant/hydrant.h"
#include "view.h"

namespace hydrant {

// How ONNX Runtime is to run a graph.
struct Provider {
  std::string name;                            // "CPUExecutionProvider", …
  std::map<std::string, std::string> options;  // its own
  std::filesystem::path library;               // plug-in that holds it; empty for one that ONNX Runtime was built with
};

class Session {
 public:
  // Reads a graph. Throws BackendError: the provider cannot run it; BundleError: not even the CPU reads it.
  Session(const std::filesystem::path& graph, const Provider& provider, std::optional<int> threads);
  ~Session();

  const std::vector<std::string>& outputs() const;  // their names

  // Outputs of one batch, float32 in row-major order. Safe to call from many threads. Throws BackendError.
  Outputs run(const Views& inputs) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A graph that reads strings, with operators of a library of its own.
class TextSession {
 public:
  // Throws BackendError: the library cannot be loaded; BundleError: the graph cannot.
  TextSession(const std::filesystem::path& graph, const std::string& library);
  ~TextSession();

  // Every output, int64, for strings [n]. Safe to call from many threads. Throws BackendError.
  std::map<std::string, std::vector<std::int64_t>> run(const std::vector<std::string>& texts) const;

  // What the graph's metadata say under a key; empty without it.
  std::string metadata(const std::string& key) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Whether this ONNX Runtime was built with a provider.
bool has_provider(const std::string& name);

}  // namespace hydrant
