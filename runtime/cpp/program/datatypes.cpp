#include "datatypes.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "../src/bytes.h"
#include "../src/messages.h"

namespace hydrant {
namespace {

constexpr std::size_t kMaxElements = 1U << 20U;  // of BYTES
constexpr std::size_t kLengthBytes = 4;          // of each element's length

template <typename... Pieces>
InputError error(const RequestTensor& tensor, const Pieces&... pieces) {
  return InputError(concat("input ", cut(tensor.name), pieces...));
}

// Number of values of the shape. Throws InputError: more than a request can hold.
std::size_t count_of(const RequestTensor& tensor) {
  std::size_t product = 1;
  for (const std::int64_t size : tensor.shape) {
    if (size != 0 && product > std::numeric_limits<std::uint32_t>::max() / static_cast<std::size_t>(size))
      throw error(tensor, " has shape ", shape_text(tensor.shape), ", which no request can hold");
    product *= static_cast<std::size_t>(size);
  }
  return product;
}

InputError wrong(const RequestTensor& tensor, const std::string& value, const std::string& expected) {
  return error(tensor, " of datatype ", tensor.datatype, " has ", value, "; expected ", expected);
}

// Calls `each` for all values of an array, flat or nested by shape.
void walk(const RequestTensor& tensor, const Json& data, std::size_t depth,
          const std::function<void(const Json&)>& each) {
  const std::vector<std::int64_t>& shape = tensor.shape;
  if (!data.is_array()) throw error(tensor, " has data = ", shown(data), "; expected an array");
  const bool nested = depth + 1 < shape.size() && !data.empty() && data.front().is_array();
  if ((nested || depth > 0) && static_cast<std::int64_t>(data.size()) != shape[depth])
    throw error(tensor, " has shape ", shape_text(shape), ", but its data has size ", data.size(), " on axis ", depth);
  if (depth > 0 && depth + 1 < shape.size() && !nested)
    throw error(tensor, " has data that is neither flat nor nested by its shape ", shape_text(shape));
  for (const Json& part : data) {
    if (nested) {
      walk(tensor, part, depth + 1, each);
    } else {
      each(part);
    }
  }
}

// All values of JSON, converted by `convert`.
template <typename Value, typename Convert>
std::vector<Value> from_json(const RequestTensor& tensor, const Convert& convert) {
  const std::size_t expected = count_of(tensor);
  std::vector<Value> values;
  walk(tensor, *tensor.data, 0, [&](const Json& value) {
    if (values.size() == expected)
      throw error(tensor, " has shape ", shape_text(tensor.shape), ", but more than ", expected, " values");
    values.push_back(convert(value));
  });
  if (values.size() != expected)
    throw error(tensor, " has shape ", shape_text(tensor.shape), ", but ", values.size(), " values");
  return values;
}

// All values of `width` bytes each, converted by `convert` from their bits.
template <typename Value, typename Convert>
std::vector<Value> from_bytes(const RequestTensor& tensor, std::size_t width, const Convert& convert) {
  const std::uint64_t expected = std::uint64_t{count_of(tensor)} * width;
  if (tensor.bytes.size() != expected) {
    throw error(tensor, " has ", tensor.bytes.size(), " bytes; expected ", expected, ", ", width,
                " for each element of ", tensor.datatype, " ", shape_text(tensor.shape));
  }
  std::vector<Value> values;
  values.reserve(tensor.bytes.size() / width);
  for (std::size_t place = 0; place < tensor.bytes.size(); place += width)
    values.push_back(convert(number_at(tensor.bytes, place, width, false)));
  return values;
}

// The elements of BYTES, each after its length.
std::vector<std::string> strings_in(const RequestTensor& tensor) {
  const std::size_t count = count_of(tensor);
  std::string_view rest = tensor.bytes;
  if (count > rest.size() / kLengthBytes)
    throw error(tensor, " has ", rest.size(), " bytes for ", count,
                " BYTES elements; expected lengths of 4 bytes each");
  std::vector<std::string> elements;
  elements.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (rest.size() < kLengthBytes)
      throw error(tensor, " ends before element ", i, " of ", count, "; expected the 4 bytes of its length");
    const std::uint64_t size = number_at(rest, 0, kLengthBytes, false);
    rest.remove_prefix(kLengthBytes);
    if (size > rest.size())
      throw error(tensor, " has ", rest.size(), " bytes left for element ", i, "; expected ", size);
    elements.emplace_back(rest.substr(0, static_cast<std::size_t>(size)));
    rest.remove_prefix(static_cast<std::size_t>(size));
  }
  if (!rest.empty()) throw error(tensor, " has ", rest.size(), " bytes after its ", count, " elements; expected none");
  return elements;
}

// Whole numbers of `width` bytes from `min` to `max`; UINT64 is limited to INT64.
struct Whole {
  std::size_t width;
  std::int64_t min, max;
};

std::vector<std::int64_t> wholes_in(const RequestTensor& tensor, const Whole& kind) {
  if (tensor.data != nullptr) {
    return from_json<std::int64_t>(tensor, [&](const Json& value) {
      const auto whole = integer(value, kind.min, kind.max);
      if (!whole) throw wrong(tensor, shown(value), "whole numbers in its range");
      return *whole;
    });
  }
  const std::uint64_t sign = std::uint64_t{1} << (8 * kind.width - 1);
  return from_bytes<std::int64_t>(tensor, kind.width, [&](std::uint64_t bits) {
    if (kind.min < 0) return static_cast<std::int64_t>((bits ^ sign) - sign);
    if (bits > static_cast<std::uint64_t>(INT64_MAX))
      throw wrong(tensor, cut(std::to_string(bits)), "whole numbers up to " + std::to_string(INT64_MAX));
    return static_cast<std::int64_t>(bits);
  });
}

std::vector<std::int64_t> flags_in(const RequestTensor& tensor) {
  if (tensor.data != nullptr) {
    return from_json<std::int64_t>(tensor, [&](const Json& value) {
      if (!value.is_boolean()) throw wrong(tensor, shown(value), "true or false");
      return std::int64_t{value.get<bool>()};
    });
  }
  return from_bytes<std::int64_t>(tensor, 1, [&](std::uint64_t bits) {
    if (bits > 1) throw error(tensor, " has a byte of value ", bits, "; expected 0 or 1 for BOOL");
    return static_cast<std::int64_t>(bits);
  });
}

// Numbers of `width` bytes with `digits` binary digits; the last digit is at least 2 to the power of `last`.
struct Real {
  std::size_t width;
  int digits, last;
};

// The nearest number of that kind, ties to even.
double rounded(double value, const Real& kind) {
  int exponent = 0;
  static_cast<void>(std::frexp(value, &exponent));
  const int last = std::max(exponent - kind.digits, kind.last);
  return std::ldexp(std::nearbyint(std::ldexp(value, -last)), last);
}

// A double as float; infinite beyond its range.
float narrowed(double value) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (std::abs(value) > std::numeric_limits<float>::max()) return value < 0 ? -kInfinity : kInfinity;
  return static_cast<float>(value);
}

float real_of(std::uint64_t bits, const Real& kind) {
  if (kind.width == 8) return narrowed(same_bits<double>(bits));
  if (kind.width == 4) return same_bits<float>(static_cast<std::uint32_t>(bits));
  return kind.digits == 11 ? half(bits) : same_bits<float>(static_cast<std::uint32_t>(bits << 16U));
}

std::vector<float> reals_in(const RequestTensor& tensor, const Real& kind) {
  if (tensor.data == nullptr)
    return from_bytes<float>(tensor, kind.width, [&](std::uint64_t bits) { return real_of(bits, kind); });
  const double max = kind.digits == 11 ? 65504 : std::numeric_limits<float>::max();
  return from_json<float>(tensor, [&](const Json& value) {
    const auto exact = number(value);
    const double near = exact ? rounded(*exact, kind) : 0;
    if (!exact || std::abs(near) > max) throw wrong(tensor, shown(value), "finite numbers");
    return static_cast<float>(near);
  });
}

}  // namespace

Tensor numbers_of(const RequestTensor& tensor) {
  static const std::map<std::string, Whole> wholes{
      {"INT8", {1, INT8_MIN, INT8_MAX}},    {"INT16", {2, INT16_MIN, INT16_MAX}}, {"INT32", {4, INT32_MIN, INT32_MAX}},
      {"INT64", {8, INT64_MIN, INT64_MAX}}, {"UINT8", {1, 0, UINT8_MAX}},         {"UINT16", {2, 0, UINT16_MAX}},
      {"UINT32", {4, 0, UINT32_MAX}},       {"UINT64", {8, 0, INT64_MAX}}};
  static const std::map<std::string, Real> reals{
      {"FP16", {2, 11, -24}}, {"BF16", {2, 8, -133}}, {"FP32", {4, 24, -149}}, {"FP64", {8, 53, -1074}}};
  const auto whole = wholes.find(tensor.datatype);
  if (whole != wholes.end()) return {tensor.shape, wholes_in(tensor, whole->second)};
  const auto real = reals.find(tensor.datatype);
  if (real != reals.end()) return {tensor.shape, reals_in(tensor, real->second)};
  if (tensor.datatype == "BOOL") return {tensor.shape, flags_in(tensor)};
  throw error(tensor, " has datatype ", cut(tensor.datatype),
              "; expected INT64 for token ids, FP32 for pixels, or BYTES for text, text_pair and image");
}

std::vector<std::string> elements_of(const RequestTensor& tensor) {
  const bool column = tensor.shape.size() == 1 || (tensor.shape.size() == 2 && tensor.shape[1] == 1);
  if (tensor.datatype != "BYTES" || !column) {
    throw error(tensor, " has datatype ", cut(tensor.datatype), " and shape ", shape_text(tensor.shape),
                "; expected BYTES [batch] or [batch, 1]");
  }
  if (count_of(tensor) > kMaxElements)
    throw error(tensor, " has shape ", shape_text(tensor.shape), "; expected at most ", kMaxElements, " elements");
  if (tensor.data == nullptr) return strings_in(tensor);
  return from_json<std::string>(tensor, [&](const Json& value) {
    if (!value.is_string()) throw wrong(tensor, shown(value), "strings");
    return value.get<std::string>();
  });
}

}  // namespace hydrant
