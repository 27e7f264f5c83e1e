// Safe reading of untrusted JSON: bounded depth, typed access, one kind of exception.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace hydrant {

using Json = nlohmann::json;

// Decodes UTF-8 JSON. Throws std::invalid_argument with the reason: not JSON, or nested deeper than 100 levels.
Json parse_json(std::string_view text);

// A member of an object; null if absent, or if `object` is not an object.
const Json& member(const Json& object, const char* key);

// An integer (not a bool or float) from `min` to `max`, and a finite number (not a bool); otherwise nothing.
std::optional<std::int64_t> integer(const Json& value, std::int64_t min, std::int64_t max);
std::optional<double> number(const Json& value);

// A value on one line, quoted and shortened, for messages.
std::string shown(const Json& value);

}  // namespace hydrant
