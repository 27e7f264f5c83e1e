// Datatypes of the Open Inference Protocol: a request's tensors, in JSON or as bytes → inputs of a model.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "../src/json.h"
#include "hydrant/hydrant.h"

namespace hydrant {

// A tensor of a request.
struct RequestTensor {
  std::string name;
  std::string datatype;
  std::vector<std::int64_t> shape;
  const Json* data = nullptr;  // an array, flat or nested by shape; null if the values are bytes
  std::string_view bytes;      // row-major, little-endian; BYTES elements follow their lengths of four bytes
};

// Both throw InputError: another datatype, or invalid values. Memory grows with the request, not with its shapes.

// Whole numbers and BOOL as int64, other numbers as float.
Tensor numbers_of(const RequestTensor& tensor);

// The elements of BYTES [B] or [B, 1].
std::vector<std::string> elements_of(const RequestTensor& tensor);

}  // namespace hydrant
