// The datatypes of the Open Inference Protocol: a request's tensor, in JSON or as bytes → what a model reads.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "../src/json.h"
#include "hydrant/hydrant.h"

namespace hydrant {

// A tensor of a request.
struct GivenTensor {
  std::string name;
  std::string datatype;
  std::vector<std::int64_t> shape;
  const Json* data = nullptr;  // an array, flat or nested as the shape is; null where the values are bytes
  std::string_view bytes;      // row-major and little-endian; each element of BYTES behind its length in four bytes
};

// Both throw InputError for another datatype or wrong values. Nothing is allocated that the request does not fill.

// Whole numbers and BOOL as int64, other numbers as float.
Tensor numbers_of(const GivenTensor& given);

// The elements of BYTES [B] or [B, 1].
std::vector<std::string> elements_of(const GivenTensor& given);

}  // namespace hydrant
