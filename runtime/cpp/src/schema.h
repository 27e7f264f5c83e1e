// Which form a file of a bundle has, and what to do about one that a newer hydrant wrote.
#pragma once

#include <string>

#include "json.h"

namespace hydrant {

constexpr std::int64_t kSchema = 1;  // of every file of a bundle that names one

bool reads_schema(const Json& schema);

// The refusal of a file, but for its name: " has schema '2'; this hydrant reads schema 1; …".
//   writer  version of hydrant that wrote it; null where the file does not say
//   other   what else would help, such as ", or fit it again"; only where a newer hydrant wrote it
std::string refused_schema(const Json& schema, const Json& writer = nullptr, const std::string& other = "");

}  // namespace hydrant
