#include "schema.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

namespace hydrant {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Whether a text is a version, such as "1.4.0rc1".
bool is_version(const std::string& text) {
  const auto known = [](char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view(".+-").find(c) != std::string_view::npos;
  };
  return !text.empty() && text.size() <= 30 && is_digit(text.front()) && text.find('.') != std::string::npos &&
         std::all_of(text.begin(), text.end(), known);
}

std::string remedy(const Json& schema, const Json& writer, const std::string& other) {
  if (!integer(schema, kSchema + 1, INT64_MAX)) return "make it again";
  if (writer.is_string() && is_version(writer.get_ref<const std::string&>())) {
    const auto version = writer.get<std::string>();
    return "hydrant " + version + " wrote it: build the C++ runner of hydrant " + version + " or newer" + other;
  }
  return "a newer hydrant wrote it: build the newest C++ runner" + other;
}

}  // namespace

bool reads_schema(const Json& schema) { return integer(schema, kSchema, kSchema).has_value(); }

std::string refused_schema(const Json& schema, const Json& writer, const std::string& other) {
  return " has schema " + shown(schema) + "; this hydrant reads schema " + std::to_string(kSchema) + "; " +
         remedy(schema, writer, other);
}

}  // namespace hydrant
