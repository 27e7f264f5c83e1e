// Texts → token ids, with the bundle's tokenizer.onnx and ONNX Runtime's extensions library.
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
  // Loads the library named by ORTEXTENSIONS_LIBRARY, or libortextensions.so. Throws InputError: no tokenizer.onnx or
  // library; BundleError: tokenizer.onnx is altered, or made from another tokenizer.
  Tokenizer(const Bundle& bundle, const Architecture& architecture);

  // The model's inputs for texts [first, last), padded; for token tagging also `words` and `offsets`, −1 at padding.
  // `index` is that of texts[0], for messages. Thread-safe. Throws InputError.
  Tensors encode(const std::vector<Text>& texts, std::size_t first, std::size_t last, std::size_t index) const;

 private:
  std::map<std::string, std::vector<std::int64_t>> encode_one(const Text& text, std::size_t index) const;

  std::vector<std::string> names_;
  bool tags_;
  std::int64_t longest_;  // maximum tokens of a text
  std::string reader_;    // sets this maximum
  std::int64_t padding_;
  std::vector<std::string> unsupported_;  // special tokens that the graph does not find in texts
  std::unique_ptr<const TextSession> session_;
};

}  // namespace hydrant
