#include "json.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "messages.h"

namespace hydrant {
namespace {

constexpr int kMaxDepth = 100;

// Returns true if brackets are nested deeper than `max`. The parser's own callback has quadratic cost.
bool is_deeper(std::string_view text, int max) {
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
      if (++depth > max) return true;
    } else if (each == ']' || each == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace

Json parse_json(std::string_view text) {
  if (is_deeper(text, kMaxDepth)) throw std::invalid_argument("nested too deeply");
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::exception& error) {
    throw std::invalid_argument(error.what());
  }
}

const Json& member(const Json& object, const char* key) {
  static const Json null;
  const auto entry = object.find(key);
  return entry == object.end() ? null : *entry;
}

std::optional<std::int64_t> integer(const Json& value, std::int64_t min, std::int64_t max) {
  if (!value.is_number_integer()) return std::nullopt;
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX))
    return std::nullopt;
  const auto whole = value.get<std::int64_t>();
  return whole < min || whole > max ? std::nullopt : std::optional(whole);
}

std::optional<double> number(const Json& value) {
  if (!value.is_number()) return std::nullopt;
  const auto number = value.get<double>();
  return std::isfinite(number) ? std::optional(number) : std::nullopt;
}

std::string shown(const Json& value) {
  return cut(value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace hydrant
