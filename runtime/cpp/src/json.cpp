#include "json.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "messages.h"

namespace hydrant {
namespace {

constexpr int kDeepest = 100;

// Whether brackets outside strings are nested deeper than `most`. The parser's callback is quadratic in arrays.
bool is_deeper(std::string_view text, int most) {
  int depth = 0;
  bool inside = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char each = text[i];
    if (inside) {
      if (each == '\\') ++i;
      if (each == '"') inside = false;
    } else if (each == '"') {
      inside = true;
    } else if (each == '[' || each == '{') {
      if (++depth > most) return true;
    } else if (each == ']' || each == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace

Json parse_json(std::string_view text) {
  if (is_deeper(text, kDeepest)) throw std::invalid_argument("nested too deeply");
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::exception& error) {
    throw std::invalid_argument(error.what());
  }
}

const Json& member(const Json& object, const char* key) {
  static const Json null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

std::optional<std::int64_t> integer(const Json& value, std::int64_t least, std::int64_t most) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX))
    return std::nullopt;
  const auto found = value.get<std::int64_t>();
  if (found < least || found > most) return std::nullopt;
  return found;
}

std::optional<double> number(const Json& value) {
  if (!value.is_number()) return std::nullopt;
  const auto found = value.get<double>();
  if (!std::isfinite(found)) return std::nullopt;
  return found;
}

std::string shown(const Json& value) {
  return cut(value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace hydrant
