// Texts → token ids, by the bundle's tokenizer.onnx and the library of ONNX Runtime's extensions.
#pragma once

#include <string>
#include <vector>

#include "architecture.h"
#include "bundle.h"
#include "hydrant/hydrant.h"
#include "session.h"

namespace hydrant {

class Tokenizer {
 public:
  // Loads the library of ORTEXTENSIONS_LIBRARY, or libortextensions.so. Throws InputError: no tokenizer.onnx or
  // library; BundleError: it is altered, or made from another tokenizer.
  Tokenizer(const Bundle& bundle, const Architecture& architecture);

  // The model's inputs for texts [first, last), padded; for token tagging also `words` and `offsets`, −1 at padding.
  // `index` counts from the first text of all. Safe to call from many threads. Throws InputError.
  Tensors encode(const std::vector<Text>& texts, std::size_t first, std::size_t last, std::size_t index) const;

 private:
  std::map<std::string, std::vector<std::int64_t>> encode_one(const Text& text, std::size_t index) const;

  std::vector<std::string> names_;
  bool tags_;
  std::int64_t longest_;  // tokens of a text, and who says so
  std::string reader_;
  std::int64_t padding_;
  std::vector<std::string> unread_;  // special tokens, which the graph does not find within texts
  std::unique_ptr<const TextSession> session_;
};

}  // namespace hydrant
