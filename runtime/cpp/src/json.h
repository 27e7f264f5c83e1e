// Reading JSON that may be hostile: bounded depth, typed access, no exceptions of the parser's own.
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

// A member of an object; null where it is absent, or where `object` is something else.
const Json& member(const Json& object, const char* key);

// An integer (not a bool, not a float) from `least` to `most`; nothing for everything else.
std::optional<std::int64_t> integer(const Json& value, std::int64_t least, std::int64_t most);

// A finite number (not a bool); nothing for everything else.
std::optional<double> number(const Json& value);

// A value on one line, quoted and shortened, for messages.
std::string shown(const Json& value);

}  // namespace hydrant
