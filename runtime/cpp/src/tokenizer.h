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
  // Finds the library that ORTEXTENSIONS_LIBRARY names, or libortextensions.so where the system looks for libraries.
  // Throws InputError: the bundle has no tokenizer.onnx, or the library is not there; BundleError: it is altered, or
  // was made from another tokenizer than the bundle holds.
  Tokenizer(const Bundle& bundle, const Architecture& architecture);

  // The model's inputs for texts [first, last), padded to the longest of them; of a model that tags tokens also their
  // `words` and `offsets`, −1 at padding. The first text of all has this index in messages. Safe to call from many
  // threads. Throws InputError: a text is empty, no UTF-8, has no token, is none that the model reads,
  // or has more tokens than an engine takes.
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
