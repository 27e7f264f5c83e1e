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

constexpr std::size_t kMostElements = 1U << 20U;  // of BYTES, each of which is read by itself
constexpr std::size_t kLengthBytes = 4;           // of the length before each

std::string what_of(const GivenTensor& given) { return "input " + cut(given.name); }

// Number of values that the shape stands for, at most those that a request can hold.
std::size_t count_of(const GivenTensor& given) {
  std::size_t product = 1;
  for (const std::int64_t size : given.shape) {
    if (size != 0 && product > std::numeric_limits<std::uint32_t>::max() / static_cast<std::size_t>(size))
      throw InputError(what_of(given) + " has shape " + shape_text(given.shape) + ", which no request can hold");
    product *= static_cast<std::size_t>(size);
  }
  return product;
}

InputError wrong(const GivenTensor& given, const std::string& found, const std::string& expected) {
  return InputError(what_of(given) + " of datatype " + given.datatype + " holds " + found + "; expected " + expected);
}

// Calls `each` with every value of an array that is flat, or nested as the shape says.
void walk(const GivenTensor& given, const Json& data, std::size_t depth, const std::function<void(const Json&)>& each) {
  const std::vector<std::int64_t>& shape = given.shape;
  if (!data.is_array()) throw InputError(what_of(given) + " has data = " + shown(data) + "; expected an array");
  const bool nested = depth + 1 < shape.size() && !data.empty() && data.front().is_array();
  if ((nested || depth > 0) && static_cast<std::int64_t>(data.size()) != shape[depth]) {
    throw InputError(what_of(given) + " has shape " + shape_text(shape) + ", but its data has " +
                     std::to_string(data.size()) + " parts on axis " + std::to_string(depth));
  }
  if (depth > 0 && depth + 1 < shape.size() && !nested)
    throw InputError(what_of(given) + " has data that is neither flat nor nested as its shape " + shape_text(shape));
  for (const Json& part : data) {
    if (nested) {
      walk(given, part, depth + 1, each);
    } else {
      each(part);
    }
  }
}

// All values of JSON, each made by `convert`.
template <typename Value, typename Convert>
std::vector<Value> from_json(const GivenTensor& given, const Convert& convert) {
  const auto mismatch = [&](const std::string& count) {
    return InputError(what_of(given) + " has shape " + shape_text(given.shape) + ", but " + count + " values");
  };
  const std::size_t wanted = count_of(given);
  std::vector<Value> found;
  walk(given, *given.data, 0, [&](const Json& value) {
    if (found.size() == wanted) throw mismatch("more than " + std::to_string(wanted));
    found.push_back(convert(value));
  });
  if (found.size() != wanted) throw mismatch(std::to_string(found.size()));
  return found;
}

// All values of `width` bytes each, each made by `convert` of its bits.
template <typename Value, typename Convert>
std::vector<Value> from_bytes(const GivenTensor& given, std::size_t width, const Convert& convert) {
  const std::uint64_t wanted = std::uint64_t{count_of(given)} * width;
  if (given.bytes.size() != wanted) {
    throw InputError(what_of(given) + " has " + std::to_string(given.bytes.size()) + " bytes; expected " +
                     std::to_string(wanted) + ", " + std::to_string(width) + " for each element of " + given.datatype +
                     " " + shape_text(given.shape));
  }
  std::vector<Value> found;
  found.reserve(given.bytes.size() / width);
  for (std::size_t place = 0; place < given.bytes.size(); place += width)
    found.push_back(convert(number_at(given.bytes, place, width, false)));
  return found;
}

// The elements of BYTES, each behind its length.
std::vector<std::string> strings_in(const GivenTensor& given) {
  const std::string what = what_of(given);
  const std::size_t count = count_of(given);
  std::string_view rest = given.bytes;
  if (count > rest.size() / kLengthBytes) {
    throw InputError(what + " has " + std::to_string(rest.size()) + " bytes for " + std::to_string(count) +
                     " elements of BYTES; expected 4 for the length of each");
  }
  std::vector<std::string> found;
  found.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (rest.size() < kLengthBytes) {
      throw InputError(what + " ends before element " + std::to_string(i) + " of " + std::to_string(count) +
                       "; expected the 4 bytes of its length");
    }
    const std::uint64_t size = number_at(rest, 0, kLengthBytes, false);
    rest.remove_prefix(kLengthBytes);
    if (size > rest.size()) {
      throw InputError("element " + std::to_string(i) + " of " + what + " should have " + std::to_string(size) +
                       " bytes; " + std::to_string(rest.size()) + " are there");
    }
    found.emplace_back(rest.substr(0, static_cast<std::size_t>(size)));
    rest.remove_prefix(static_cast<std::size_t>(size));
  }
  if (!rest.empty()) {
    throw InputError(what + " has " + std::to_string(rest.size()) + " bytes behind its " + std::to_string(count) +
                     " elements; expected none");
  }
  return found;
}

// Whole numbers of `width` bytes, from `least` to `most`. No model reads what UINT64 holds beyond INT64.
struct Whole {
  std::size_t width;
  std::int64_t least, most;
};

std::vector<std::int64_t> wholes_in(const GivenTensor& given, const Whole& kind) {
  if (given.data != nullptr) {
    return from_json<std::int64_t>(given, [&](const Json& value) {
      const auto found = integer(value, kind.least, kind.most);
      if (!found) throw wrong(given, shown(value), "whole numbers in its range");
      return *found;
    });
  }
  const std::uint64_t sign = std::uint64_t{1} << (8 * kind.width - 1);
  return from_bytes<std::int64_t>(given, kind.width, [&](std::uint64_t bits) {
    if (kind.least < 0) return static_cast<std::int64_t>((bits ^ sign) - sign);
    if (bits > static_cast<std::uint64_t>(INT64_MAX))
      throw wrong(given, cut(std::to_string(bits)), "whole numbers up to " + std::to_string(INT64_MAX));
    return static_cast<std::int64_t>(bits);
  });
}

std::vector<std::int64_t> flags_in(const GivenTensor& given) {
  if (given.data != nullptr) {
    return from_json<std::int64_t>(given, [&](const Json& value) {
      if (!value.is_boolean()) throw wrong(given, shown(value), "true or false");
      return std::int64_t{value.get<bool>()};
    });
  }
  return from_bytes<std::int64_t>(given, 1, [&](std::uint64_t bits) {
    if (bits > 1)
      throw InputError(what_of(given) + " has a byte of value " + std::to_string(bits) + "; expected 0 or 1 for BOOL");
    return static_cast<std::int64_t>(bits);
  });
}

// Numbers of `width` bytes: so many binary digits, the last of which stands for 2 to the power of `last` at least.
struct Real {
  std::size_t width;
  int digits, last;
};

// The nearest number of that kind; the even one of two that are as near.
double rounded(double value, const Real& kind) {
  int exponent = 0;
  static_cast<void>(std::frexp(value, &exponent));
  const int last = std::max(exponent - kind.digits, kind.last);
  return std::ldexp(std::nearbyint(std::ldexp(value, -last)), last);
}

// A double as float, which is infinite where that holds no number so large.
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

std::vector<float> reals_in(const GivenTensor& given, const Real& kind) {
  if (given.data == nullptr)
    return from_bytes<float>(given, kind.width, [&](std::uint64_t bits) { return real_of(bits, kind); });
  const double most = kind.digits == 11 ? 65504 : std::numeric_limits<float>::max();
  return from_json<float>(given, [&](const Json& value) {
    const auto found = number(value);
    const double near = found ? rounded(*found, kind) : 0;
    if (!found || std::abs(near) > most) throw wrong(given, shown(value), "finite numbers");
    return static_cast<float>(near);
  });
}

}  // namespace

Tensor numbers_of(const GivenTensor& given) {
  static const std::map<std::string, Whole> wholes{
      {"INT8", {1, INT8_MIN, INT8_MAX}},    {"INT16", {2, INT16_MIN, INT16_MAX}}, {"INT32", {4, INT32_MIN, INT32_MAX}},
      {"INT64", {8, INT64_MIN, INT64_MAX}}, {"UINT8", {1, 0, UINT8_MAX}},         {"UINT16", {2, 0, UINT16_MAX}},
      {"UINT32", {4, 0, UINT32_MAX}},       {"UINT64", {8, 0, INT64_MAX}}};
  static const std::map<std::string, Real> reals{
      {"FP16", {2, 11, -24}}, {"BF16", {2, 8, -133}}, {"FP32", {4, 24, -149}}, {"FP64", {8, 53, -1074}}};
  const auto whole = wholes.find(given.datatype);
  if (whole != wholes.end()) return {given.shape, wholes_in(given, whole->second)};
  const auto real = reals.find(given.datatype);
  if (real != reals.end()) return {given.shape, reals_in(given, real->second)};
  if (given.datatype == "BOOL") return {given.shape, flags_in(given)};
  throw InputError(what_of(given) + " has datatype " + cut(given.datatype) +
                   "; expected INT64 for token ids, FP32 for pixels, or BYTES for text, text_pair and image");
}

std::vector<std::string> elements_of(const GivenTensor& given) {
  const bool column = given.shape.size() == 1 || (given.shape.size() == 2 && given.shape[1] == 1);
  if (given.datatype != "BYTES" || !column) {
    throw InputError(what_of(given) + " has datatype " + cut(given.datatype) + " and shape " + shape_text(given.shape) +
                     "; expected BYTES [batch] or [batch, 1]");
  }
  if (count_of(given) > kMostElements) {
    throw InputError(what_of(given) + " has shape " + shape_text(given.shape) + "; expected at most " +
                     std::to_string(kMostElements) + " elements of BYTES");
  }
  if (given.data == nullptr) return strings_in(given);
  return from_json<std::string>(given, [&](const Json& value) {
    if (!value.is_string()) throw wrong(given, shown(value), "strings");
    return value.get<std::string>();
  });
}

}  // namespace hydrant
