// Running a large batch on a CPU as several smaller ones: the activations of more rows no longer fit into its caches.
#pragma once

#include <cstdint>

#include "architecture.h"
#include "bundle.h"

namespace hydrant {

class Microbatch {
 public:
  // For the model of a bundle: how many streams run on average follows from its plan.
  // Throws BundleError: `plan.json` is missing, altered or malformed.
  static Microbatch of(const Bundle& bundle, const Architecture& architecture);

  // Most inputs of a batch of texts of so many tokens (or of images) that go into one run.
  std::size_t chunk(std::size_t tokens) const;

 private:
  std::size_t image_tokens_ = 0;  // 0 for text, which may have any length
  double streams_ = 1.0;          // mean over the layers: 1 before the fork, M from it on
};

}  // namespace hydrant
